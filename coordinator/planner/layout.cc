#include "coordinator/planner/layout.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace atl::plan {
namespace {

template <class Is>
bool AnyStage(const Layout& layout, const Is& is) {
  return std::ranges::any_of(layout.replicas, [&](const Replica& replica) {
    return std::ranges::any_of(replica.stages, is);
  });
}

}  // namespace

absl::Status Validate(const Job& job) {
  if (job.global_batch < 1 || job.global_batch > 1 << 20) {
    return absl::InvalidArgumentError(
        absl::StrCat("global_batch = ", job.global_batch, " is not in 1 .. 1048576"));
  }
  for (const int size : job.micro_batches) {
    if (size < 1) return absl::InvalidArgumentError(absl::StrCat("micro-batch size ", size));
  }
  for (const int size : job.tensor_parallel) {
    if (size < 1 || size > 1024) {
      return absl::InvalidArgumentError(absl::StrCat("tensor-parallel size ", size));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBytes(const Model& model, int64_t samples) {
  constexpr double kBytesMax = 0x1p61;
  double bytes = 0;
  for (const Layer& layer : model.layers) {
    bytes += static_cast<double>(layer.stash_bytes) + 3 * static_cast<double>(layer.out_bytes);
  }
  bytes *= static_cast<double>(samples);
  if (bytes <= kBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "model \"", model.name, "\" keeps ", bytes, " bytes of a batch of ", samples,
      " for its backward pass, more than can be planned for: use a smaller batch or shorter ",
      "sequences"));
}

std::vector<int> MapStagesToEntities(const Replica& replica) {
  std::vector<int> stage_entities;
  int entities = 0;
  for (const Stage& stage : replica.stages) {
    const auto same =
        std::find_if(replica.stages.begin(), replica.stages.begin() + std::ssize(stage_entities),
                     [&](const Stage& before) { return before.devices[0] == stage.devices[0]; });
    const auto index = static_cast<size_t>(same - replica.stages.begin());
    stage_entities.push_back(index < stage_entities.size() ? stage_entities[index] : entities++);
  }
  return stage_entities;
}

void SlowestFirst(const Cluster& cluster, const Costs& costs, int micro_batch,
                  std::vector<int>& devices) {
  if (devices.size() < 2) return;
  std::map<int, double> seconds;  // by type, of the whole model
  for (const int d : devices) {
    const auto [known, added] = seconds.try_emplace(cluster.devices[d].type, 0);
    if (!added) continue;
    const StageCosts all =
        costs.For(cluster.types[known->first], static_cast<int>(devices.size()), micro_batch);
    known->second = all.TotalSeconds(0, all.layers());
  }
  std::stable_sort(devices.begin(), devices.end(), [&](int a, int b) {
    return seconds.at(cluster.devices[a].type) > seconds.at(cluster.devices[b].type);
  });
}

StageCosts GroupCosts(const Cluster& cluster, const Costs& costs, int micro_batch,
                      const std::vector<int>& devices,
                      const std::vector<int>& tensor_split_ratios) {
  const int size = static_cast<int>(devices.size());
  const std::optional<RingLink> ring = FindSlowestRingLink(cluster, devices);
  if (!ring && tensor_split_ratios.empty()) {
    return costs.For(cluster.types[cluster.devices[devices[0]].type], size, micro_batch);
  }
  const auto type_of = [&](int d) {
    DeviceType type = cluster.types[cluster.devices[d].type];
    if (ring) type.ring_links[size] = *ring;
    return type;
  };
  if (tensor_split_ratios.empty()) return costs.For(type_of(devices[0]), size, micro_batch);
  std::vector<DeviceType> types;
  for (const int d : devices) types.push_back(type_of(d));
  return costs.ForSplitRatios(types, tensor_split_ratios, micro_batch);
}

int64_t GroupBytes(const Cluster& cluster, const Costs& costs, const std::vector<int>& devices,
                   const std::vector<int>& tensor_split_ratios) {
  const auto usable = [&](int d) {
    return costs.UsableBytes(cluster.types[cluster.devices[d].type]);
  };
  if (tensor_split_ratios.empty()) return usable(devices[0]);
  const double even = std::accumulate(tensor_split_ratios.begin(), tensor_split_ratios.end(), 0.0) /
                      static_cast<double>(devices.size());
  double least = INFINITY;
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    const double part = tensor_split_ratios[rank] / even;
    least = std::min(least, static_cast<double>(usable(devices[rank])) / part);
  }
  return static_cast<int64_t>(least);
}

bool IsOfOneDegree(const Layout& layout) {
  return !AnyStage(layout, [&](const Stage& stage) {
    return std::ssize(stage.devices) != layout.tensor_parallel;
  });
}

bool DegreesAgree(const Model& model, const Layout& layout) {
  if (IsOfOneDegree(layout)) return true;
  std::vector<size_t> degrees(model.layers.size(), 0);
  for (const Replica& replica : layout.replicas) {
    for (const Stage& stage : replica.stages) {
      for (int l = stage.first_layer; l < stage.last_layer; ++l) {
        if (degrees[l] == 0) degrees[l] = stage.devices.size();
        if (degrees[l] != stage.devices.size()) return false;
      }
    }
  }
  return !model.tied_head || degrees.front() == degrees.back();
}

bool IsWhole(const Model& model, const Layout& layout) {
  std::set<int> others;
  for (const Replica& replica : layout.replicas) {
    int next_layer = 0;
    std::set<int> own;
    for (const Stage& stage : replica.stages) {
      if (stage.first_layer != next_layer || stage.last_layer <= next_layer) return false;
      next_layer = stage.last_layer;
      own.insert(stage.devices.begin(), stage.devices.end());
    }
    const bool shared = std::ranges::any_of(own, [&](int d) { return others.contains(d); });
    if (shared || next_layer != std::ssize(model.layers)) return false;
    others.merge(own);
  }
  return !layout.replicas.empty();
}

bool SavesMemory(const Layout& layout) {
  return AnyStage(layout, [](const Stage& stage) { return stage.saving.any(); });
}

bool UsesNode(const Cluster& cluster, const Layout& layout, const std::string& node) {
  return AnyStage(
      layout, [&](const Stage& stage) { return cluster.devices[stage.devices[0]].node == node; });
}

bool UsesLeader(const Cluster& cluster, const Layout& layout) {
  return cluster.leader.empty() || UsesNode(cluster, layout, cluster.leader);
}

std::set<int> ListUsedDevices(const Layout& layout) {
  std::set<int> used;
  for (const Replica& replica : layout.replicas) {
    for (const Stage& stage : replica.stages) {
      used.insert(stage.devices.begin(), stage.devices.end());
    }
  }
  return used;
}

}  // namespace atl::plan

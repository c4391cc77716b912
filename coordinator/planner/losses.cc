#include "coordinator/planner/losses.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/status.h"

namespace atl::plan {
namespace {

// Equal for figures within about a quarter of each other.
int64_t Rounded(double value) { return std::llround(std::log2(std::max(value, 1e-12)) * 1.5); }

// Mean latency and bandwidth of a node's measured wires to each site, roughly.
std::string WiresOf(const Cluster& cluster, const std::vector<int>& devices) {
  struct Sum {
    double latency_s = 0;
    double bytes_per_s = 0;
    double count = 0;
  };
  std::map<std::string, Sum> sites;
  const auto add = [&](const std::string& site, const Wire& wire) {
    Sum& sum = sites[site];
    sum.latency_s += wire.latency_s;
    sum.bytes_per_s += wire.bytes_per_s;
    ++sum.count;
  };
  std::map<std::string, std::string> site_of;
  if (!cluster.node_to_node.empty()) {
    for (const Device& device : cluster.devices) site_of[device.node] = device.site;
  }
  const std::string& node = cluster.devices[devices[0]].node;
  // Pairs are ordered by the one that they start from.
  for (auto wire = cluster.node_to_node.lower_bound({node, ""});
       wire != cluster.node_to_node.end() && wire->first.first == node; ++wire) {
    add(site_of[wire->first.second], wire->second);
  }
  for (const int from : devices) {
    for (auto wire = cluster.measured.lower_bound({from, 0});
         wire != cluster.measured.end() && wire->first.first == from; ++wire) {
      add(cluster.devices[wire->first.second].site, wire->second);
    }
  }
  std::string text;
  for (const auto& [site, sum] : sites) {
    absl::StrAppend(&text, "|", site, ",", Rounded(sum.latency_s / sum.count), ",",
                    Rounded(sum.bytes_per_s / sum.count));
  }
  return text;
}

// All ways to lose `losses` nodes out of classes of these sizes, appended in order.
void Enumerate(const std::vector<int>& sizes, size_t at, int losses, std::vector<int>& now,
               std::vector<std::vector<int>>& all) {
  if (at == sizes.size()) {
    if (losses == 0) all.push_back(now);
    return;
  }
  for (int n = std::min(losses, sizes[at]); n >= 0; --n) {
    now[at] = n;
    Enumerate(sizes, at + 1, losses - n, now, all);
  }
  now[at] = 0;
}

}  // namespace

LossPlans::LossPlans(const Cluster& cluster, const Costs& costs, const Job& job,
                     const LossOptions& options) {
  std::map<NodeName, std::vector<int>> nodes;
  for (size_t d = 0; d < cluster.devices.size(); ++d) {
    const Device& device = cluster.devices[d];
    nodes[{device.site, device.node}].push_back(static_cast<int>(d));
  }
  std::map<std::string, int> index;
  for (const auto& [name, devices] : nodes) {
    std::string key = name.first;
    for (const int d : devices) absl::StrAppend(&key, "/", cluster.devices[d].type);
    absl::StrAppend(&key, WiresOf(cluster, devices));
    const int c = index.try_emplace(key, static_cast<int>(classes_.size())).first->second;
    if (c == static_cast<int>(classes_.size())) classes_.emplace_back();
    classes_[c].nodes.push_back(name);
    classes_[c].devices.push_back(devices);
    class_of_[name] = c;
  }
  MakePlans(cluster, costs, job, options);
}

void LossPlans::MakePlans(const Cluster& cluster, const Costs& costs, const Job& job,
                          const LossOptions& options) {
  std::vector<int> sizes;
  for (const NodeClass& c : classes_) sizes.push_back(static_cast<int>(c.nodes.size()));
  for (int losses = 1; losses <= options.losses; ++losses) {
    std::vector<Counts> cases;
    Counts now(sizes.size(), 0);
    Enumerate(sizes, 0, losses, now, cases);
    for (const Counts& counts : cases) {
      if (static_cast<int>(plans_.size()) >= options.plans) return;
      if (options.search.stop && options.search.stop()) return;
      Cluster rest = cluster;
      for (size_t c = 0; c < counts.size(); ++c) {
        for (int n = 0; n < counts[c]; ++n) {
          rest = WithoutNode(rest, classes_[c].nodes[n].first, classes_[c].nodes[n].second);
        }
      }
      plans_.emplace(counts, PlanJob(rest, costs, job, options.search));
    }
  }
}

absl::StatusOr<LossPlans::Ready> LossPlans::Find(const std::set<NodeName>& lost) const {
  Counts counts(classes_.size(), 0);
  for (const NodeName& name : lost) {
    const auto c = class_of_.find(name);
    if (c == class_of_.end()) {
      return absl::NotFoundError(
          absl::StrCat("there is no node \"", name.second, "\" in site \"", name.first, "\""));
    }
    ++counts[c->second];
  }
  const auto found = plans_.find(counts);
  if (found == plans_.end()) {
    return absl::NotFoundError(
        absl::StrCat("no plan was made for the loss of these ", lost.size(), " nodes"));
  }
  if (!found->second.ok()) return found->second.status();
  // The plan's devices are numbered without each class's first nodes: the survivors, in order of
  // their numbers in the whole cluster, and for each the device that takes its part.
  std::map<int, int> taken_by;
  for (size_t c = 0; c < classes_.size(); ++c) {
    size_t left = 0;
    for (size_t n = counts[c]; n < classes_[c].nodes.size(); ++n) {
      while (lost.count(classes_[c].nodes[left]) > 0) ++left;
      for (size_t d = 0; d < classes_[c].devices[n].size(); ++d) {
        taken_by[classes_[c].devices[n][d]] = classes_[c].devices[left][d];
      }
      ++left;
    }
  }
  std::vector<int> device_of;
  for (const auto& [planned, real] : taken_by) device_of.push_back(real);
  Ready ready{&*found->second, found->second->layout};
  for (Replica& replica : ready.layout.replicas) {
    for (Stage& stage : replica.stages) {
      for (int& d : stage.devices) d = device_of[d];
    }
  }
  return ready;
}

}  // namespace atl::plan

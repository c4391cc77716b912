
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/bytes_text.h"
#include "coordinator/planner/candidates.h"
#include "coordinator/simulator/search.h"

namespace atl::plan {
namespace {

std::string Size(double bytes) { return BytesText(std::llround(bytes)); }

// One micro-batch of the smallest size on the largest tensor-parallel sets that nodes hold.
struct Need {
  int micro_batch = 1;
  int tensor_parallel = 1;
  double state_bytes = 0;       // of the whole model
  double activation_bytes = 0;  // of one micro-batch through the whole model
};

// Returns the bytes of a layer that must be kept for one sample, from F on.
double LeastStash(const Costs& costs, const Layer& layer) {
  if (costs.options().recompute == Recompute::kNone) {
    return static_cast<double>(layer.stash_bytes);
  }
  return static_cast<double>(layer.stash_bytes - layer.backward_bytes - layer.again_bytes);
}

// The device that a type's devices are named after: the first one.
const Device& GetFirstDevice(const Cluster& cluster, int type) {
  return *std::ranges::find_if(cluster.devices,
                               [&](const Device& device) { return device.type == type; });
}

int LargestType(const Cluster& cluster) {
  int largest = cluster.devices[0].type;
  for (const Device& device : cluster.devices) {
    if (cluster.types[device.type].memory_bytes > cluster.types[largest].memory_bytes) {
      largest = device.type;
    }
  }
  return largest;
}

std::string Remedy(const Cluster& cluster, const Costs& costs, const Need& need, double lacks,
                   double has) {
  const int type = LargestType(cluster);
  const double each = std::max(1.0, static_cast<double>(costs.UsableBytes(cluster.types[type])));
  std::string text =
      absl::StrFormat("; %d more %s would hold it", static_cast<int64_t>(std::ceil(lacks / each)),
                      cluster.types[type].name);
  double frozen = 0;
  for (const Layer& layer : costs.model().layers) {
    frozen += static_cast<double>(layer.frozen_bytes);
  }
  const double per_parameter =
      (has - need.activation_bytes - frozen) / static_cast<double>(costs.model().parameters());
  if (per_parameter > 0) {
    absl::StrAppendFormat(&text, ", or at most %.1f bytes of state per parameter instead of %g",
                          per_parameter, costs.options().state_bytes_per_parameter);
  }
  return text;
}

}  // namespace

absl::Status ExplainNoFit(const Cluster& cluster, const Costs& costs, const Job& job,
                          const absl::Status& last) {
  const std::vector<int> micro_batches = MicroBatchSizes(job);
  const std::vector<int> sizes = TensorParallelSizes(job);
  Need need;
  need.micro_batch = *std::ranges::min_element(micro_batches);
  if (need.micro_batch > job.global_batch) {
    return absl::InvalidArgumentError(absl::StrCat("no layout: the smallest micro-batch allowed, ",
                                                   need.micro_batch, ", is above the batch of ",
                                                   job.global_batch));
  }
  bool any = false;
  for (const int tp : sizes) {
    if (BuildEntityPools(cluster, costs, tp, need.micro_batch).empty()) continue;
    need.tensor_parallel = std::max(need.tensor_parallel, tp);
    any = true;
  }
  if (!any) {
    return absl::InvalidArgumentError(
        absl::StrCat("no layout: no node has ", *std::ranges::min_element(sizes),
                     " devices of one type, the smallest tensor-parallel size allowed"));
  }
  for (const Layer& layer : costs.model().layers) {
    need.state_bytes += LayerStateBytes(layer, costs.options());
    need.activation_bytes += LeastStash(costs, layer) * need.micro_batch;
  }
  double has = 0;
  for (const Device& device : cluster.devices) {
    has += static_cast<double>(costs.UsableBytes(cluster.types[device.type]));
  }
  const double all = need.state_bytes + need.activation_bytes;
  const int type = LargestType(cluster);
  const double usable = static_cast<double>(costs.UsableBytes(cluster.types[type]));
  const std::string what = absl::StrFormat(
      "no layout fits: model \"%s\" needs %s for weights, gradients and optimizer state (%g bytes "
      "per parameter) and %s for the activations of one micro-batch of %d",
      costs.model().name, Size(need.state_bytes), costs.options().state_bytes_per_parameter,
      Size(need.activation_bytes), need.micro_batch);
  if (all > has) {
    const double share =
        has > 0 ? all * usable / has : all / static_cast<double>(cluster.devices.size());
    return absl::ResourceExhaustedError(absl::StrCat(
        what, "; all ", cluster.devices.size(), " devices together have ", Size(has), ". Device \"",
        GetFirstDevice(cluster, type).id, "\" lacks ", Size(share - usable), " for its share of ",
        Size(share), Remedy(cluster, costs, need, all - has, has)));
  }
  // Together they could: then one layer is too large for any device, or the layers do not divide.
  const Layer* largest = nullptr;
  double layer_bytes = 0;
  for (const Layer& layer : costs.model().layers) {
    const double bytes =
        (LayerStateBytes(layer, costs.options()) + LeastStash(costs, layer) * need.micro_batch) /
        need.tensor_parallel;
    if (bytes > layer_bytes) {
      layer_bytes = bytes;
      largest = &layer;
    }
  }
  if (layer_bytes > usable) {
    return absl::ResourceExhaustedError(absl::StrCat(
        what, ". Layer \"", largest->name, "\" alone needs ", Size(layer_bytes), " of each of ",
        need.tensor_parallel, " devices; device \"", GetFirstDevice(cluster, type).id, "\" lacks ",
        Size(layer_bytes - usable), ". Larger devices would hold it, or more tensor parallelism"));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(what, "; the devices have ", Size(has),
                   ", but whole layers do not divide so: ", std::string(last.message())));
}

absl::Status CheckConstraints(const Cluster& cluster, const Costs& costs, const Job& job) {
  const Constraints& fixed = job.fixed;
  const std::vector<std::string> names = sim::ScheduleNames();
  if (!fixed.schedule.empty() && std::ranges::find(names, fixed.schedule) == names.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout.schedule = \"", absl::CHexEscape(fixed.schedule),
                     "\": there is no such schedule; there are: ", absl::StrJoin(names, ", ")));
  }
  const std::vector<int> sizes = TensorParallelSizes(job);
  const std::vector<int> micro_batches = MicroBatchSizes(job);
  const int fixed_size = sizes.size() == 1 && sizes[0] > 1 ? sizes[0] : 0;
  const int smallest = *std::ranges::min_element(micro_batches);
  int entities = 0;
  for (const int tp : sizes) {
    int count = 0;
    for (const EntityPool& pool : BuildEntityPools(cluster, costs, tp, smallest)) {
      count += static_cast<int>(pool.entities.size());
    }
    entities = std::max(entities, count);
  }
  const auto layers = static_cast<int64_t>(costs.model().layers.size());
  const int64_t stages = std::max(1, fixed.stages), replicas = std::max(1, fixed.replicas);
  const int64_t most = (job.global_batch + smallest - 1) / smallest;
  const bool fits = stages * replicas <= entities && stages <= layers && replicas <= most;
  if (fits || (!fixed.any() && fixed_size <= 1)) return absl::OkStatus();
  std::vector<std::string> given;
  for (const auto& [key, value] :
       {std::pair("stages", fixed.stages), std::pair("replicas", fixed.replicas),
        std::pair("tensor_parallel", fixed_size)}) {
    if (value > 0) given.push_back(absl::StrCat("layout.", key, " = ", value));
  }
  const auto count = [](int64_t devices) {
    return absl::StrCat(devices, devices == 1 ? " device" : " devices");
  };
  std::string text = absl::StrCat(
      "no layout fits: ", absl::StrJoin(given, ", "), given.size() == 1 ? " takes " : " take ",
      count(stages * replicas * std::max(1, fixed_size)), ", the island has ",
      count(static_cast<int64_t>(cluster.devices.size())));
  if (fixed_size > 1) {
    absl::StrAppend(&text, " (", entities, " times ", fixed_size, " alike on one worker)");
  }
  return absl::InvalidArgumentError(absl::StrCat(
      text, "; its model has ", layers, " layers, its batch ", job.global_batch,
      " sequences: stages must not be more than the layers, replicas not more than the "
      "micro-batches. Add workers, use less, or leave a key out to let the planner choose"));
}

}  // namespace atl::plan

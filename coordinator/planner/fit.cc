#include "coordinator/planner/fit.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "common/bytes_text.h"
#include "common/status.h"
#include "coordinator/planner/candidates.h"

namespace atl::plan {
namespace {

std::string Text(double bytes) { return BytesText(std::llround(bytes)); }

// One micro-batch of the smallest size on the largest tensor-parallel sets that nodes hold.
struct Need {
  int micro_batch = 1;
  int tensor_parallel = 1;
  double state_bytes = 0;       // of the whole model
  double activation_bytes = 0;  // of one micro-batch through the whole model
};

// What must be kept of a layer for one sample, from F on.
double LeastStash(const Costs& costs, const Layer& layer) {
  if (costs.options().recompute == Recomputation::kNever) {
    return static_cast<double>(layer.stash_bytes);
  }
  return static_cast<double>(layer.stash_bytes - layer.backward_bytes - layer.again_bytes);
}

// The device that a type's devices are named after: the first one.
const Device& FirstOf(const Cluster& cluster, int type) {
  return *std::find_if(cluster.devices.begin(), cluster.devices.end(),
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
  const double each = static_cast<double>(costs.UsableBytes(cluster.types[type]));
  std::string text =
      absl::StrFormat("; %d more %s would hold it", static_cast<int>(std::ceil(lacks / each)),
                      cluster.types[type].name);
  const double per_parameter =
      (has - need.activation_bytes) / static_cast<double>(costs.model().parameters());
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
  need.micro_batch = *std::min_element(micro_batches.begin(), micro_batches.end());
  if (need.micro_batch > job.global_batch) {
    return absl::InvalidArgumentError(absl::StrCat("no layout: the smallest micro-batch allowed, ",
                                                   need.micro_batch, ", is above the batch of ",
                                                   job.global_batch));
  }
  bool any = false;
  for (const int tp : sizes) {
    if (PoolsOf(cluster, costs, tp, need.micro_batch).empty()) continue;
    need.tensor_parallel = std::max(need.tensor_parallel, tp);
    any = true;
  }
  if (!any) {
    return absl::InvalidArgumentError(
        absl::StrCat("no layout: no node has ", *std::min_element(sizes.begin(), sizes.end()),
                     " devices of one type, the smallest tensor-parallel size allowed"));
  }
  need.state_bytes =
      static_cast<double>(costs.model().parameters()) * costs.options().state_bytes_per_parameter;
  for (const Layer& layer : costs.model().layers) {
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
      costs.model().name, Text(need.state_bytes), costs.options().state_bytes_per_parameter,
      Text(need.activation_bytes), need.micro_batch);
  if (all > has) {
    const double share = all * usable / has;
    return absl::ResourceExhaustedError(absl::StrCat(
        what, "; all ", cluster.devices.size(), " devices together have ", Text(has), ". Device \"",
        FirstOf(cluster, type).id, "\" lacks ", Text(share - usable), " for its share of ",
        Text(share), Remedy(cluster, costs, need, all - has, has)));
  }
  // Together they could: then one layer is too large for any device, or the pieces do not divide.
  const Layer* largest = nullptr;
  double layer_bytes = 0;
  for (const Layer& layer : costs.model().layers) {
    const double bytes =
        (static_cast<double>(layer.parameters) * costs.options().state_bytes_per_parameter +
         LeastStash(costs, layer) * need.micro_batch) /
        need.tensor_parallel;
    if (bytes > layer_bytes) {
      layer_bytes = bytes;
      largest = &layer;
    }
  }
  if (layer_bytes > usable) {
    return absl::ResourceExhaustedError(absl::StrCat(
        what, ". Layer \"", largest->name, "\" alone needs ", Text(layer_bytes), " of each of ",
        need.tensor_parallel, " devices; device \"", FirstOf(cluster, type).id, "\" lacks ",
        Text(layer_bytes - usable), ". Larger devices would hold it, or more tensor parallelism"));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(what, "; the devices have ", Text(has),
                   ", but whole layers do not divide so: ", std::string(last.message())));
}

}  // namespace atl::plan

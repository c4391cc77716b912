#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/costs.h"
#include "common/model/job_model.h"
#include "common/model/optimizer_state.h"
#include "common/model/stage_memory.h"
#include "common/model/tensor_part.h"
#include "common/status.h"
#include "coordinator/planner/cluster/catalogue.h"
#include "coordinator/planner/cluster/constraints.h"
#include "coordinator/planning/objective.h"
#include "coordinator/planning/request.h"

namespace atl {
namespace {

// Sets the parts of a block's operations that are attention and experts.
void SetShares(const ModelConfig& config, int64_t block, int64_t tokens,
               const ElementBytes& element, plan::Layer* layer) {
  if (layer->forward_flops <= 0) return;
  const auto share = [&](int64_t weights) {
    return std::clamp(
        2 * static_cast<double>(weights) * static_cast<double>(tokens) / layer->forward_flops, 0.0,
        1.0);
  };
  layer->head_share = 1 - share(FeedForwardWeights(config, block));
  if (!config.HasExperts(block)) return;
  layer->expert_share =
      share(config.experts.per_token * 3 * config.d_model * config.experts.hidden);
  layer->expert_stash_bytes = tokens * config.experts.per_token *
                              (3 * config.experts.hidden * element.compute + element.state);
}

}  // namespace

plan::Model PlannerModel(const std::string& name, const ModelConfig& config,
                         int64_t sequence_length, const ElementBytes& element) {
  const std::vector<LayerCosts> costs = CostsByLayer(config, sequence_length, element);
  const std::vector<LayerFootprint> footprints =
      ComputeLayerFootprints(config, WholePart(config), {1, sequence_length}, element);
  plan::Model model;
  model.name = name;
  model.tied_head = config.tied_head;
  model.head_groups = config.is_images() ? 0 : CountHeadGroups(config);
  if (config.adapter.base && config.has_dense_blocks()) {
    model.head_groups = std::min(model.head_groups, CountHiddenGroups(config));
  }
  model.experts = config.experts.count;
  model.experts_per_token = config.experts.per_token;
  for (size_t l = 0; l < costs.size(); ++l) {
    const LayerFootprint& takes = footprints[l];
    const bool head = l + 1 == costs.size();
    plan::Layer layer;
    layer.name = costs[l].name;
    // On a device of its own a tied head holds a copy of the table.
    layer.parameters = costs[l].read_parameters;
    layer.frozen_bytes = costs[l].frozen_bytes;
    layer.coded_bytes = costs[l].coded_bytes;
    layer.forward_flops = costs[l].forward_flops;
    layer.frozen_flops = costs[l].frozen_flops;
    layer.loss = head;
    layer.out_bytes = takes.output_bytes;
    // The gradient of what the layer hands on, which takes its place before a head in one stage.
    layer.backward_bytes = takes.backward_stash_bytes + takes.output_bytes;
    layer.stash_bytes =
        takes.input_bytes + takes.forward_stash_bytes + takes.slice_bytes + layer.backward_bytes;
    if (l > 0 && !head) layer.again_bytes = takes.forward_stash_bytes;
    if (l > 0 && !head && !config.is_images()) {
      SetShares(config, static_cast<int64_t>(l) - 1, sequence_length, element, &layer);
    }
    model.layers.push_back(std::move(layer));
  }
  return model;
}

// ---- a job's specification as the search's requirements ----

namespace {

constexpr int kMicroBatchMax = 64;    // sequences; larger ones gain nothing and cost memory
constexpr int kMicroBatchSizes = 12;  // tried at most

// Sizes that divide the batch, so that every micro-batch of every replica is full.
absl::StatusOr<std::vector<int>> MicroBatches(const JobSpec& spec) {
  const int64_t batch = spec.inner.batch_sequences;
  const int64_t fixed = spec.inner.micro_batch_sequences;
  if (batch < 1 || batch > 1 << 20) {
    return absl::InvalidArgumentError(
        absl::StrCat("inner.batch_sequences = ", batch, ": must be from 1 to 1048576"));
  }
  std::vector<int> divisors;
  for (int64_t size = 1; size <= std::min<int64_t>(batch, kMicroBatchMax); ++size) {
    if (batch % size == 0) divisors.push_back(static_cast<int>(size));
  }
  if (fixed > 0) {
    if (batch % fixed == 0) return std::vector<int>{static_cast<int>(fixed)};
    std::string sizes;
    for (const int size : divisors) absl::StrAppend(&sizes, sizes.empty() ? "" : ", ", size);
    return absl::InvalidArgumentError(absl::StrCat(
        "inner.micro_batch_sequences = ", fixed, " does not divide inner.batch_sequences = ", batch,
        ": an island of several devices needs full micro-batches; use one of ", sizes,
        ", or 0 to let the planner choose"));
  }
  while (static_cast<int>(divisors.size()) > kMicroBatchSizes) {
    // The ends matter most; of the rest every other one goes.
    for (size_t i = 1; i + 1 < divisors.size(); ++i) {
      divisors.erase(divisors.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return divisors;
}

// Lists the tensor-parallel sizes. Of every layer that devices share, each has at least one head,
// column, expert and word: workers cut it so (common/model/tensor_part.h), and would refuse the
// plan.
absl::StatusOr<std::vector<int>> TensorSizes(const JobSpec& spec, const ModelSpec& shape) {
  std::pair<const char*, int64_t> least = {"model.heads", shape.heads};
  for (const auto& [name, count] : {std::pair("model.key_value_heads", shape.key_value_heads),
                                    std::pair("model.feed_forward", shape.feed_forward),
                                    std::pair("model.vocabulary", shape.vocabulary)}) {
    if (count > 0 && count < least.second) least = {name, count};
  }
  if (!spec.layout.tensor_split_ratios.empty() && shape.heads > 0) {
    // A key and value head goes with all that read it.
    const int64_t groups = shape.key_value_heads > 0 ? shape.key_value_heads : shape.heads;
    ATOLL_RETURN_IF_ERROR(CheckTensorSplitRatios(spec.layout.tensor_split_ratios, groups));
  }
  const auto config = ModelConfigFromFacts(shape, spec);
  const auto check = [&](int64_t size) {
    return config.ok() ? CutModel(*config, static_cast<int>(size), {}).status() : absl::OkStatus();
  };
  if (const int64_t fixed = spec.layout.tensor_parallel; fixed > 0) {
    if (fixed > least.second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layout.tensor_parallel = ", fixed, ": the model has ", least.first, " = ", least.second,
          ", and each of the devices that share its layers needs one: ", "use 1 to ", least.second,
          ", or 0 to let the planner choose"));
    }
    ATOLL_RETURN_IF_ERROR(Annotate(check(fixed), "layout.tensor_parallel"));
    return std::vector<int>{static_cast<int>(fixed)};
  }
  if (!AllowsTensorParallelism(spec.inner.optimizer)) return std::vector<int>{1};
  std::vector<int> sizes;
  for (const int size : {1, 2, 4, 8}) {
    if (size == 1 || (size <= least.second && check(size).ok())) sizes.push_back(size);
  }
  return sizes;
}

}  // namespace

plan::CostOptions MakeCostOptions(const JobSpec& spec, bool full_precision) {
  plan::CostOptions options;
  options.state_bytes_per_parameter = full_precision ? 16 : 18;
  // Both moments, and in half precision the master weight. Without a number of copies, one where
  // memory requires it.
  options.sharded_bytes_per_parameter = full_precision ? 8 : 12;
  options.optimizer_copies = static_cast<int>(std::max<int64_t>(1, spec.layout.optimizer_copies));
  options.weight_share = 1;  // the runtime keeps all of it until W is done
  options.fixed_slots = true;
  if (spec.layout.recompute == Recompute::kAll) {
    // W after its B everywhere: otherwise what every micro-batch makes again is kept until its W.
    options.recompute = Recompute::kAll;
    options.split_backward = false;
  }
  return options;
}

absl::StatusOr<plan::Job> ToPlanJob(const JobSpec& spec, const ModelSpec& shape, int islands) {
  const LayoutSpec& layout = spec.layout;
  for (const auto& [name, value] :
       {std::pair("layout.stages", layout.stages), std::pair("layout.replicas", layout.replicas),
        std::pair("layout.tensor_parallel", layout.tensor_parallel)}) {
    if (value < 0 || value > 65'536) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " = ", value, ": must be from 0 to 65536"));
    }
  }
  plan::Job job;
  job.global_batch = static_cast<int>(spec.inner.batch_sequences);
  ATOLL_ASSIGN_OR_RETURN(job.micro_batches, MicroBatches(spec));
  if (const auto config = ModelConfigFromFacts(shape, spec); config.ok()) {
    const auto check = [&](int size) {
      return CheckChoices(*config, {size, spec.data.sequence_length});
    };
    ATOLL_RETURN_IF_ERROR(check(job.micro_batches.front()));
    std::erase_if(job.micro_batches, [&](int size) { return !check(size).ok(); });
  }
  ATOLL_ASSIGN_OR_RETURN(job.tensor_parallel, TensorSizes(spec, shape));
  job.search = layout.search;
  job.fixed = {.stages = static_cast<int>(layout.stages),
               .replicas = static_cast<int>(layout.replicas),
               .schedule = layout.schedule,
               .exclude = {layout.exclude.begin(), layout.exclude.end()},
               .sites = {layout.sites.begin(), layout.sites.end()},
               .memory_reserve_bytes = layout.memory_reserve_bytes};
  for (const LinkLimit& limit : layout.link_limits) {
    job.fixed.bytes_per_day[{limit.from, limit.to}] = limit.bytes_per_day;
  }
  job.objective = MakeObjective(spec, islands);
  return job;
}

absl::StatusOr<PlanningInput> MakeJobInput(const JobSpec& spec, const ModelConfig& config,
                                           const ElementBytes& element, int islands) {
  ATOLL_ASSIGN_OR_RETURN(plan::Job job, ToPlanJob(spec, ToSpec(config), islands));
  const plan::Model model = PlannerModel(spec.name, config, spec.data.sequence_length, element);
  return PlanningInput{
      {}, plan::Costs(model, {}, MakeCostOptions(spec, element.compute == 4)), std::move(job), ""};
}

absl::Status SetCluster(const JobSpec& spec, plan::Cluster cluster, PlanningInput& input) {
  ATOLL_RETURN_IF_ERROR(plan::CheckNames(input.job.fixed, cluster));
  ATOLL_RETURN_IF_ERROR(plan::Constrain(input.job.fixed, cluster));
  input.cluster = std::move(cluster);
  return CheckPrices(spec, input.cluster);
}

}  // namespace atl

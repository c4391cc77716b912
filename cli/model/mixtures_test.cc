// Plans of mixtures of experts, by published models and the datasheets of devices.

#include <catch2/catch.hpp>

#include "cli/model/named_model.h"
#include "common/model/costs.h"
#include "common/model/job_model.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/testing/clusters.h"
#include "coordinator/planning/request.h"

namespace atl {
namespace {

using cli::NamedModelJob;

constexpr ElementBytes kHalves = {2, 4};

ModelConfig Published(const std::string& name) {
  return ModelConfigOfJob(NamedModelJob(name, 0).value()).value();
}

plan::Model ModelToPlan(const ModelConfig& config) {
  return PlannerModel("mixture", config, 4096, kHalves);
}

TEST_CASE("published_mixtures_are_known_by_name") {
  const auto billions = [](const char* name) {
    return static_cast<double>(ModelToPlan(Published(name)).parameters()) / 1e9;
  };
  CHECK(billions("mixtral-8x7b") == Approx(46.70).epsilon(1e-3));
  CHECK(billions("mixtral-8x22b") == Approx(140.62).epsilon(1e-3));
  CHECK(billions("olmoe-1b-7b") == Approx(6.92).epsilon(1e-3));
  CHECK(billions("qwen3-30b-a3b") == Approx(30.53).epsilon(1e-3));
}

TEST_CASE("experts_weigh_in_memory_and_a_tokens_own_in_time") {
  const ModelConfig mixture = Published("mixtral-8x7b");
  ModelConfig dense = mixture;  // the same operations but for the router's
  dense.experts = {};
  dense.ffn = mixture.experts.per_token * mixture.experts.hidden;
  const plan::Model a = ModelToPlan(mixture), b = ModelToPlan(dense);
  const double router = 2.0 * 4096 * 8 * 4096;
  CHECK(a.layers[1].forward_flops == Approx(b.layers[1].forward_flops + router));
  CHECK(a.layers[1].parameters - b.layers[1].parameters == IdleParameters(mixture, 1) + 8 * 4096);
  CHECK(a.layers[1].head_share + a.layers[1].expert_share + router / a.layers[1].forward_flops ==
        Approx(1));
  // With few tokens the weights of all experts are read: it is slower than its operations.
  const plan::DeviceType type = *plan::FindDeviceType("a100-80");
  const auto seconds = [&](const plan::Model& model, int64_t tokens) {
    plan::Model sized = model;
    for (plan::Layer& layer : sized.layers) {
      const double part = static_cast<double>(tokens) / 4096;
      layer.forward_flops *= part;
      layer.stash_bytes = static_cast<int64_t>(static_cast<double>(layer.stash_bytes) * part);
    }
    return plan::Costs(sized, {}, {}).For(type, 1, 1).TotalSeconds(1, 2);
  };
  CHECK(seconds(a, 4096) == Approx(seconds(b, 4096)).epsilon(0.02));
  CHECK(seconds(a, 64) > 2 * seconds(b, 64));
}

TEST_CASE("experts_that_do_not_divide_by_a_degree_count_as_they_are_cut") {
  const plan::DeviceType type = *plan::FindDeviceType("a100-80");
  plan::Model model = ModelToPlan(Published("mixtral-8x7b"));
  model.head_groups = 0;
  const auto seconds = [&](int64_t experts) {
    model.experts = experts;
    return plan::Costs(model, {}, {}).For(type, 3, 1).TotalSeconds(1, 33);
  };
  CHECK(seconds(9) == Approx(seconds(0)));
  CHECK(seconds(8) > 1.05 * seconds(9));  // three of eight on one of the devices
}

TEST_CASE("what_a_device_keeps_of_experts_is_as_much_as_choices_may_be_of_its_own") {
  const plan::DeviceType type = *plan::FindDeviceType("a100-80");
  const ModelConfig config = Published("mixtral-8x7b");
  const plan::Model model = ModelToPlan(config);
  const auto kept = [&](int devices) {
    return plan::Costs(model, {}, {}).For(type, devices, 1).StashBytes(1, 2);
  };
  const int64_t experts = model.layers[1].expert_stash_bytes;
  CHECK(experts > model.layers[1].stash_bytes / 2);
  for (const int devices : {2, 4}) CHECK(kept(devices) > experts);  // both may be here
  CHECK(kept(8) > experts / 2);
  CHECK(kept(8) < experts);
  const TensorPart part = CutModel(config, 4, {})->front();
  const BlockForwardStash of_part = MakeBlockForwardStash(config, 0, part, {1, 4096}, kHalves);
  CHECK(kept(4) > (of_part.up.rows * of_part.up.cols + of_part.hidden.rows * of_part.hidden.cols) *
                      kHalves.compute);
}

TEST_CASE("micro_batches_with_more_choices_of_experts_than_kernels_count_are_refused") {
  JobSpec spec = NamedModelJob("mixtral-8x7b", 0).value();
  spec.data.sequence_length = 1 << 24;
  spec.inner.batch_sequences = 64;
  const auto sizes = [&](int64_t fixed) {
    spec.inner.micro_batch_sequences = fixed;
    ModelConfig config = Published("mixtral-8x7b");
    config.max_positions = 1 << 24;
    return ToPlanJob(spec, ToSpec(config));
  };
  CHECK(sizes(0)->micro_batches == std::vector<int>{1, 2, 4, 8});
  const absl::Status refused = sizes(16).status();
  CHECK(absl::IsInvalidArgument(refused));
  CHECK_THAT(std::string(refused.message()), Catch::Contains("536870912 choices"));
}

TEST_CASE("a_mixture_of_gpt_scale_is_planned_over_devices_that_hold_it") {
  const plan::Costs costs(ModelToPlan(Published("mixtral-8x22b")), {}, {});
  const plan::Job job{.global_batch = 64, .micro_batches = {1, 2}, .tensor_parallel = {1, 2, 4, 8}};
  const plan::Options quick{.simulate = 3, .restarts = 8, .improvements = 4};
  const auto few = plan::PlanJob(plan::MakeCluster({{"a100-80", 16, "a"}}), costs, job, quick);
  CHECK(absl::IsResourceExhausted(few.status()));  // 140 B parameters in 1.3 TB
  const plan::Cluster cluster = plan::MakeCluster({{"a100-80", 64, "a"}});
  const auto plan = plan::PlanJob(cluster, costs, job, quick);
  INFO(plan.status());
  REQUIRE(plan.ok());
  int64_t held = 0;
  for (const plan::ReplicaOutcome& kind : plan->outcome.kinds) {
    for (const int64_t bytes : kind.state_bytes) {
      CHECK(bytes <= cluster.types[0].memory_bytes);
      held = std::max(held, bytes);
    }
  }
  CHECK(held > 0);
  // The step takes at least a token's own operations, and far less than all experts' would.
  double flops = 0, idle = 0;
  const ModelConfig config = Published("mixtral-8x22b");
  for (int64_t l = 0; l < config.layers + 2; ++l) {
    flops += 3 * 64 * ForwardFlops(config, l, 4096);
    idle += 3.0 * 64 * 2 * 4096 * static_cast<double>(IdleParameters(config, l));
  }
  const double rate = 64 * cluster.types[0].flops_per_s * 0.45;
  CHECK(plan->outcome.step_s > flops / rate);
  CHECK(plan->outcome.step_s < (flops + idle) / rate);
}

TEST_CASE("degrees_of_tensor_parallelism_are_those_that_the_model_can_be_cut_by") {
  const auto degrees = [](const char* name, int fixed) {
    JobSpec spec = NamedModelJob(name, 0).value();
    spec.inner.batch_sequences = 8;
    spec.layout.tensor_parallel = fixed;
    return ToPlanJob(spec, ToSpec(Published(name)));
  };
  CHECK(degrees("mixtral-8x7b", 0)->tensor_parallel == std::vector<int>{1, 2, 4, 8});
  CHECK(degrees("qwen3-30b-a3b", 0)->tensor_parallel == std::vector<int>{1, 2, 4});
  CHECK(degrees("olmoe-1b-7b", 0)->tensor_parallel == std::vector<int>{1});
  const absl::Status cut = degrees("olmoe-1b-7b", 2).status();
  CHECK_THAT(std::string(cut.message()), Catch::Contains("norm over the queries of all heads"));
}

}  // namespace
}  // namespace atl

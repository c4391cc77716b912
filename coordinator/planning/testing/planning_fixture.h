// The language of the tests of plans: jobs, workers with what was measured of them, links.

#ifndef ATOLL_COORDINATOR_PLANNING_TESTING_PLANNING_FIXTURE_H_
#define ATOLL_COORDINATOR_PLANNING_TESTING_PLANNING_FIXTURE_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planning/planning.h"

namespace atl {

inline constexpr int64_t kGiB = int64_t{1} << 30;

// A GPT-2 of `blocks` blocks, width 64, 64 tokens.
inline PlanRequest MakePlanRequest(int blocks, int64_t batch,
                                   std::vector<PlanMember> members = {}) {
  PlanRequest request;
  request.members = std::move(members);
  request.spec.name = "lm";
  request.spec.data.sequence_length = 64;
  request.spec.inner.batch_sequences = batch;
  ModelSpec& model = request.facts.model;
  model.family = ModelFamily::kGpt2;
  model.vocabulary = 256;
  model.hidden = 64;
  model.layers = blocks;
  model.heads = model.key_value_heads = 4;
  model.feed_forward = 256;
  request.spec.model = model;
  request.facts.layers.push_back({"embedding", 256 * 64 + 64 * 64});
  for (int b = 0; b < blocks; ++b) {
    request.facts.layers.push_back({absl::StrCat("block", b), 12 * 64 * 64 + 13 * 64});
  }
  request.facts.layers.push_back({"head", 256 * 64 + 128});
  request.facts.train_sequences = request.facts.validation_sequences = 1000;
  return request;
}

inline PlanMember Worker(const std::string& name, int devices, int64_t memory = kGiB) {
  PlanMember member;
  member.member = {name, 1, absl::StrCat("tcp://", name, ":1"), ""};
  member.devices.assign(devices, {"cpu", memory, 1});
  return member;
}

// Times in milliseconds for one sequence; each kind takes as long for its F as for B and for W.
inline DeviceProfile Measured(const std::string& device, double block_ms, int most = 4) {
  DeviceProfile profile{device, "cpu", "1", 7, {}};
  for (int rows = 1; rows <= most; rows *= 2) {
    for (const LayerKind kind : {LayerKind::kEmbedding, LayerKind::kBlock, LayerKind::kHead}) {
      LayerCost cost;
      cost.kind = kind;
      cost.micro_batch_sequences = rows;
      const double ms = kind == LayerKind::kBlock ? block_ms : 0.1 * block_ms;
      cost.forward_ns = cost.weight_gradient_ns = static_cast<int64_t>(ms * 1e6 * rows);
      cost.input_gradient_ns = kind == LayerKind::kEmbedding ? 0 : cost.forward_ns;
      cost.optimizer_ns = 10'000;
      cost.stash_bytes = int64_t{64} * 64 * 4 * 20 * rows;
      cost.output_bytes = int64_t{64} * 64 * 4 * rows;
      profile.layers.push_back(cost);
    }
  }
  return profile;
}

// A worker whose devices were measured.
inline PlanMember MeasuredWorker(const std::string& name, double block_ms, int devices = 1) {
  PlanMember member = Worker(name, devices);
  for (int d = 0; d < devices; ++d) {
    member.profiles.push_back(Measured(absl::StrCat(name, "/", d), block_ms));
  }
  return member;
}

inline void Link(PlanRequest& request, const std::string& a, const std::string& b, double ms,
                 double bytes_per_s) {
  const auto ns = static_cast<int64_t>(ms * 1e6);
  request.links.push_back({a, b, ns, bytes_per_s, 0.01, 20});
  request.links.push_back({b, a, ns, bytes_per_s, 0.01, 20});
}

inline int Count(const IslandPlan& plan, const std::string& device, PlanOpKind kind) {
  for (const PlanProgram& program : plan.programs) {
    if (program.device != device) continue;
    return static_cast<int>(std::count_if(program.ops.begin(), program.ops.end(),
                                          [&](const PlanOp& op) { return op.kind == kind; }));
  }
  return -1;
}

// Returns the memory of the device that takes most.
inline int64_t MostMemory(const IslandPlan& plan) {
  int64_t most = 0;
  for (const PlanProgram& program : plan.programs) {
    most = std::max(most, program.memory_peak_bytes);
  }
  return most;
}

inline std::set<std::string> DevicesIn(const IslandPlan& plan) {
  std::set<std::string> devices;
  for (const PlanProgram& program : plan.programs) devices.insert(program.device);
  return devices;
}

inline IslandPlan Planned(const PlanRequest& request) {
  const auto plan = PlanIsland(request);
  INFO(plan.status());
  REQUIRE(plan.ok());
  return *plan;
}

inline std::string Refusal(const PlanRequest& request) {
  const auto plan = PlanIsland(request);
  REQUIRE_FALSE(plan.ok());
  return std::string(plan.status().message());
}

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_TESTING_PLANNING_FIXTURE_H_

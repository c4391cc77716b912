// Requests: what is made of them, and which ones are refused.

#include "coordinator/planning/request.h"

#include <catch2/catch.hpp>

#include "absl/strings/match.h"
#include "coordinator/planning/testing/planning_fixture.h"

namespace atl {
namespace {

TEST_CASE("what does not divide the batch is refused with what would") {
  PlanRequest request = MakePlanRequest(4, 10, {Worker("w1", 2)});
  request.spec.inner.micro_batch_sequences = 4;
  CHECK_THAT(Refusal(request),
             Catch::Contains("inner.micro_batch_sequences = 4") && Catch::Contains("1, 2, 5, 10"));
  request.spec.inner.micro_batch_sequences = 0;
  const IslandPlan plan = Planned(request);  // and left to itself the planner finds sizes that do
  int64_t assigned = 0;
  for (const PlanReplica& replica : plan.replicas) {
    assigned += replica.micro_batches * replica.micro_batch_sequences;
  }
  CHECK(assigned == 10);
}

TEST_CASE("a shape that the devices cannot have is refused by its fields") {
  PlanRequest request = MakePlanRequest(4, 8, {Worker("w1", 2), Worker("w2", 1)});
  request.spec.layout.stages = 4;
  CHECK_THAT(Refusal(request),
             Catch::Contains("layout.stages = 4") && Catch::Contains("3 devices"));
  request.spec.layout = {};
  request.spec.layout.tensor_parallel = 4;
  CHECK_THAT(Refusal(request), Catch::Contains("layout.tensor_parallel = 4"));
}

TEST_CASE("more devices than a layer can be cut for are refused before anything starts") {
  PlanRequest request = MakePlanRequest(4, 8, {Worker("w1", 8)});
  request.facts.model.family = ModelFamily::kLlama;
  request.facts.model.heads = 8;
  request.facts.model.key_value_heads = 4;
  request.facts.model.vocabulary = 256;
  request.spec.layout.tensor_parallel = 8;
  CHECK_THAT(Refusal(request), Catch::StartsWith("layout.tensor_parallel = 8: the model has "
                                                 "model.key_value_heads = 4, and each"));
  request.facts.model.key_value_heads = 8;
  request.facts.model.feed_forward = 6;
  CHECK_THAT(Refusal(request), Catch::Contains("model.feed_forward = 6"));
  request.facts.model.feed_forward = 64;
  request.facts.model.vocabulary = 7;
  CHECK_THAT(Refusal(request), Catch::Contains("model.vocabulary = 7"));
  request.spec.layout.tensor_parallel = 0;
  CHECK(MakePlanningInput(request)->job.tensor_parallel == std::vector<int>{1, 2, 4});
}

TEST_CASE("what was not measured is said in the reason, and what was is not") {
  PlanRequest request = MakePlanRequest(4, 8, {Worker("w1", 1), Worker("w2", 1)});
  CHECK_THAT(Planned(request).reason, Catch::Contains("2 of 2 devices not measured") &&
                                          Catch::Contains("1 pairs of workers not measured"));
  request.members = {MeasuredWorker("w1", 1), MeasuredWorker("w2", 1)};
  Link(request, "w1", "w2", 0.1, 1e9);
  CHECK_THAT(Planned(request).reason, !Catch::Contains("not measured"));
}

TEST_CASE("workers without a site are grouped by their links") {
  PlanRequest request = MakePlanRequest(4, 8, {Worker("w1", 1), Worker("w2", 1), Worker("w3", 1)});
  request.members[0].site = "here";
  Link(request, "w1", "w2", 0.1, 1e9);
  Link(request, "w1", "w3", 20, 1e7);
  Link(request, "w2", "w3", 20, 1e7);
  const auto input = MakePlanningInput(request);
  REQUIRE(input.ok());
  CHECK(input->cluster.devices[0].site == "here");
  CHECK(input->cluster.devices[1].site == "here");
  CHECK(input->cluster.devices[2].site == "site1");
  CHECK(input->assumptions.find("3 of 3 devices") == 0);
}

TEST_CASE("members get their site and NCCL's version, where these are known and the same") {
  PlanRequest request = MakePlanRequest(4, 8, {Worker("w1", 2), Worker("w2", 2)});
  for (PlanMember& member : request.members) {
    for (DeviceInfo& device : member.devices) device.nccl = "2.27.3";
  }
  request.spec.layout.replicas = 4;
  request.spec.layout.stages = 1;
  CHECK(Planned(request).members[1].nccl == "2.27.3");
  CHECK(Planned(request).members[1].site.empty());  // it is not known
  request.members[0].site = request.members[1].site = "north";
  request.members[1].devices[1].nccl = "";
  const IslandPlan plan = Planned(request);
  CHECK(plan.members[0].site == "north");
  CHECK(plan.members[0].nccl == "2.27.3");
  CHECK(plan.members[1].site == "north");
  CHECK(plan.members[1].nccl.empty());
}

TEST_CASE("an island computes in one type") {
  PlanRequest request = MakePlanRequest(4, 8, {Worker("w1", 1), Worker("w2", 1)});
  request.members[1].devices[0] = {"NVIDIA H200", kGiB, 1, "GPU-1", "bf16", "2.27.3"};
  CHECK(absl::StartsWith(Refusal(request), "w1/0 computes in fp32 and w2/0 in bf16: "));
  request.members[1].devices[0].compute = "fp32";
  Planned(request);
}

TEST_CASE("excluded_devices_have_no_part_and_what_they_compute_in_does_not_matter") {
  PlanRequest request = MakePlanRequest(2, 8, {Worker("a", 2), Worker("b", 1)});
  request.members[1].devices[0].compute = "bf16";
  REQUIRE_FALSE(PlanIsland(request).ok());
  request.spec.layout.exclude = {"b", "a/1", "not-attached"};
  const IslandPlan plan = Planned(request);
  CHECK(DevicesIn(plan) == std::set<std::string>{"a/0"});
  CHECK_THAT(plan.reason, Catch::Contains("layout.exclude"));
  request.spec.layout.exclude = {"a"};
  CHECK(absl::IsFailedPrecondition(PlanIsland(request).status()));  // it leads
}

TEST_CASE("memory_kept_back_is_not_planned_with") {
  PlanRequest request = MakePlanRequest(6, 8, {Worker("a", 1), Worker("b", 1)});
  Link(request, "a", "b", 0.1, 1e9);
  request.spec.layout.replicas = request.spec.layout.stages = 1;
  const int64_t takes = MostMemory(Planned(request));
  request.spec.layout.replicas = request.spec.layout.stages = 0;
  // One device lacks much of what is left for the model.
  request.spec.layout.memory_reserve_bytes = kGiB - takes / 2;
  const absl::StatusOr<IslandPlan> tight = PlanIsland(request);
  if (tight.ok()) {
    CHECK(MostMemory(*tight) <= takes / 2);
  } else {
    CHECK_THAT(std::string(tight.status().message()),
               Catch::Contains("layout.memory_reserve_bytes"));
  }
  request.spec.layout.memory_reserve_bytes = kGiB - 4 * takes;
  CHECK(MostMemory(Planned(request)) <= 4 * takes);
  request.spec.layout.memory_reserve_bytes = kGiB;
  CHECK_THAT(Refusal(request), Catch::Contains("layout.memory_reserve_bytes"));
}

TEST_CASE("impossible requests are refused, not planned") {
  PlanRequest request = MakePlanRequest(4, 8);
  CHECK_THAT(Refusal(request), Catch::Contains("no members"));
  request.members = {Worker("w1", 1), Worker("w1", 1)};
  CHECK_THAT(Refusal(request), Catch::Contains("worker w1 is named twice"));
  request.members = {Worker("w1", 0)};
  CHECK_THAT(Refusal(request), Catch::Contains("worker w1 has no device"));
  request.members = {Worker("w1", 1)};
  request.facts.layers.clear();
  CHECK_THAT(Refusal(request), Catch::Contains("layers"));
}

}  // namespace
}  // namespace atl

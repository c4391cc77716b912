#include "coordinator/planning/planning.h"

#include <catch2/catch.hpp>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "coordinator/planning/predicted_step.h"
#include "coordinator/planning/testing/planning_fixture.h"

namespace atl {
namespace {

TEST_CASE("a fixed shape comes out with exactly its operations") {
  PlanRequest request = MakePlanRequest(6, 12);
  request.members = {Worker("w1", 2), Worker("w2", 2)};
  request.spec.layout.stages = 4;
  request.spec.layout.replicas = 1;
  request.spec.inner.micro_batch_sequences = 2;
  request.number = 5;
  const IslandPlan plan = Planned(request);
  CHECK(plan.number == 5);
  REQUIRE(plan.members.size() == 2);
  CHECK(plan.members[0].worker == "w1");
  CHECK(plan.members[0].endpoint == "tcp://w1:1");
  REQUIRE(plan.replicas.size() == 1);
  CHECK(plan.replicas[0].stages.size() == 4);
  CHECK(plan.replicas[0].micro_batches == 6);
  CHECK(plan.replicas[0].micro_batch_sequences == 2);
  for (const std::string& device : DevicesIn(plan)) {
    INFO(device);
    CHECK(Count(plan, device, PlanOpKind::kForward) == 6);
    CHECK(Count(plan, device, PlanOpKind::kInputGradient) == 6);
    CHECK(Count(plan, device, PlanOpKind::kWeightGradient) == 6);
    CHECK(Count(plan, device, PlanOpKind::kSync) == 0);
    CHECK(Count(plan, device, PlanOpKind::kOptimizer) == 1);
  }
  const std::string first = plan.replicas[0].stages[0].devices[0];
  const std::string second = plan.replicas[0].stages[1].devices[0];
  CHECK(Count(plan, first, PlanOpKind::kSend) == 6);
  CHECK(Count(plan, second, PlanOpKind::kSend) == 12);
  CHECK(plan.step_ns >= plan.bound_ns);
  CHECK(plan.bound_ns > 0);
}

TEST_CASE("replicas synchronise every layer, and share the sequences by measured speed") {
  PlanRequest request = MakePlanRequest(4, 12);
  request.members = {Worker("w1", 1), Worker("w2", 1)};
  request.members[0].profiles = {Measured("w1/0", 1)};
  request.members[1].profiles = {Measured("w2/0", 2)};
  Link(request, "w1", "w2", 0.01, 1e10);
  request.spec.layout.replicas = 2;
  request.spec.layout.stages = 1;
  request.spec.inner.micro_batch_sequences = 1;
  const IslandPlan plan = Planned(request);
  REQUIRE(plan.replicas.size() == 2);
  std::map<std::string, int> share;
  for (const PlanReplica& replica : plan.replicas) {
    share[replica.stages[0].devices[0]] = replica.micro_batches;
  }
  CHECK(share["w1/0"] == 8);
  CHECK(share["w2/0"] == 4);
  CHECK(Count(plan, "w1/0", PlanOpKind::kSync) == 6);
  CHECK(Count(plan, "w2/0", PlanOpKind::kSync) == 6);
}

TEST_CASE("a replica that the job requests gets a sequence, however slow its device is") {
  PlanRequest request = MakePlanRequest(4, 8);
  request.members = {Worker("w1", 1), Worker("w2", 1)};
  request.members[0].profiles = {Measured("w1/0", 1)};
  request.members[1].profiles = {Measured("w2/0", 50)};
  Link(request, "w1", "w2", 0.01, 1e10);
  request.spec.layout.replicas = 2;
  request.spec.inner.micro_batch_sequences = 1;
  request.number = 2;  // a plan that is not as requested would be made
  const IslandPlan plan = Planned(request);
  REQUIRE(plan.replicas.size() == 2);
  for (const PlanReplica& replica : plan.replicas) {
    const bool slow = replica.stages[0].devices[0] == "w2/0";
    CHECK(replica.micro_batches == (slow ? 1 : 7));
  }
}

TEST_CASE("a schedule by name is the one that runs") {
  PlanRequest request = MakePlanRequest(4, 8);
  request.members = {Worker("w1", 2)};
  request.spec.layout.stages = 2;
  request.spec.inner.micro_batch_sequences = 1;
  request.spec.layout.schedule = "gpipe";
  const IslandPlan plan = Planned(request);
  CHECK(plan.schedule == "gpipe");
  bool backward = false;
  for (const PlanOp& op : plan.programs[0].ops) {
    backward = backward || op.kind == PlanOpKind::kInputGradient;
    if (op.kind == PlanOpKind::kForward) CHECK_FALSE(backward);
  }
  request.spec.layout.schedule = "sideways";
  CHECK_THAT(Refusal(request),
             Catch::Contains("layout.schedule = \"sideways\"") && Catch::Contains("1f1b"));
}

TEST_CASE("V-shaped and interleaved schedules put two stages on every device") {
  PlanRequest request = MakePlanRequest(6, 8);
  request.members = {Worker("w1", 1), Worker("w2", 1)};
  request.spec.layout.stages = 2;
  request.spec.inner.micro_batch_sequences = 1;
  const auto devices = [&](const std::string& schedule) {
    request.spec.layout.schedule = schedule;
    const IslandPlan plan = Planned(request);
    std::string order;
    for (const PlanStage& stage : plan.replicas[0].stages) order += stage.devices[0] + " ";
    CHECK(Count(plan, "w1/0", PlanOpKind::kForward) == 16);
    return order;
  };
  const std::string v = devices("zb-v");
  CHECK((v == "w1/0 w2/0 w2/0 w1/0 " || v == "w2/0 w1/0 w1/0 w2/0 "));
  const std::string interleaved = devices("interleaved");
  CHECK((interleaved == "w1/0 w2/0 w1/0 w2/0 " || interleaved == "w2/0 w1/0 w2/0 w1/0 "));
  request.spec.layout.stages = 1;
  CHECK_THAT(Refusal(request), Catch::Contains("two stages on every device"));
}

TEST_CASE("two stages on every device need no more layers than twice the devices") {
  PlanRequest request = MakePlanRequest(6, 8);
  request.members = {Worker("w1", 4)};
  for (int d = 0; d < 4; ++d) {
    request.members[0].profiles.push_back(Measured(absl::StrCat("w1/", d), 1));
  }
  request.spec.layout.stages = 4;
  request.spec.inner.micro_batch_sequences = 1;
  for (const char* schedule : {"zb-v", "interleaved"}) {
    request.spec.layout.schedule = schedule;
    const IslandPlan plan = Planned(request);
    CAPTURE(schedule);
    REQUIRE(plan.replicas[0].stages.size() == 8);
    for (const PlanStage& stage : plan.replicas[0].stages) CHECK(stage.layers == 1);
  }
}

TEST_CASE("a slow link carries as little as can be: the replicas' gradients or the activations") {
  PlanRequest request = MakePlanRequest(8, 16);
  request.members = {Worker("a1", 1), Worker("a2", 1), Worker("b1", 1), Worker("b2", 1)};
  for (PlanMember& member : request.members) {
    member.profiles = {Measured(absl::StrCat(member.member.worker, "/0"), 2)};
  }
  Link(request, "a1", "a2", 0.05, 1e9);
  Link(request, "b1", "b2", 0.05, 1e9);
  for (const char* a : {"a1", "a2"}) {
    for (const char* b : {"b1", "b2"}) Link(request, a, b, 20, 12.5e6);
  }
  const IslandPlan plan = Planned(request);
  // Every replica crosses the slow link at most once: its stages of one site are neighbours.
  for (const PlanReplica& replica : plan.replicas) {
    int crossings = 0;
    for (size_t s = 0; s + 1 < replica.stages.size(); ++s) {
      crossings += replica.stages[s].devices[0][0] != replica.stages[s + 1].devices[0][0] ? 1 : 0;
    }
    CHECK(crossings <= 1);
  }
}

TEST_CASE("what does not divide the batch is refused with what would") {
  PlanRequest request = MakePlanRequest(4, 10);
  request.members = {Worker("w1", 2)};
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
  PlanRequest request = MakePlanRequest(4, 8);
  request.members = {Worker("w1", 2), Worker("w2", 1)};
  request.spec.layout.stages = 4;
  CHECK_THAT(Refusal(request),
             Catch::Contains("layout.stages = 4") && Catch::Contains("3 devices"));
  request.spec.layout = {};
  request.spec.layout.tensor_parallel = 4;
  CHECK_THAT(Refusal(request), Catch::Contains("layout.tensor_parallel = 4"));
}

TEST_CASE("an island that lost a device goes on without the numbers that it was to have") {
  PlanRequest request = MakePlanRequest(4, 8);
  request.members = {Worker("a", 1), Worker("b", 1), Worker("c", 1)};
  request.spec.layout.stages = 4;
  request.spec.layout.schedule = "1f1b";
  CHECK_FALSE(PlanIsland(request).ok());  // nothing has been trained yet: wait for the fourth
  request.number = 2;
  const absl::StatusOr<IslandPlan> plan = PlanIsland(request);
  REQUIRE(plan.ok());
  CHECK(plan->schedule == "1f1b");
  CHECK(absl::StrContains(plan->reason,
                          "until that fits again: no layout fits: layout.stages = 4 takes 4 "
                          "devices, the island has 3 devices; its model has "));
  request.members.push_back(Worker("d", 1));
  const absl::StatusOr<IslandPlan> again = PlanIsland(request);
  REQUIRE(again.ok());
  CHECK(again->replicas[0].stages.size() == 4);
  CHECK_FALSE(absl::StrContains(again->reason, "until that fits again"));
}

TEST_CASE("more devices than a layer can be cut for are refused before anything starts") {
  PlanRequest request = MakePlanRequest(4, 8);
  request.members = {Worker("w1", 8)};
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

TEST_CASE("a pipeline over two sites begins where its leader is") {
  PlanRequest request = MakePlanRequest(8, 16);
  request.members = {Worker("z", 1), Worker("a", 1)};
  for (PlanMember& member : request.members) {
    member.profiles = {Measured(member.member.worker + "/0", 2)};
  }
  request.members[0].site = "paris";
  request.members[1].site = "oslo";
  Link(request, "a", "z", 20, 12.5e6);
  request.spec.layout.stages = 2;
  request.spec.layout.schedule = "1f1b";
  const IslandPlan plan = Planned(request);
  CHECK(plan.replicas[0].stages[0].devices[0] == "z/0");
  std::swap(request.members[0], request.members[1]);
  const IslandPlan other = Planned(request);
  CHECK(other.replicas[0].stages[0].devices[0] == "a/0");
  CHECK(other.step_ns == plan.step_ns);
}

TEST_CASE("a V of stages over two sites has both of its ends where its leader is") {
  PlanRequest request = MakePlanRequest(16, 16);
  for (const char* name : {"z1", "z2", "a1", "a2"}) {
    PlanMember& member = request.members.emplace_back(Worker(name, 1));
    member.site = name[0] == 'z' ? "paris" : "oslo";
    member.profiles = {Measured(absl::StrCat(name, "/0"), 2)};
  }
  Link(request, "z1", "z2", 0.1, 1e9);
  Link(request, "a1", "a2", 0.1, 1e9);
  for (const char* z : {"z1", "z2"}) {
    for (const char* a : {"a1", "a2"}) Link(request, z, a, 20, 125e6);
  }
  request.spec.layout.stages = 4;
  request.spec.layout.replicas = 1;
  request.spec.layout.schedule = "zb-v";
  request.spec.inner.micro_batch_sequences = 1;
  const IslandPlan plan = Planned(request);
  CHECK(plan.replicas[0].stages.front().devices[0][0] == 'z');
  std::swap(request.members[0], request.members[2]);
  const IslandPlan other = Planned(request);
  CHECK(other.replicas[0].stages.front().devices[0][0] == 'a');
  CHECK_THAT(plan.reason + other.reason, Catch::Contains("turned around"));
}

TEST_CASE("the leader takes part even where it is slow") {
  PlanRequest request = MakePlanRequest(4, 4);
  request.members = {Worker("w1", 1), Worker("w2", 1), Worker("w3", 1)};
  request.members[0].profiles = {Measured("w1/0", 50)};
  request.members[1].profiles = {Measured("w2/0", 1)};
  request.members[2].profiles = {Measured("w3/0", 1)};
  for (const auto& [a, b] : {std::pair("w1", "w2"), std::pair("w1", "w3"), std::pair("w2", "w3")}) {
    Link(request, a, b, 0.1, 1e9);
  }
  for (const int stages : {0, 1, 2}) {
    request.spec.layout.stages = stages;
    const IslandPlan plan = Planned(request);
    INFO(stages);
    CHECK(plan.members[0].worker == "w1");
    CHECK(DevicesIn(plan).count("w1/0") == 1);
  }
}

// w1 and w2 at one site, w3 and w4 at another, `slower` times as slow a link between them as
// within.
PlanRequest TwoSites(int workers, double slower) {
  PlanRequest request = MakePlanRequest(6, 16);
  for (int w = 1; w <= workers; ++w) {
    const std::string name = absl::StrCat("w", w);
    PlanMember& member = request.members.emplace_back(Worker(name, 1));
    member.site = w <= 2 ? "near" : "far";
    member.profiles = {Measured(absl::StrCat(name, "/0"), 4)};
    for (int other = 1; other < w; ++other) {
      const bool inside = (w <= 2) == (other <= 2);
      Link(request, name, absl::StrCat("w", other), inside ? 0.1 : 2, inside ? 1e9 : 65e6 / slower);
    }
  }
  return request;
}

TEST_CASE(
    "beside a slow link the plan is the leader's site alone, as if there were no other site") {
  for (const char* leader : {"w1", "w2", "w3", "w4"}) {
    for (const bool pipeline : {false, true}) {
      INFO(leader << (pipeline ? " leads a pipeline" : " leads replicas"));
      const auto fixed = [&](PlanRequest request) {
        (pipeline ? request.spec.layout.replicas : request.spec.layout.stages) = 1;
        return request;
      };
      PlanRequest request = fixed(TwoSites(4, 1));
      request.spec.inner.micro_batch_sequences = 1;
      std::swap(request.members[0], request.members[leader[1] - '1']);
      const IslandPlan before = Planned(request);
      CHECK(DevicesIn(before).size() == 4);
      PlanRequest slow = request;
      slow.links = TwoSites(4, 1000).links;
      const IslandPlan after = Planned(slow);
      PlanRequest alone = slow;
      std::erase_if(alone.members, [&](const PlanMember& member) {
        return member.site != request.members[0].site;
      });
      const IslandPlan expected = Planned(alone);
      CHECK(DevicesIn(after) == DevicesIn(expected));
      CHECK(after.step_ns == expected.step_ns);
      CHECK(EstimateStepNs(slow, before) > 1.2 * static_cast<double>(after.step_ns));
    }
  }
}

TEST_CASE("recomputation keeps only the blocks' inputs, and costs another forward") {
  PlanRequest request = MakePlanRequest(6, 8);
  request.members = {Worker("w1", 2)};
  request.members[0].profiles = {Measured("w1/0", 1), Measured("w1/1", 1)};
  request.spec.layout.stages = 2;
  request.spec.inner.micro_batch_sequences = 1;
  const IslandPlan kept = Planned(request);
  request.spec.layout.recompute = Recompute::kAll;
  const IslandPlan again = Planned(request);
  CHECK(kept.replicas[0].stages[0].recomputed_layers.empty());
  std::vector<int32_t> recomputed;
  for (const PlanStage& stage : again.replicas[0].stages) {
    recomputed.insert(recomputed.end(), stage.recomputed_layers.begin(),
                      stage.recomputed_layers.end());
  }
  CHECK(recomputed == std::vector<int32_t>{1, 2, 3, 4, 5, 6});
  CHECK(again.step_ns > kept.step_ns);
  CHECK(again.programs[0].memory_peak_bytes < kept.programs[0].memory_peak_bytes);
}

TEST_CASE("what was not measured is said in the reason, and what was is not") {
  PlanRequest request = MakePlanRequest(4, 8);
  request.members = {Worker("w1", 1), Worker("w2", 1)};
  CHECK_THAT(Planned(request).reason, Catch::Contains("2 of 2 devices not measured") &&
                                          Catch::Contains("1 pairs of workers not measured"));
  request.members[0].profiles = {Measured("w1/0", 1)};
  request.members[1].profiles = {Measured("w2/0", 1)};
  Link(request, "w1", "w2", 0.1, 1e9);
  CHECK_THAT(Planned(request).reason, !Catch::Contains("not measured"));
}

TEST_CASE("workers without a site are grouped by their links") {
  PlanRequest request = MakePlanRequest(4, 8);
  request.members = {Worker("w1", 1), Worker("w2", 1), Worker("w3", 1)};
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
  PlanRequest request = MakePlanRequest(4, 8);
  request.members = {Worker("w1", 2), Worker("w2", 2)};
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
  PlanRequest request = MakePlanRequest(4, 8);
  request.members = {Worker("w1", 1), Worker("w2", 1)};
  request.members[1].devices[0] = {"NVIDIA H200", kGiB, 1, "GPU-1", "bf16", "2.27.3"};
  CHECK(absl::StartsWith(Refusal(request), "w1/0 computes in fp32 and w2/0 in bf16: "));
  request.members[1].devices[0].compute = "fp32";
  Planned(request);
}

TEST_CASE("excluded_devices_have_no_part_and_what_they_compute_in_does_not_matter") {
  PlanRequest request = MakePlanRequest(2, 8);
  request.members = {Worker("a", 2), Worker("b", 1)};
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
  PlanRequest request = MakePlanRequest(6, 8);
  request.members = {Worker("a", 1), Worker("b", 1)};
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

// Every plan is checked by Validate inside PlanIsland, which calls a bad one an error of the
// planner's: so here only errors that blame the request are allowed.
TEST_CASE("layout_search_branch_and_bound_is_no_slower_than_local_search") {
  PlanRequest request = MakePlanRequest(10, 16);
  const double block_ms[] = {2, 5, 3, 9};
  for (int w = 0; w < 4; ++w) {
    const std::string name = absl::StrCat("w", w);
    PlanMember& member = request.members.emplace_back(Worker(name, 1));
    member.site = w < 2 ? "a" : "b";
    member.profiles = {Measured(absl::StrCat(name, "/0"), block_ms[w])};
  }
  const auto find = [&](PlanSearch search) {
    request.spec.layout.search = search;
    const auto input = MakePlanningInput(request);
    REQUIRE(input.ok());
    auto found = FindPlan(request, *input);
    REQUIRE(found.ok());
    CHECK(Validate(found->island, 12, 16).ok());
    return *std::move(found);
  };
  const FoundPlan local = find(PlanSearch::kLocal);
  const FoundPlan bounded = find(PlanSearch::kBranchAndBound);
  CHECK(bounded.island.step_ns <= local.island.step_ns * 101 / 100);
  CHECK(find(PlanSearch::kBranchAndBound).island == bounded.island);
}

TEST_CASE("any members give a valid plan or a refusal, and the same one again") {
  Rng rng(7);
  int planned = 0;
  for (int round = 0; round < 60; ++round) {
    PlanRequest request = MakePlanRequest(1 + static_cast<int>(rng.Below(9)),
                                          static_cast<int64_t>(1 + rng.Below(24)));
    const int workers = 1 + static_cast<int>(rng.Below(4));
    for (int w = 0; w < workers; ++w) {
      const std::string name = absl::StrCat("w", w);
      request.members.push_back(
          Worker(name, 1 + static_cast<int>(rng.Below(3)), int64_t{8 << 20} << rng.Below(8)));
      PlanMember& member = request.members.back();
      if (rng.Chance(0.3)) member.site = rng.Chance(0.5) ? "a" : "b";
      for (size_t d = 0; d < member.devices.size(); ++d) {
        if (rng.Chance(0.3)) continue;
        const double ms = rng.Chance(0.5) ? 1 : 0.5 + rng.Uniform() * 4;
        member.profiles.push_back(Measured(absl::StrCat(name, "/", d), ms));
      }
      for (int other = 0; other < w; ++other) {
        if (rng.Chance(0.3)) continue;
        Link(request, name, absl::StrCat("w", other), rng.Uniform() * 20,
             1e6 + rng.Uniform() * 1e9);
      }
    }
    LayoutSpec& layout = request.spec.layout;
    if (rng.Chance(0.4)) layout.stages = static_cast<int64_t>(1 + rng.Below(4));
    if (rng.Chance(0.4)) layout.replicas = static_cast<int64_t>(1 + rng.Below(3));
    if (rng.Chance(0.2)) layout.tensor_parallel = static_cast<int64_t>(1 + rng.Below(2));
    if (rng.Chance(0.4)) {
      const std::vector<std::string> names = sim::ScheduleNames();
      layout.schedule = names[rng.Below(names.size())];
    }
    layout.recompute = rng.Chance(0.2)   ? Recompute::kAll
                       : rng.Chance(0.2) ? Recompute::kNone
                                         : Recompute::kAuto;
    request.seed = static_cast<uint64_t>(round);
    const auto plan = PlanIsland(request);
    INFO(round << ": " << plan.status());
    if (plan.ok()) {
      ++planned;
      // The preview of `atoll plan` is what the island runs, byte for byte.
      const auto preview = FindPlan(request, *MakePlanningInput(request));
      REQUIRE(preview.ok());
      CHECK(absl::StartsWith(plan->reason, preview->island.reason));
      IslandPlan shown = preview->island;
      shown.reason = plan->reason;
      CHECK(shown == *plan);
      // And simulated with its own programs, it takes what it was planned to take.
      CHECK(EstimateStepNs(request, *plan) == Approx(plan->step_ns).epsilon(0.02));
    } else {
      CHECK_FALSE(absl::StrContains(plan.status().message(), "please report"));
    }
  }
  CHECK(planned > 30);
}

}  // namespace
}  // namespace atl

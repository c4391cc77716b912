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
  PlanRequest request = MakePlanRequest(6, 12, {Worker("w1", 2), Worker("w2", 2)});
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
  PlanRequest request = MakePlanRequest(4, 12, {MeasuredWorker("w1", 1), MeasuredWorker("w2", 2)});
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
  PlanRequest request = MakePlanRequest(4, 8, {MeasuredWorker("w1", 1), MeasuredWorker("w2", 50)});
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
  PlanRequest request = MakePlanRequest(4, 8, {Worker("w1", 2)});
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
  PlanRequest request = MakePlanRequest(6, 8, {Worker("w1", 1), Worker("w2", 1)});
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
  PlanRequest request = MakePlanRequest(6, 8, {MeasuredWorker("w1", 1, 4)});
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
  for (const char* name : {"a1", "a2", "b1", "b2"}) {
    request.members.push_back(MeasuredWorker(name, 2));
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

TEST_CASE("an island that lost a device goes on without the numbers that it was to have") {
  PlanRequest request = MakePlanRequest(4, 8, {Worker("a", 1), Worker("b", 1), Worker("c", 1)});
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

TEST_CASE("a pipeline over two sites begins where its leader is") {
  PlanRequest request = MakePlanRequest(8, 16, {MeasuredWorker("z", 2), MeasuredWorker("a", 2)});
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
    request.members.push_back(MeasuredWorker(name, 2));
    request.members.back().site = name[0] == 'z' ? "paris" : "oslo";
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
}

TEST_CASE("the leader takes part even where it is slow") {
  PlanRequest request = MakePlanRequest(
      4, 4, {MeasuredWorker("w1", 50), MeasuredWorker("w2", 1), MeasuredWorker("w3", 1)});
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
    request.members.push_back(MeasuredWorker(name, 4));
    request.members.back().site = w <= 2 ? "near" : "far";
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

TEST_CASE("layout_search_branch_and_bound_is_no_slower_than_local_search") {
  PlanRequest request = MakePlanRequest(10, 16);
  const double block_ms[] = {2, 5, 3, 9};
  for (int w = 0; w < 4; ++w) {
    request.members.push_back(MeasuredWorker(absl::StrCat("w", w), block_ms[w]));
    request.members.back().site = w < 2 ? "a" : "b";
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

// Every plan is checked by Validate inside PlanIsland, which calls a bad one an error of the
// planner's: so here only errors that blame the request are allowed.
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

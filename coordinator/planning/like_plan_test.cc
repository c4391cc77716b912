// Plans that are taken over from an island of like workers.

#include "coordinator/planning/planning.h"
#include "coordinator/planning/testing/planning_fixture.h"

namespace atl {
namespace {

// Four workers at one site, all links measured. `times` and `links`: relative to another island's.
PlanRequest Island(const std::string& name, double times = 1, double links = 1) {
  PlanRequest request = MakePlanRequest(6, 8);
  for (int m = 0; m < 4; ++m) {
    PlanMember member = MeasuredWorker(absl::StrCat(name, m), 2 * times);
    member.site = name;
    request.members.push_back(std::move(member));
  }
  for (int a = 0; a < 4; ++a) {
    for (int b = a + 1; b < 4; ++b) {
      Link(request, absl::StrCat(name, a), absl::StrCat(name, b), 0.1 / links, 1e9 * links);
    }
  }
  request.islands = 2;
  return request;
}

TEST_CASE("Islands that differ in names and noise are alike") {
  const PlanRequest a = Island("a");
  CHECK(AreAlike(a, a));
  CHECK(AreAlike(Island("b"), a));
  CHECK(AreAlike(Island("b", 1.04, 1.2), a));
  PlanRequest reordered = Island("b");
  std::reverse(reordered.links.begin(), reordered.links.end());
  CHECK(AreAlike(reordered, a));
}

TEST_CASE("Islands of other devices, links, sites or members are not alike") {
  const PlanRequest a = Island("a");
  CHECK_FALSE(AreAlike(Island("b", 1.06), a));
  CHECK_FALSE(AreAlike(Island("b", 1, 0.5), a));
  PlanRequest b = Island("b");
  b.members[3].site = "elsewhere";
  CHECK_FALSE(AreAlike(b, a));
  b = Island("b");
  b.members[1].devices[0].memory_bytes *= 2;
  CHECK_FALSE(AreAlike(b, a));
  b = Island("b");
  b.members.pop_back();
  CHECK_FALSE(AreAlike(b, a));
  b = Island("b");
  b.links.pop_back();
  CHECK_FALSE(AreAlike(b, a));
  b = Island("b");
  b.unreachable.push_back({"b1", "b2", "refused"});
  CHECK_FALSE(AreAlike(b, a));
  b = Island("b");
  b.number = 2;
  CHECK_FALSE(AreAlike(b, a));
  b = Island("b");
  b.ran = {{{{0, 6, {"b0/0"}, {}}}, 1, 8}};
  CHECK_FALSE(AreAlike(b, a));
  PlanRequest c = Island("a");
  c.ran = {{{{0, 6, {"a1/0"}, {}}}, 1, 8}};
  CHECK_FALSE(AreAlike(b, c));
  c.ran = {{{{0, 6, {"a0/0"}, {}}}, 1, 8}};
  CHECK(AreAlike(b, c));
  b = Island("b");
  b.spec.layout.stages = 2;
  CHECK_FALSE(AreAlike(b, a));
}

TEST_CASE("A like island's plan is that of the other with its own members and measurements") {
  for (const int stages : {0, 2}) {
    PlanRequest a = Island("a"), b = Island("b", 1.02);
    a.spec.layout.stages = b.spec.layout.stages = stages;
    const IslandPlan plan = Planned(a);
    const auto like = PlanLike(b, a, plan);
    INFO(like.status());
    REQUIRE(like.ok());
    CHECK(Validate(*like, 8, 8).ok());
    REQUIRE(like->members.size() == plan.members.size());
    for (size_t m = 0; m < plan.members.size(); ++m) {
      CHECK(like->members[m].worker == "b" + plan.members[m].worker.substr(1));
    }
    REQUIRE(like->replicas.size() == plan.replicas.size());
    for (size_t r = 0; r < plan.replicas.size(); ++r) {
      REQUIRE(like->replicas[r].stages.size() == plan.replicas[r].stages.size());
      CHECK(like->replicas[r].micro_batches == plan.replicas[r].micro_batches);
    }
    CHECK(like->optimizer_copies == plan.optimizer_copies);
    CHECK(like->step_ns > plan.step_ns);
    CHECK(static_cast<double>(like->step_ns) < 1.05 * static_cast<double>(plan.step_ns));
    CHECK(MostMemory(*like) == MostMemory(plan));
    CHECK(like->reason.find("an island of like workers, led by a0") != std::string::npos);
  }
}

TEST_CASE("A plan whose step takes much longer on the like island is refused") {
  const PlanRequest a = Island("a"), b = Island("b", 1.04, 0.81);
  REQUIRE(AreAlike(b, a));
  IslandPlan plan = Planned(a);
  plan.step_ns = plan.step_ns * 9 / 10;  // which no schedule of this layout reaches there
  CHECK(PlanLike(b, a, plan).status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("A plan without a layout is refused") {
  const PlanRequest a = Island("a");
  CHECK_FALSE(PlanLike(Island("b"), a, IslandPlan()).ok());
}

}  // namespace
}  // namespace atl

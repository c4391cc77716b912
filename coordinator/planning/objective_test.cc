#include "coordinator/planning/objective.h"

#include "coordinator/planning/testing/planning_fixture.h"

namespace atl {
namespace {

// Two fast workers and two slow ones, which cost a tenth.
PlanRequest Priced() {
  PlanRequest request = MakePlanRequest(4, 8);
  request.spec.schedule.train_tokens = 64 * 8 * 1'000'000;  // a million steps
  for (const auto& [name, ms, price] : {std::tuple("w1", 4.0, 10.0), std::tuple("w2", 4.0, 10.0),
                                        std::tuple("w3", 8.0, 1.0), std::tuple("w4", 8.0, 1.0)}) {
    PlanMember& member = request.members.emplace_back(MeasuredWorker(name, ms));
    member.devices[0].price_per_hour = price;
    for (const PlanMember& other : request.members) {
      if (other.member.worker != name) Link(request, name, other.member.worker, 0.05, 10e9);
    }
  }
  return request;
}

RatedPlan RatePlan(const PlanRequest& request, const IslandPlan& plan) {
  const auto input = MakePlanningInput(request);
  REQUIRE(input.ok());
  return Rate(request, *input, plan, 1e-9 * static_cast<double>(plan.step_ns));
}

TEST_CASE("a cheap plan uses the cheap workers, and the leader") {
  PlanRequest request = Priced();
  std::swap(request.members[0], request.members[2]);  // w3 leads
  CHECK(DevicesIn(Planned(request)).size() == 4);
  request.spec.layout.objective = PlanObjective::kCost;
  const std::set<std::string> devices = DevicesIn(Planned(request));
  CHECK(devices.contains("w3/0"));
  CHECK_FALSE(devices.contains("w1/0"));
  CHECK_FALSE(devices.contains("w2/0"));
}

TEST_CASE("a deadline and a budget are of all the job's tokens") {
  PlanRequest request = Priced();
  std::swap(request.members[0], request.members[2]);  // w3 leads
  const IslandPlan fastest = Planned(request);
  const TrainingRate rate = RatePlan(request, fastest).rate;
  const double hours = EstimateTrainingHours(request.spec, rate);
  CHECK(hours == Approx(1e-9 * static_cast<double>(fastest.step_ns) * 1e6 / 3600));
  CHECK(ComputePrice(request.spec, rate) == Approx(22 * hours));

  request.spec.layout.deadline_hours = 0.5 * hours;
  CHECK(absl::IsFailedPrecondition(PlanIsland(request).status()));
  request.islands = 3;  // that share the work
  CHECK(PlanIsland(request).ok());
  request.islands = 1;
  request.number = 2;  // it trains already
  CHECK(PlanIsland(request).ok());

  request.number = 1;
  request.spec.layout.deadline_hours = 0;
  request.spec.layout.budget = 0.5 * 22 * hours;
  const IslandPlan within = Planned(request);
  CHECK(ComputePrice(request.spec, RatePlan(request, within).rate) <= request.spec.layout.budget);
  request.spec.layout.budget = 1e-6;
  CHECK(absl::IsFailedPrecondition(PlanIsland(request).status()));
}

TEST_CASE("limits_below_all_that_can_be_name_what_the_best_plan_needs") {
  for (const double least : {1e-300, 5e-324}) {
    PlanRequest request = Priced();
    request.spec.layout.deadline_hours = least;
    CHECK_THAT(std::string(PlanIsland(request).status().message()),
               Catch::Contains("layout.deadline_hours = ") && Catch::Contains("needs "));
    request.spec.layout.deadline_hours = 0;
    request.spec.layout.budget = least;
    CHECK_THAT(std::string(PlanIsland(request).status().message()),
               Catch::Contains("layout.budget = ") && Catch::Contains("costs "));
  }
}

TEST_CASE("of a plan in force and another one the cheaper ranks better, however slow") {
  PlanRequest request = Priced();
  const IslandPlan fastest = Planned(request);
  PlanRequest cheap = Priced();
  cheap.spec.layout.objective = PlanObjective::kCost;
  const IslandPlan cheapest = Planned(cheap);
  CHECK(cheapest.step_ns > fastest.step_ns);
  CHECK(RatePlan(cheap, cheapest).rank < RatePlan(cheap, fastest).rank);
}

TEST_CASE("a cheap plan needs prices") {
  PlanRequest request = Priced();
  for (PlanMember& member : request.members) member.devices[0].price_per_hour = 0;
  CHECK(PlanIsland(request).ok());
  request.spec.layout.objective = PlanObjective::kCost;
  CHECK(absl::IsInvalidArgument(PlanIsland(request).status()));
  request.spec.layout.objective = PlanObjective::kTime;
  request.spec.layout.budget = 10;
  CHECK(absl::IsInvalidArgument(PlanIsland(request).status()));
}

}  // namespace
}  // namespace atl

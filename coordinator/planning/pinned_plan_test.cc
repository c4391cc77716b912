// layout.plan: what `atoll plan --json` prints, edited or not, runs as it says or is refused with
// what is wrong.

#include <catch2/catch.hpp>

#include "absl/strings/str_replace.h"
#include "coordinator/plan_io/plan_message.h"
#include "coordinator/planning/planning_fixture.h"

namespace atl {
namespace {

PlanRequest TwoWorkers() {
  PlanRequest request = JobOf(6, 16);
  for (const char* name : {"w1", "w2"}) {
    PlanMember& member = request.members.emplace_back(Worker(name, 1));
    member.profiles = {Measured(absl::StrCat(name, "/0"), 4)};
  }
  Link(request, "w1", "w2", 0.1, 1e9);
  return request;
}

// What `atoll plan --json` prints for the request.
std::string Printed(const PlanRequest& request) {
  const auto input = MakePlanningInput(request);
  REQUIRE(input.ok());
  const auto found = FindPlan(request, *input);
  REQUIRE(found.ok());
  return ToJson(ToMessage(input->cluster, input->costs, found->plan, 64));
}

// The file's JSON with every `from` replaced, as a job takes it from its file.
PlanRequest Pinned(PlanRequest request, const std::string& json, const std::string& from = "",
                   const std::string& to = "") {
  request.spec.layout = {};
  const std::string edited = from.empty() ? json : absl::StrReplaceAll(json, {{from, to}});
  REQUIRE((from.empty() || edited != json));
  const auto pinned = PinnedJson(edited, "plan.json");
  INFO(pinned.status());
  REQUIRE(pinned.ok());
  request.spec.layout.plan = *pinned;
  return request;
}

// A pipeline of two stages of four layers: not what would be chosen.
constexpr char kPipeline[] = R"({"islands": [{"replicas": [{
  "stages": [{"first_layer": 0, "layers": 4, "devices": ["w1/0"]},
             {"first_layer": 4, "layers": 4, "devices": ["w2/0"]}],
  "micro_batch_sequences": 2, "micro_batches": 8}]}]})";

TEST_CASE("a printed plan that is pinned is the plan, and takes as long") {
  PlanRequest request = TwoWorkers();
  const IslandPlan free = Planned(request);
  request.spec.layout.stages = 2;
  request.spec.inner.micro_batch_sequences = 2;
  const IslandPlan fixed = Planned(request);
  REQUIRE(fixed.replicas != free.replicas);
  const std::string json = Printed(request);
  request.spec.inner.micro_batch_sequences = 0;
  const IslandPlan pinned = Planned(Pinned(request, json));
  CHECK(pinned.replicas == fixed.replicas);
  CHECK(static_cast<double>(pinned.step_ns) <= 1.001 * static_cast<double>(fixed.step_ns));
}

TEST_CASE("edited cuts run as they say, under the schedule that the job names") {
  const std::string edited = absl::StrReplaceAll(
      kPipeline, {{"\"first_layer\": 0, \"layers\": 4", "\"layers\": 5"},
                  {"\"first_layer\": 4, \"layers\": 4", "\"first_layer\": 5, \"layers\": 3"}});
  PlanRequest pinned = Pinned(TwoWorkers(), edited);
  pinned.spec.layout.schedule = "gpipe";
  const IslandPlan plan = Planned(pinned);
  REQUIRE(plan.replicas[0].stages.size() == 2);
  CHECK(plan.replicas[0].stages[0].layers == 5);
  CHECK(plan.replicas[0].stages[1].layers == 3);
  CHECK(plan.schedule.find("gpipe") != std::string::npos);
}

TEST_CASE("a pinned plan that cannot run is refused with what is wrong") {
  const PlanRequest request = TwoWorkers();
  const auto refusal = [&](const std::string& from, const std::string& to) {
    const PlanRequest pinned = Pinned(request, kPipeline, from, to);
    const auto plan = PlanIsland(pinned);
    REQUIRE_FALSE(plan.ok());
    CHECK(plan.status().message().substr(0, 11) == "layout.plan");
    return plan.status();
  };
  CHECK(absl::IsNotFound(refusal("\"w2/0\"", "\"w9/0\"")));
  CHECK_THAT(std::string(refusal("\"w2/0\"", "\"w9/0\"").message()), Catch::Contains("w9/0"));
  for (const auto& [from, to] : {std::pair("\"first_layer\": 4", "\"first_layer\": 5"),
                                 std::pair("\"first_layer\": 4", "\"first_layer\": 3"),
                                 std::pair("\"layers\": 4", "\"layers\": 3"),
                                 std::pair("\"micro_batches\": 8", "\"micro_batches\": 7")}) {
    INFO(from << " to " << to);
    CHECK(absl::IsInvalidArgument(refusal(from, to)));
  }
  CHECK(absl::IsFailedPrecondition(refusal("\"w1/0\"", "\"w2/0\"")));  // w1 leads
}

TEST_CASE("recomputed_layers_run_as_listed_or_are_refused") {
  const PlanRequest request = TwoWorkers();
  const std::string listed = absl::StrReplaceAll(
      kPipeline,
      {{"\"devices\": [\"w1/0\"]", "\"devices\": [\"w1/0\"], \"recomputed_layers\": [1, 2]"}});
  const IslandPlan plan = Planned(Pinned(request, listed));
  CHECK(plan.replicas[0].stages[0].recomputed_layers == std::vector<int32_t>{1, 2});
  CHECK(plan.replicas[0].stages[1].recomputed_layers.empty());
  CHECK(plan.reason.find("whatever its programs say") != std::string::npos);
  for (const char* other : {"[2, 3]", "[0, 1]", "[1, 1]", "[2, 1]", "[4]", "[1, 2, 3, 4]"}) {
    INFO(other);
    const auto refused = PlanIsland(Pinned(request, listed, "[1, 2]", other));
    CHECK(absl::IsInvalidArgument(refused.status()));
    CHECK_THAT(std::string(refused.status().message()),
               Catch::StartsWith("layout.plan: replica 0: recomputed_layers = ["));
  }
}

TEST_CASE("of_several_islands_each_is_a_plan_by_itself") {
  const std::string two =
      "{\"islands\": [{\"replicas\": [{\"micro_batches\": 1}]}, {\"replicas\": "
      "[{\"micro_batches\": 2}]}]}";
  const auto islands = IslandsJson(two, "plan.json");
  REQUIRE(islands.ok());
  REQUIRE(islands->size() == 2);
  CHECK_THAT((*islands)[1], Catch::Contains("\"micro_batches\": 2"));
}

TEST_CASE("a pinned plan that lacks memory, or a schedule that does not suit it, is refused") {
  const PlanRequest request = TwoWorkers();
  PlanRequest small = Pinned(request, kPipeline);
  for (PlanMember& member : small.members) member.devices[0].memory_bytes = 1 << 20;
  const auto lacks = PlanIsland(small);
  CHECK(absl::IsResourceExhausted(lacks.status()));
  PlanRequest odd = Pinned(request, kPipeline);
  odd.spec.inner.batch_sequences = 16;
  odd.spec.layout.schedule = "no-such";
  CHECK_FALSE(PlanIsland(odd).ok());
}

TEST_CASE("what is no plan is refused before it is submitted") {
  for (const char* text : {"", "{", "[]", "{}", "{\"islands\": []}", "{\"islands\": [{}]}",
                           "{\"islands\": [{\"replicas\": [{}], \"colour\": 1}]}"}) {
    INFO(text);
    CHECK(absl::IsInvalidArgument(PinnedJson(text, "plan.json").status()));
  }
}

TEST_CASE("an island that loses a device of its pinned plan goes on without it until it is back") {
  const PlanRequest request = TwoWorkers();
  PlanRequest pinned = Pinned(request, kPipeline);
  pinned.members.pop_back();
  pinned.links.clear();
  CHECK_FALSE(PlanIsland(pinned).ok());
  pinned.number = 2;
  const IslandPlan plan = Planned(pinned);
  CHECK(DevicesIn(plan) == std::set<std::string>{"w1/0"});
}

}  // namespace
}  // namespace atl

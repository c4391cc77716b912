// layout.plan: what `atoll plan --json` prints, edited or not, runs as it says or is refused with
// what is wrong.

#include <catch2/catch.hpp>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "coordinator/plan_io/plan_message.h"
#include "coordinator/planning/island_scope.h"
#include "coordinator/planning/testing/planning_fixture.h"

namespace atl {
namespace {

PlanRequest TwoWorkers() {
  PlanRequest request = MakePlanRequest(6, 16, {MeasuredWorker("w1", 4), MeasuredWorker("w2", 4)});
  Link(request, "w1", "w2", 0.1, 1e9);
  return request;
}

// Returns what `atoll plan --json` prints for the request.
std::string Printed(const PlanRequest& request) {
  const auto input = MakePlanningInput(request);
  REQUIRE(input.ok());
  const auto found = FindPlan(request, *input);
  REQUIRE(found.ok());
  return ToJson(ToMessage(input->cluster, input->costs, {{"", input->cluster, found->plan}}, 64));
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
  CHECK(plan.reason.find("put in order anew") != std::string::npos);
  for (const char* other : {"[2, 3]", "[0, 1]", "[1, 1]", "[2, 1]", "[4]", "[1, 2, 3, 4]"}) {
    INFO(other);
    const auto refused = PlanIsland(Pinned(request, listed, "[1, 2]", other));
    CHECK(absl::IsInvalidArgument(refused.status()));
    CHECK_THAT(std::string(refused.status().message()),
               Catch::StartsWith("layout.plan: replica 0: recomputed_layers = ["));
  }
}

// Two stages on each device: in turn, and in a V.
std::string TwoStagesEach(bool v) {
  const char* const third = v ? "w2/0" : "w1/0";
  const char* const last = v ? "w1/0" : "w2/0";
  return absl::StrCat(R"({"islands": [{"replicas": [{"stages": [
      {"first_layer": 0, "layers": 2, "devices": ["w1/0"]},
      {"first_layer": 2, "layers": 2, "devices": ["w2/0"]},
      {"first_layer": 4, "layers": 2, "devices": [")",
                      third, R"("]},
      {"first_layer": 6, "layers": 2, "devices": [")",
                      last, R"("]}], "micro_batch_sequences": 2, "micro_batches": 8}]}]})");
}

TEST_CASE(
    "a_pinned_plan_of_two_stages_a_device_runs_by_its_schedule_or_is_refused_with_both_named") {
  for (const bool v : {false, true}) {
    for (const std::string& schedule : sim::ScheduleNames()) {
      CAPTURE(v, schedule);
      PlanRequest request = Pinned(TwoWorkers(), TwoStagesEach(v));
      request.spec.layout.schedule = schedule;
      const auto plan = PlanIsland(request);
      const bool one = schedule == "1f1b" || schedule.substr(0, 4) == "zb-h" ||
                       schedule == "zb-1p" || schedule == "zb-2p";
      const bool in_v = schedule == "zb-v" || schedule.substr(0, 2) == "v-";
      const bool suits = !one && (v ? schedule != "interleaved" : !in_v);
      CHECK(plan.ok() == suits);
      if (plan.ok()) {
        CHECK(plan->replicas[0].stages.size() == 4);
        continue;
      }
      CHECK(absl::IsInvalidArgument(plan.status()));
      CHECK_THAT(std::string(plan.status().message()),
                 Catch::StartsWith("layout.plan") && Catch::Contains(schedule));
    }
  }
}

TEST_CASE("a_pinned_plan_says_which_workers_share_an_island") {
  PlanRequest request = Pinned(TwoWorkers(), kPipeline);
  request.spec.layout.workers_per_island = 2;
  const auto input = MakePlanningInput(request);
  REQUIRE(input.ok());
  const auto plans = PlanScope(request, *input, IslandScope::kAll, ToIslandOptions(request.spec));
  INFO(plans.status());
  REQUIRE(plans.ok());
  CHECK(plans->choice.first().layout.replicas[0].stages.size() == 2);
  request.spec.layout.plan.clear();
  CHECK_FALSE(PlanScope(request, *input, IslandScope::kAll, ToIslandOptions(request.spec)).ok());
}

TEST_CASE("stages_that_share_some_of_their_devices_are_refused") {
  PlanRequest request = MakePlanRequest(6, 16);
  request.members.push_back(Worker("w1", 2));
  const auto pinned = [&](const char* second) {
    return PlanIsland(Pinned(
        request,
        absl::StrCat(R"({"islands": [{"replicas": [{"stages": [
            {"first_layer": 0, "layers": 4, "devices": ["w1/0", "w1/1"]},
            {"first_layer": 4, "layers": 4, "devices": [)",
                     second, R"(]}], "micro_batch_sequences": 2, "micro_batches": 8}]}]})")));
  };
  CHECK(pinned(R"("w1/0", "w1/1")").ok());
  for (const char* other : {R"("w1/1", "w1/0")", R"("w1/1")", R"("w1/0")"}) {
    CAPTURE(other);
    CHECK(absl::IsInvalidArgument(pinned(other).status()));
  }
}

// "F0.1 B0.1 W0.1": of stage 0, micro-batch 1.
std::string Program(const std::string& device, const std::string& ops) {
  std::string json;
  for (const absl::string_view op : absl::StrSplit(ops, ' ', absl::SkipEmpty())) {
    const std::vector<std::string> numbers = absl::StrSplit(op.substr(1), '.');
    const int kind = op[0] == 'F' ? 1 : op[0] == 'B' ? 2 : 3;
    absl::StrAppend(&json, json.empty() ? "" : ", ", "{\"kind\": ", kind,
                    ", \"stage\": ", numbers[0], ", \"micro_batch\": ", numbers[1], "}");
  }
  return absl::StrCat("{\"device\": \"", device, "\", \"operations\": [", json, "]}");
}

std::string WithPrograms(const std::string& json, const std::vector<std::string>& programs) {
  const size_t end = json.rfind("}]}");
  REQUIRE(end != std::string::npos);
  return absl::StrCat(json.substr(0, end), ", \"programs\": [", absl::StrJoin(programs, ", "), "]",
                      json.substr(end));
}

// The operations that compute, in the same form.
std::string ComputeOps(const IslandPlan& plan, const std::string& device) {
  std::string text;
  for (const PlanProgram& program : plan.programs) {
    if (program.device != device) continue;
    for (const PlanOp& op : program.ops) {
      const char* const kind = op.kind == PlanOpKind::kForward          ? "F"
                               : op.kind == PlanOpKind::kInputGradient  ? "B"
                               : op.kind == PlanOpKind::kWeightGradient ? "W"
                                                                        : "";
      if (*kind == 0) continue;
      absl::StrAppend(&text, text.empty() ? "" : " ", kind, op.stage, ".", op.micro_batch);
    }
  }
  return text;
}

// Four micro-batches of four sequences.
std::string FourMicroBatches() {
  return absl::StrReplaceAll(kPipeline,
                             {{"\"micro_batch_sequences\": 2", "\"micro_batch_sequences\": 4"},
                              {"\"micro_batches\": 8", "\"micro_batches\": 4"}});
}

// Neither GPipe's nor 1F1B's order, nor one that a search prefers.
constexpr char kFirst[] = "F0.1 F0.0 F0.2 F0.3 B0.1 B0.0 B0.3 B0.2 W0.0 W0.1 W0.2 W0.3";
constexpr char kSecond[] = "F1.1 F1.0 B1.0 B1.1 F1.3 F1.2 B1.2 B1.3";

TEST_CASE("an_edited_order_of_operations_is_the_one_that_runs") {
  const std::string edited =
      WithPrograms(FourMicroBatches(), {Program("w1/0", kFirst), Program("w2/0", kSecond)});
  const IslandPlan plan = Planned(Pinned(TwoWorkers(), edited));
  CHECK(ComputeOps(plan, "w1/0") == kFirst);
  // Without W of its own a stage does it with B.
  CHECK(ComputeOps(plan, "w2/0") == "F1.1 F1.0 B1.0 W1.0 B1.1 W1.1 F1.3 F1.2 B1.2 W1.2 B1.3 W1.3");
  CHECK(plan.reason.find("in the order of its programs") != std::string::npos);
  // A schedule that the job names goes before it.
  PlanRequest named = Pinned(TwoWorkers(), edited);
  named.spec.layout.schedule = "gpipe";
  CHECK(ComputeOps(Planned(named), "w2/0") != ComputeOps(plan, "w2/0"));
}

TEST_CASE("a_printed_plan_that_is_pinned_keeps_its_programs_under_every_schedule") {
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1", "zb-v", "interleaved", "jeeves", "best"}) {
    INFO(schedule);
    PlanRequest request = TwoWorkers();
    request.spec.layout.stages = 2;
    request.spec.inner.micro_batch_sequences = 2;
    request.spec.layout.schedule = schedule;
    const IslandPlan fixed = Planned(request);
    const std::string json = Printed(request);
    request.spec.inner.micro_batch_sequences = 0;
    const IslandPlan pinned = Planned(Pinned(request, json));
    REQUIRE(pinned.programs.size() == fixed.programs.size());
    for (size_t p = 0; p < fixed.programs.size(); ++p) {
      CHECK(pinned.programs[p].ops == fixed.programs[p].ops);
    }
    CHECK(pinned.step_ns == fixed.step_ns);
  }
}

TEST_CASE("replicas_of_a_pinned_plan_may_have_orders_of_their_own") {
  constexpr char kTwo[] = R"({"islands": [{"replicas": [
    {"stages": [{"first_layer": 0, "layers": 8, "devices": ["w1/0"]}],
     "micro_batch_sequences": 4, "micro_batches": 2},
    {"stages": [{"first_layer": 0, "layers": 8, "devices": ["w2/0"]}],
     "micro_batch_sequences": 4, "micro_batches": 2}]}]})";
  const std::string edited = WithPrograms(kTwo, {Program("w1/0", "F0.0 F0.1 B0.1 B0.0 W0.0 W0.1"),
                                                 Program("w2/0", "F0.0 B0.0 F0.1 B0.1 W0.0 W0.1")});
  const IslandPlan plan = Planned(Pinned(TwoWorkers(), edited));
  CHECK(ComputeOps(plan, "w1/0") == "F0.0 F0.1 B0.1 B0.0 W0.0 W0.1");
  CHECK(ComputeOps(plan, "w2/0") == "F0.0 B0.0 F0.1 B0.1 W0.0 W0.1");
}

TEST_CASE("an_order_that_cannot_run_is_refused_with_its_device_and_operation") {
  const auto refusal = [](const std::string& first, const std::string& second,
                          const std::string& device = "w2/0") {
    const std::string edited =
        WithPrograms(FourMicroBatches(), {Program("w1/0", first), Program(device, second)});
    PlanRequest request = TwoWorkers();
    const auto pinned = PinnedJson(edited, "layout.plan");
    if (!pinned.ok()) return pinned.status();
    request.spec.layout.plan = *pinned;
    return PlanIsland(request).status();
  };
  const auto says = [](const absl::Status& status, const std::string& what) {
    CHECK_THAT(std::string(status.message()),
               Catch::StartsWith("layout.plan") && Catch::Contains(what));
    return status;
  };
  const std::string first = kFirst, second = kSecond;
  const auto edited = [](const std::string& text, const char* from, const char* to) {
    return absl::StrReplaceAll(text, {{from, to}});
  };
  REQUIRE(refusal(first, second).ok());
  for (const auto& [status, what] :
       {std::pair(refusal(first, "F1.1 F1.0 B1.0 B1.1 F1.2 B1.2"),
                  "FORWARD of stage 1, micro-batch 3: it is missing"),
        std::pair(refusal(first, edited(second, "F1.3", "F1.0")), "appears twice"),
        std::pair(refusal(first, edited(second, "F1.3", "F0.3")), "does not hold this stage"),
        std::pair(refusal(first, edited(second, "F1.3", "F1.4")), "4 micro-batches"),
        std::pair(refusal(first, edited(second, "F1.1 F1.0 B1.0 B1.1", "F1.0 B1.0 B1.1 F1.1")),
                  "before its FORWARD"),
        std::pair(refusal(first, edited(second, "B1.0 B1.1", "B1.1 B1.0")), "run in that order"),
        std::pair(refusal(edited(first, "W0.3", ""), second), "WEIGHT_GRADIENT of stage 0, micro"),
        std::pair(refusal(edited(first, "W0.0 W0.1", "W0.1 W0.0"), second), "in the order of"),
        std::pair(refusal(first, second, "w1/0"), "appears twice"),
        std::pair(refusal(first, second, "w9/0"), "\"w9/0\": no stage")}) {
    INFO(what);
    CHECK(absl::IsInvalidArgument(says(status, what)));
  }
  // Stage 1 needs micro-batch 1 first, which stage 0 forwards after its gradient of 0.
  const std::string waits = "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3";
  CHECK(absl::IsFailedPrecondition(says(refusal(waits, second), "")));
  CHECK(refusal(waits, "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3").ok());
}

TEST_CASE("an_order_with_more_micro_batches_in_flight_than_memory_holds_is_refused") {
  const std::string all = "F0.0 F0.1 F0.2 F0.3 B0.0 B0.1 B0.2 B0.3";
  const std::string one = "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3";
  const std::string second = absl::StrReplaceAll(one, {{"0.", "1."}});
  const auto planned = [&](const std::string& first, int64_t memory) {
    PlanRequest request =
        Pinned(TwoWorkers(),
               WithPrograms(FourMicroBatches(), {Program("w1/0", first), Program("w2/0", second)}));
    request.spec.layout.recompute = Recompute::kNone;
    request.members[0].devices[0].memory_bytes = memory;
    return PlanIsland(request).status();
  };
  int64_t fits = kGiB, lacks = 0;  // the least memory for one micro-batch in flight
  while (fits - lacks > 1 << 16) {
    const int64_t middle = (fits + lacks) / 2;
    (planned(one, middle).ok() ? fits : lacks) = middle;
  }
  CHECK(absl::IsResourceExhausted(planned(all, fits)));
  CHECK(planned(all, kGiB).ok());
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

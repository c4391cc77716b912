// A plan simulated again is the step that the planner predicted, and shows every operation of it.

#include "coordinator/planning/predicted_step.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "coordinator/planning/testing/planning_fixture.h"

namespace atl {
namespace {

// Measured workers of different speed, joined by links of 1 MB/s and 5 ms.
PlanRequest Island(int workers) {
  PlanRequest request = MakePlanRequest(6, 16);
  request.spec.inner.micro_batch_sequences = 2;
  for (int w = 1; w <= workers; ++w) {
    const std::string name = absl::StrCat("w", w);
    request.members.push_back(MeasuredWorker(name, 2.0 + w));
    for (int other = 1; other < w; ++other) Link(request, name, absl::StrCat("w", other), 5, 1e6);
  }
  return request;
}

struct Prediction {
  IslandPlan plan;
  StepTrace step;
};

// A plan for the request, and its step.
Prediction Predicted(const PlanRequest& request) {
  const auto plan = PlanIsland(request);
  INFO(plan.status().ToString());
  REQUIRE(plan.ok());
  const auto step = PredictStep(request, *plan);
  INFO(step.status().ToString());
  REQUIRE(step.ok());
  return {*plan, *step};
}

using Op = std::tuple<std::string, TraceKind, int32_t, int32_t>;  // device, what, stage, which

std::multiset<Op> ListOps(const StepTrace& trace) {
  std::multiset<Op> ops;
  for (const TraceDevice& device : trace.devices) {
    for (const TraceSpan& span : device.spans) {
      if (span.kind > TraceKind::kWeightGradient) continue;
      ops.insert({device.device, span.kind, span.stage, span.micro_batch});
      if (!span.with_weights) continue;
      ops.insert({device.device, TraceKind::kWeightGradient, span.stage, span.micro_batch});
    }
  }
  return ops;
}

std::multiset<Op> ListOps(const IslandPlan& plan) {
  const std::map<PlanOpKind, TraceKind> kinds = {
      {PlanOpKind::kForward, TraceKind::kForward},
      {PlanOpKind::kInputGradient, TraceKind::kInputGradient},
      {PlanOpKind::kWeightGradient, TraceKind::kWeightGradient}};
  std::multiset<Op> ops;
  for (const PlanProgram& program : plan.programs) {
    for (const PlanOp& op : program.ops) {
      if (kinds.count(op.kind) == 0) continue;
      ops.insert({program.device, kinds.at(op.kind), op.stage, op.micro_batch});
    }
  }
  return ops;
}

void CheckTimes(const StepTrace& trace) {
  for (const TraceDevice& device : trace.devices) {
    int64_t free_ns = 0;
    for (const TraceSpan& span : device.spans) {
      CHECK(span.start_ns == free_ns);  // waiting is a span, too
      CHECK(span.end_ns >= span.start_ns);
      free_ns = span.end_ns;
    }
    CHECK(device.end_ns == free_ns);
    CHECK(free_ns <= trace.step_ns);
  }
}

// From step to step: from a device's first operation to its end, and no less than its own work
// takes.
int64_t ComputePeriod(const StepTrace& trace) {
  int64_t period_ns = 0;
  for (const TraceDevice& device : trace.devices) {
    const auto begun =
        std::find_if(device.spans.begin(), device.spans.end(),
                     [](const TraceSpan& span) { return span.kind != TraceKind::kWait; });
    const size_t count = device.spans.size();
    const TraceSpan& commit = device.spans[count - 2];
    const TraceSpan& optimizer = device.spans[count - 1];
    period_ns = std::max({period_ns, device.end_ns - begun->start_ns,
                          commit.start_ns + optimizer.end_ns - optimizer.start_ns});
  }
  return period_ns;
}

TEST_CASE("A pipeline's step is the one that its plan predicted") {
  for (const char* schedule : {"", "1f1b", "zb-h1", "zb-v"}) {
    INFO(schedule);
    PlanRequest request = Island(3);
    request.spec.layout.stages = 3;
    request.spec.layout.schedule = schedule;
    const auto [plan, step] = Predicted(request);
    CHECK(ComputePeriod(step) == plan.step_ns);
    CHECK(ListOps(step) == ListOps(plan));
    CheckTimes(step);
    CHECK(step.about == "layer times measured");
    REQUIRE(!step.links.empty());
    CHECK(step.links[0].latency_ns == 5'000'000);
    CHECK(step.links[0].bandwidth_bytes_per_s == Approx(1e6));
    // In each direction over each stage link, once for every micro-batch.
    CHECK(step.messages.size() == 8 * 2 * (plan.replicas[0].stages.size() - 1) -
                                      (std::string(schedule) == "zb-v" ? 16 : 0));
  }
}

TEST_CASE("Replicas' steps end when their gradients are summed and the optimizer is done") {
  PlanRequest request = Island(2);
  request.spec.layout.replicas = 2;
  const auto [plan, step] = Predicted(request);
  CHECK(ComputePeriod(step) == Approx(plan.step_ns).epsilon(1e-6));
  CHECK(ListOps(step) == ListOps(plan));
  CheckTimes(step);
  for (const TraceDevice& device : step.devices) {
    const size_t count = device.spans.size();
    CHECK(device.spans[count - 3].kind == TraceKind::kSyncWait);
    CHECK(device.spans[count - 2].kind == TraceKind::kCommit);
    CHECK(device.spans[count - 1].kind == TraceKind::kOptimizer);
  }
}

TEST_CASE("Replicas that share a link between sites take turns, and sites wait for word") {
  PlanRequest request = Island(4);
  for (size_t w = 0; w < 4; ++w) request.members[w].site = w < 2 ? "paris" : "oslo";
  std::erase_if(request.links,
                [](const LinkProfile& link) { return (link.from < "w3") == (link.to < "w3"); });
  request.spec.layout.replicas = 2;
  request.spec.layout.stages = 2;
  const auto [plan, step] = Predicted(request);
  CHECK(ComputePeriod(step) == Approx(plan.step_ns).epsilon(1e-6));
  CheckTimes(step);
  const auto crosses = [](const TraceMessage& m) { return (m.from < "w3") != (m.to < "w3"); };
  CHECK(std::count_if(step.messages.begin(), step.messages.end(), crosses) == 2 * 8);
  CHECK(plan.link_orders.size() == 2);
  for (const TraceMessage& a : step.messages) {
    for (const TraceMessage& b : step.messages) {
      if (&a == &b || !crosses(a) || !crosses(b) || (a.from < "w3") != (b.from < "w3")) continue;
      // No other message is sent until its last byte has left.
      if (a.start_ns <= b.start_ns) CHECK(a.arrive_ns - 5'000'000 <= b.start_ns);
    }
  }
  int64_t waited_ns = 0;
  for (const TraceDevice& device : step.devices) {
    const TraceSpan& commit = device.spans[device.spans.size() - 2];
    waited_ns = std::max(waited_ns, commit.end_ns - commit.start_ns);
  }
  CHECK(waited_ns >= 5'000'000);
}

TEST_CASE("What changes since the plan was made changes the step") {
  PlanRequest request = Island(2);
  request.spec.layout.stages = 2;
  const auto plan = PlanIsland(request);
  REQUIRE(plan.ok());
  for (LinkProfile& link : request.links) link.bandwidth_bytes_per_s = 1e5;
  const auto slower = PredictStep(request, *plan);
  REQUIRE(slower.ok());
  CHECK(slower->step_ns > plan->step_ns);
}

TEST_CASE("a_measured_time_of_the_stage_links_message_counts_instead_of_the_links_bandwidth") {
  PlanRequest law = Island(2);
  law.spec.layout.stages = 2;
  const IslandPlan plan = Predicted(law).plan;
  const auto bytes = int64_t{64} * 64 * 4 * plan.replicas[0].micro_batch_sequences;
  PlanRequest table = law;
  for (LinkProfile& link : table.links) {
    link.times = {{bytes / 2, link.latency_ns + 300'000'000},
                  {bytes * 2, link.latency_ns + 900'000'000}};
  }
  // Between 1/2 and 2 of its size: 300 ms and a third of 600 ms.
  for (LinkProfile& link : law.links) {
    link.bandwidth_bytes_per_s = static_cast<double>(bytes) / 0.5;
  }
  CHECK(EstimateStepNs(table, plan) == Approx(EstimateStepNs(law, plan)).margin(1000));
  CHECK(std::abs(EstimateStepNs(table, plan) - plan.step_ns) > 1'000'000);
}

TEST_CASE("An unknown device is named") {
  PlanRequest request = Island(2);
  request.spec.layout.stages = 2;
  const auto plan = PlanIsland(request);
  REQUIRE(plan.ok());
  request.members.pop_back();
  CHECK(PredictStep(request, *plan).status().message() == "nothing is known of w2/0");
}

}  // namespace
}  // namespace atl

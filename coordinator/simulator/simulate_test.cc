#include "coordinator/simulator/simulate.h"

#include <catch2/catch.hpp>
#include <set>

#include "coordinator/simulator/bounds.h"
#include "coordinator/simulator/link_orders.h"
#include "coordinator/simulator/schedules.h"
#include "coordinator/simulator/testing/uniform.h"

namespace atl::sim {
namespace {

Result Play(const Problem& problem, const Schedule& schedule) {
  const auto result = Simulate(problem, schedule, {.record = true});
  INFO(result.status().ToString());
  REQUIRE(result.ok());
  return *result;
}

TEST_CASE("1F1B on one site takes (m + p - 1)(F + B)") {
  const Problem problem =
      MakeUniform({.stages = 4, .micro_batches = 8, .forward_ns = 10, .backward_ns = 20});
  const Result result = Play(problem, *OneForwardOneBackward(problem));
  CHECK(result.verdict == Verdict::kFits);
  CHECK(result.makespan_ns == 11 * 30);
  CHECK(result.period_ns == 11 * 30);
  CHECK(result.devices[0].busy_ns == 8 * 30);
  CHECK(result.devices[0].peak_bytes == 4 << 20);
  CHECK(result.devices[3].peak_bytes == 1 << 20);
}

// The law of JEEVES's setting: uniform stages, one slow cut with n_a stages after it.
TEST_CASE("1F1B across one slow link follows (m+p-1)T + 2c(1 + floor((m - n_a)/2))") {
  const int p = GENERATE(2, 4, 8);
  const int m = GENERATE(8, 9, 16, 32);
  const Nanos latency = GENERATE(0, 1'000, 20'000);
  const Nanos serial = GENERATE(0, 7'760, 28'300);
  const Nanos forward = 9'433;
  const Nanos backward = 18'867;
  Problem problem = MakeUniform(
      {.stages = p, .micro_batches = m, .forward_ns = forward, .backward_ns = backward});
  for (int cut = 0; cut + 1 < p; ++cut) {
    Problem cut_problem = problem;
    Chunk& chunk = cut_problem.chunks[cut];
    for (const int link : {chunk.forward_link, chunk.backward_link}) {
      cut_problem.network.links[link].edges[0].latency_ns = latency;
    }
    chunk.forward_bytes = chunk.backward_bytes = serial;
    const int after = p - 1 - cut;
    if (m < after) continue;
    const Nanos c = latency + serial;
    const Nanos law = (m + p - 1) * (forward + backward) + 2 * c * (1 + (m - after) / 2);
    INFO("p " << p << " m " << m << " cut " << cut << " c " << c);
    CHECK(Play(cut_problem, *OneForwardOneBackward(cut_problem)).makespan_ns == law);
  }
}

TEST_CASE("GPipe holds every micro-batch and takes (m + p - 1)(F + B) too") {
  const Problem problem = MakeUniform(
      {.stages = 3, .micro_batches = 5, .forward_ns = 10, .backward_ns = 20, .slots = 4});
  const Result result = Play(problem, GPipe(problem));
  CHECK(result.makespan_ns == 7 * 30);
  CHECK(result.verdict == Verdict::kOutOfMemory);
  CHECK(result.devices[0].peak_bytes == 5 << 20);
  CHECK_THAT(result.reason, Catch::Contains("device 0"));
  CHECK_THAT(result.reason, Catch::Contains("F0.4"));
}

TEST_CASE("Interleaving divides the fill by the number of chunks") {
  const Problem problem = MakeUniform({.stages = 4,
                                       .micro_batches = 8,
                                       .forward_ns = 10,
                                       .backward_ns = 20,
                                       .chunks_per_device = 2});
  const Result result = Play(problem, *Interleaved(problem));
  CHECK(result.makespan_ns == 8 * 2 * 30 + 3 * 30);
  // Breadth first takes as long, and holds every micro-batch.
  const Result breadth_first = Play(problem, GPipe(problem));
  CHECK(breadth_first.makespan_ns == result.makespan_ns);
  CHECK(breadth_first.devices[0].peak_bytes == 8 << 20);
  CHECK(result.devices[0].peak_bytes < 8 << 20);
}

TEST_CASE("Zero-bubble H1 loses (p-1)(F+B-W), H2 nothing, with equal F, B, W") {
  const Problem problem = MakeUniform(
      {.stages = 4, .micro_batches = 12, .forward_ns = 10, .backward_ns = 10, .weight_ns = 10});
  const Result h1 = Play(problem, *ZeroBubbleH1(problem));
  CHECK(h1.period_ns == 12 * 30 + 3 * 10);
  for (const DeviceUse& device : h1.devices) CHECK(device.peak_bytes <= 4 << 20);
  const Result h2 = Play(problem, *ZeroBubbleH2(problem));
  CHECK(h2.period_ns == 12 * 30);
  for (const DeviceUse& device : h2.devices) CHECK(device.peak_bytes <= 7 << 20);
}

TEST_CASE("An order that can never run is stuck, and said to be") {
  const Problem problem =
      MakeUniform({.stages = 2, .micro_batches = 2, .forward_ns = 1, .backward_ns = 1});
  Schedule schedule = *OneForwardOneBackward(problem);
  std::swap(schedule.device_ops[1][0], schedule.device_ops[1][1]);
  const Result result = Play(problem, schedule);
  CHECK(result.verdict == Verdict::kStuck);
}

TEST_CASE("Malformed schedules are refused with the operation's name") {
  const Problem problem =
      MakeUniform({.stages = 2, .micro_batches = 2, .forward_ns = 1, .backward_ns = 1});
  Schedule schedule = *OneForwardOneBackward(problem);
  schedule.device_ops[0][0] = schedule.device_ops[0][1];
  const auto twice = Simulate(problem, schedule, {});
  CHECK_THAT(std::string(twice.status().message()), Catch::Contains("appears twice"));
  schedule.device_ops[0].pop_back();
  schedule.device_ops[0][0] = {1, 0, OpKind::kForward};
  const auto elsewhere = Simulate(problem, schedule, {});
  CHECK_THAT(std::string(elsewhere.status().message()), Catch::Contains("device 0, F1.0"));
}

TEST_CASE("Gradients are reduced after the last W, one collective at a time per channel") {
  Problem problem =
      MakeUniform({.stages = 2, .micro_batches = 2, .forward_ns = 10, .backward_ns = 10});
  problem.channel_count = 1;
  problem.syncs = {{{0}, 100, {0}}, {{1}, 100, {0}}};
  for (Chunk& chunk : problem.chunks) chunk.optimizer_ns = 5;
  const Result result = Play(problem, *OneForwardOneBackward(problem));
  // Stage 1 ends its last B at 50, stage 0 at 60; the second collective waits for the first.
  CHECK(result.timeline[1].back().start_ns == 150);
  CHECK(result.timeline[0].back().start_ns == 250);
  CHECK(result.makespan_ns == 255);
}

TEST_CASE("Layers are reduced one by one while the device works on") {
  // Two chunks on one device, two layers each: GPipe ends chunk 1's gradients at 60, chunk 0's
  // at 80.
  Problem problem = MakeUniform({.stages = 1,
                                 .micro_batches = 2,
                                 .forward_ns = 10,
                                 .backward_ns = 10,
                                 .chunks_per_device = 2});
  problem.channel_count = 1;
  problem.syncs = {{{0}, 8, {0}, {0.5}}, {{0}, 8, {0}}, {{1}, 8, {0}, {0.5}}, {{1}, 8, {0}}};
  for (Chunk& chunk : problem.chunks) chunk.optimizer_ns = 5;
  const Result result = Play(problem, GPipe(problem));
  CHECK(result.compute_ns == 80);
  REQUIRE(result.syncs.size() == 4);
  const Nanos ready[] = {55, 60, 75, 80};
  const Nanos start[] = {55, 63, 75, 83};
  const int order[] = {2, 3, 0, 1};
  for (int i = 0; i < 4; ++i) {
    INFO("synchronisation " << i);
    CHECK(result.syncs[i].sync == order[i]);
    CHECK(result.syncs[i].ready_ns == ready[i]);
    CHECK(result.syncs[i].start_ns == start[i]);
    CHECK(result.syncs[i].end_ns == start[i] + 8);
  }
  // Chunk 1's step waits for the device's work, chunk 0's for its second layer's gradients.
  CHECK(result.timeline[0].back().start_ns == 91);
  CHECK(result.makespan_ns == 96);
  CHECK(MakespanBound(problem).time_ns <= 96);
}

TEST_CASE("What several senders share is written down in the order it was used") {
  Problem problem;
  problem.network.lanes = {{LaneOrder::kRoundRobin}};
  for (int r = 0; r < 2; ++r) {
    for (int s = 0; s < 2; ++s) {
      Chunk chunk{.device = 2 * r + s, .forward_ns = 10, .backward_ns = 10};
      if (s == 0) {
        chunk.forward_link = r;
        chunk.forward_bytes = 15;
      }
      problem.chunks.push_back(chunk);
      problem.devices.push_back({});
    }
    problem.network.links.push_back({{Edge{5, 1e9, {}, -1}}, false, 0});
    problem.pipelines.push_back({2 * r, 2, 2, r});
  }
  const std::vector<LinkOrder> orders = LinkOrders(problem, Play(problem, GPipe(problem)));
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].on == LinkOrder::On::kLane);
  const std::vector<OrderedMessage> expected = {
      {0, 0, 0, false}, {1, 0, 0, false}, {0, 0, 1, false}, {1, 0, 1, false}};
  CHECK(orders[0].messages == expected);
}

}  // namespace
}  // namespace atl::sim

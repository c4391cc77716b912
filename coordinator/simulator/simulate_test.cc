#include "coordinator/simulator/simulate.h"

#include <catch2/catch.hpp>
#include <set>

#include "coordinator/simulator/bounds.h"
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

// Each message takes 3: the sender's is after its operation and the receiver's within its own.
TEST_CASE("devices_that_send_and_receive_compute_later") {
  const int m = GENERATE(1, 2, 8);
  Problem problem =
      MakeUniform({.stages = 2, .micro_batches = m, .forward_ns = 10, .backward_ns = 20});
  Chunk &first = problem.chunks[0], &second = problem.chunks[1];
  first.forward_link = first.backward_link = kNoLink;
  first.forward_send_ns = second.backward_send_ns = 3;
  first.backward_ns = 23;
  second.forward_ns = 13;
  const Schedule schedule = *OneForwardOneBackward(problem);
  const Result result = Play(problem, schedule);
  CHECK(result.makespan_ns == 36 * m + 30);
  CHECK(result.devices[0].busy_ns == 33 * m);
  CHECK(MakespanBound(problem).time_ns <= result.makespan_ns);
  first.forward_send_ns = -1;
  CHECK_FALSE(Simulate(problem, schedule, {}).ok());
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

}  // namespace
}  // namespace atl::sim

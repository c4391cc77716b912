// Laws that hold for every problem, tried on many random ones.

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "common/rng.h"
#include "coordinator/simulator/bounds.h"
#include "coordinator/simulator/schedules.h"
#include "coordinator/simulator/search.h"
#include "coordinator/simulator/testing/uniform.h"

namespace atl::sim {
namespace {

// A pipeline of random stages over random links; every third one crosses trunks or a lane.
Problem RandomProblem(uint64_t seed) {
  Rng rng(seed);
  Problem problem;
  const int p = 1 + static_cast<int>(rng.Below(5));
  const int m = 1 + static_cast<int>(rng.Below(10));
  const bool split = rng.Chance(0.5);
  const int replicas = 1 + static_cast<int>(rng.Below(3));
  const uint64_t shared = rng.Below(4);  // 0, 1: nothing; 2: trunks; 3: a lane per direction
  if (shared == 2) {
    for (int t = 0; t < 2; ++t) {
      problem.network.trunks.push_back({1e9 * (0.2 + rng.Uniform()), {}});
      if (rng.Chance(0.3)) problem.network.trunks.back().trace = {{200, 1e8}, {900, 2e9}};
    }
  }
  if (shared == 3) {
    problem.network.lanes = 2;
  }
  for (int r = 0; r < replicas; ++r) {
    const int first = static_cast<int>(problem.chunks.size());
    for (int s = 0; s < p; ++s) {
      Chunk chunk;
      chunk.device = static_cast<int>(problem.devices.size());
      chunk.forward_ns = 1 + static_cast<Nanos>(rng.Below(40));
      chunk.backward_ns = 1 + static_cast<Nanos>(rng.Below(60));
      chunk.weight_ns = split ? 1 + static_cast<Nanos>(rng.Below(30)) : 0;
      chunk.optimizer_ns = static_cast<Nanos>(rng.Below(3));
      chunk.activation_bytes = 1 + static_cast<int64_t>(rng.Below(9));
      chunk.weight_bytes = split ? static_cast<int64_t>(rng.Below(chunk.activation_bytes + 1)) : 0;
      if (s + 1 < p) {
        for (int* link : {&chunk.forward_link, &chunk.backward_link}) {
          *link = static_cast<int>(problem.network.links.size());
          Link made{{Edge{static_cast<Nanos>(rng.Below(50)), 1e9 * (0.1 + rng.Uniform()), {}, -1}}};
          const int direction = link == &chunk.forward_link ? 0 : 1;
          if (shared == 2) made.edges[0].trunks = {direction};
          if (shared == 3) made.lane = direction;
          if (shared < 2 && rng.Chance(0.3)) {
            made.edges.push_back({static_cast<Nanos>(rng.Below(80)), 5e8, {}, -1});
          }
          problem.network.links.push_back(made);
        }
        chunk.forward_bytes = static_cast<int64_t>(rng.Below(40));
        chunk.backward_bytes = static_cast<int64_t>(rng.Below(40));
      }
      problem.devices.push_back(
          {chunk.activation_bytes * static_cast<int64_t>(1 + rng.Below(2 * p + 1))});
      problem.chunks.push_back(chunk);
    }
    problem.pipelines.push_back({first, p, m, r});
  }
  REQUIRE(Validate(problem).ok());
  return problem;
}

// A V of random chunks: two per device, the second ones on the way back.
Problem RandomV(uint64_t seed) {
  Rng rng(seed);
  Problem problem = MakeUniform({.stages = 1 + static_cast<int>(rng.Below(5)),
                                 .micro_batches = 1 + static_cast<int>(rng.Below(10)),
                                 .forward_ns = 1,
                                 .backward_ns = 1,
                                 .weight_ns = rng.Chance(0.7) ? 1 : 0,
                                 .latency_ns = static_cast<Nanos>(rng.Below(30)),
                                 .serial_ns = static_cast<Nanos>(rng.Below(20)),
                                 .chunks_per_device = 2,
                                 .v_shape = true});
  for (Chunk& chunk : problem.chunks) {
    chunk.forward_ns = 1 + static_cast<Nanos>(rng.Below(40));
    chunk.backward_ns = 1 + static_cast<Nanos>(rng.Below(60));
    if (chunk.weight_ns > 0) chunk.weight_ns = 1 + static_cast<Nanos>(rng.Below(30));
    chunk.activation_bytes = 1 + static_cast<int64_t>(rng.Below(9));
    chunk.weight_bytes =
        chunk.weight_ns > 0 ? static_cast<int64_t>(rng.Below(chunk.activation_bytes + 1)) : 0;
  }
  for (Device& device : problem.devices) {
    device.memory_bytes = static_cast<int64_t>(rng.Below(60));
  }
  for (const Chunk& chunk : problem.chunks) {  // at least one micro-batch fits
    problem.devices[chunk.device].memory_bytes += chunk.activation_bytes;
  }
  REQUIRE(Validate(problem).ok());
  return problem;
}

Result Play(const Problem& problem, const Schedule& schedule) {
  const auto result = Simulate(problem, schedule, {.record = true});
  INFO(result.status().ToString());
  REQUIRE(result.ok());
  return *result;
}

// Every operation once, after its inputs; devices one at a time; memory as reserved and released.
void CheckTimeline(const Result& result) {
  std::map<std::tuple<int, int, OpKind>, OpSpan> spans;
  for (const auto& device : result.timeline) {
    Nanos free_ns = 0;
    for (const OpSpan& span : device) {
      CHECK(span.start_ns >= free_ns);
      free_ns = span.end_ns;
      if (span.op.kind == OpKind::kOptimizer) continue;
      CHECK(spans.try_emplace({span.op.chunk, span.op.micro_batch, span.op.kind}, span).second);
    }
  }
  for (const MessageSpan& message : result.messages) {
    const OpKind kind = message.forward ? OpKind::kForward : OpKind::kBackward;
    const int to = message.chunk + (message.forward ? 1 : -1);
    CHECK(message.ready_ns >= spans.at({message.chunk, message.micro_batch, kind}).end_ns);
    CHECK(message.start_ns >= message.ready_ns);
    CHECK(message.sent_ns >= message.start_ns);
    CHECK(message.arrive_ns >= message.sent_ns);
    CHECK(spans.at({to, message.micro_batch, kind}).start_ns >= message.arrive_ns);
  }
  for (const auto& [key, span] : spans) {
    const auto& [chunk, micro_batch, kind] = key;
    if (kind == OpKind::kForward) continue;
    const OpKind before = kind == OpKind::kBackward ? OpKind::kForward : OpKind::kBackward;
    CHECK(span.start_ns >= spans.at({chunk, micro_batch, before}).end_ns);
  }
}

// On a link of one edge, and on a lane or a trunk, transfers follow one another.
void CheckExclusive(const Problem& problem, const Result& result) {
  std::map<std::pair<char, int>, std::vector<std::pair<Nanos, Nanos>>> uses;
  for (const MessageSpan& message : result.messages) {
    const Link& link = problem.network.links[message.link];
    if (link.edges.size() > 1) continue;
    const auto use = std::pair(message.start_ns, message.sent_ns);
    uses[{'l', message.link}].push_back(use);
    if (link.lane >= 0) uses[{'n', link.lane}].push_back(use);
    for (const int t : link.edges[0].trunks) uses[{'t', t}].push_back(use);
  }
  for (auto& [what, list] : uses) {
    std::sort(list.begin(), list.end());
    for (size_t i = 1; i < list.size(); ++i) {
      INFO(what.first << what.second);
      CHECK(list[i].first >= list[i - 1].second);
    }
  }
}

TEST_CASE("Any problem: inputs first, one thing at a time, never below the bound, repeatable") {
  const uint64_t seed = GENERATE(range(0, 300));
  INFO("seed " << seed);
  const Problem problem = RandomProblem(seed);
  const Found greedy = Greedy(problem, {});
  REQUIRE(greedy.result.verdict == Verdict::kFits);
  REQUIRE(Validate(problem, greedy.schedule).ok());
  const Bound bound = MakespanBound(problem);
  INFO("bound by " << bound.reason);
  CHECK(greedy.result.makespan_ns >= bound.time_ns);
  for (const Schedule& schedule :
       {greedy.schedule, GPipe(problem), *OneForwardOneBackward(problem)}) {
    const Result result = Play(problem, schedule);
    REQUIRE(result.verdict != Verdict::kStuck);
    CheckTimeline(result);
    CheckExclusive(problem, result);
    if (result.verdict == Verdict::kFits) {
      CHECK(result.makespan_ns >= bound.time_ns);
      CHECK(result.period_ns >= PeriodBound(problem).time_ns);
    }
    const Result again = Play(problem, schedule);
    CHECK(again.makespan_ns == result.makespan_ns);
    CHECK(again.events == result.events);
  }
  for (size_t d = 0; d < problem.devices.size(); ++d) {
    CHECK(greedy.result.devices[d].peak_bytes <= problem.devices[d].memory_bytes);
  }
}

TEST_CASE("Any V: no schedule blocks itself, nor exceeds memory, nor beats the bound") {
  const uint64_t seed = GENERATE(range(0, 200));
  INFO("seed " << seed);
  const Problem problem = RandomV(seed);
  const Bound bound = MakespanBound(problem);
  using Prefer = GreedyPolicy::Prefer;
  for (const Prefer prefer : {Prefer::kBackward, Prefer::kForward, Prefer::kWarmForward}) {
    GreedyPolicy policy{.prefer = prefer};
    const Found greedy = Greedy(problem, policy);
    REQUIRE(greedy.result.verdict == Verdict::kFits);
    const Result result = Play(problem, greedy.schedule);
    CheckTimeline(result);
    CheckExclusive(problem, result);
    CHECK(result.verdict == Verdict::kFits);
    INFO("bound by " << bound.reason);
    CHECK(result.makespan_ns >= bound.time_ns);
    CHECK(result.period_ns >= PeriodBound(problem).time_ns);
    const Nanos end_ns = greedy.result.makespan_ns;
    CHECK(Greedy(problem, policy, end_ns).result.makespan_ns == end_ns);
    CHECK(Greedy(problem, policy, end_ns - 1).result.verdict == Verdict::kStopped);
  }
  const auto found = ScheduleByName(problem, "best", {.restarts = 30});
  REQUIRE(found.ok());
  CHECK(found->result.makespan_ns >= bound.time_ns);
  CHECK(found->result.makespan_ns <= Greedy(problem, {}).result.makespan_ns);
  CHECK(Play(problem, found->schedule).makespan_ns <= found->result.makespan_ns);
}

// Returns the bytes that a device's list takes in slots: every chunk as many as it ever has
// micro-batches between the start of F, of its own or of the one that writes into it, and the end
// of W.
int64_t BytesInSlots(const Problem& problem, const std::vector<Op>& ops) {
  std::map<int, std::set<int>> open;
  std::map<int, size_t> most;
  const auto start = [&](int chunk, int micro_batch) {
    open[chunk].insert(micro_batch);
    most[chunk] = std::max(most[chunk], open[chunk].size());
  };
  const int last = static_cast<int>(problem.chunks.size()) - 1;
  for (const Op& op : ops) {
    const Chunk& chunk = problem.chunks[op.chunk];
    if (op.kind == OpKind::kForward) {
      start(op.chunk, op.micro_batch);
      if (op.chunk < last && problem.chunks[op.chunk + 1].device == chunk.device) {
        start(op.chunk + 1, op.micro_batch);
      }
    } else if (op.kind == (IsSplit(chunk) ? OpKind::kWeight : OpKind::kBackward)) {
      open[op.chunk].erase(op.micro_batch);
    }
  }
  int64_t bytes = 0;
  for (const auto& [chunk, count] : most) {
    bytes += static_cast<int64_t>(count) * problem.chunks[chunk].activation_bytes;
  }
  return bytes;
}

TEST_CASE("Memory in slots: what a list takes is what was reserved for it, and W goes in turn") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Problem problem = RandomV(seed);
    problem.fixed_slots = true;
    const auto found = Search(problem, {.restarts = 20, .seed = seed});
    REQUIRE(found.ok());
    REQUIRE(found->result.verdict == Verdict::kFits);
    for (size_t d = 0; d < problem.devices.size(); ++d) {
      const std::vector<Op>& ops = found->schedule.device_ops[d];
      CHECK(BytesInSlots(problem, ops) == found->result.devices[d].peak_bytes);
      CHECK(found->result.devices[d].peak_bytes <= problem.devices[d].memory_bytes);
      std::map<int, int> next;
      for (const Op& op : ops) {
        if (op.kind == OpKind::kWeight) CHECK(op.micro_batch == next[op.chunk]++);
      }
    }
  }
}

TEST_CASE("with_measured_times_by_size_no_schedule_beats_the_bound_and_links_stay_exclusive") {
  const uint64_t seed = GENERATE(range(0, 200));
  INFO("seed " << seed);
  Problem problem = RandomProblem(seed);
  Rng rng(seed + 1000);
  for (Link& link : problem.network.links) {
    for (Edge& edge : link.edges) {
      if (rng.Chance(0.3)) continue;
      std::vector<MessageTime> times = {{0, edge.latency_ns}};
      for (uint64_t rows = 1 + rng.Below(3); rows > 0; --rows) {
        const MessageTime before = times.back();
        times.push_back({before.bytes + 1 + static_cast<int64_t>(rng.Below(20)),
                         before.time_ns + 1 + static_cast<int64_t>(rng.Below(40))});
      }
      times.erase(times.begin());
      const auto curve =
          SizeCurve::Make(times, static_cast<double>(edge.latency_ns) * 1e-9, edge.bytes_per_s);
      REQUIRE(curve.ok());
      edge.sizes = *curve;
    }
  }
  REQUIRE(Validate(problem).ok());
  const Bound bound = MakespanBound(problem);
  INFO("bound by " << bound.reason);
  const Found greedy = Greedy(problem, {});
  CHECK(greedy.result.makespan_ns >= bound.time_ns);
  for (const Schedule& schedule : {greedy.schedule, *OneForwardOneBackward(problem)}) {
    const Result result = Play(problem, schedule);
    REQUIRE(result.verdict != Verdict::kStuck);
    CheckTimeline(result);
    CheckExclusive(problem, result);
    if (result.verdict != Verdict::kFits) continue;
    CHECK(result.makespan_ns >= bound.time_ns);
    CHECK(result.period_ns >= PeriodBound(problem).time_ns);
  }
}

TEST_CASE("A recorded greedy schedule, played back, is as fast or faster") {
  const uint64_t seed = GENERATE(range(0, 200));
  INFO("seed " << seed);
  Problem problem = RandomProblem(seed);
  // Round-robin lanes and shared trunks may serve the same messages in another order; without them
  // the played order is the recorded one exactly.
  problem.network.lanes = 0;
  for (Link& link : problem.network.links) {
    link.lane = -1;
    for (Edge& edge : link.edges) edge.trunks.clear();
  }
  const Found greedy = Greedy(problem, {});
  CHECK(Play(problem, greedy.schedule).makespan_ns <= greedy.result.makespan_ns);
}

TEST_CASE("With infinite bandwidth and no latency, several sites equal one") {
  const uint64_t seed = GENERATE(range(0, 100));
  INFO("seed " << seed);
  Problem far = RandomProblem(seed);
  for (Link& link : far.network.links) link = {{Edge{0, 1e30, {}, -1}}};
  Problem near = far;
  for (Chunk& chunk : near.chunks) chunk.forward_link = chunk.backward_link = kNoLink;
  const Schedule schedule = *OneForwardOneBackward(far);
  CHECK(Play(far, schedule).makespan_ns == Play(near, schedule).makespan_ns);
}

TEST_CASE("Searching is never worse than plain greedy, and never over memory") {
  const uint64_t seed = GENERATE(range(0, 60));
  INFO("seed " << seed);
  const Problem problem = RandomProblem(seed);
  const Found greedy = Greedy(problem, {});
  const auto found = Search(problem, {.restarts = 80, .seed = seed});
  REQUIRE(found.ok());
  CHECK(found->result.makespan_ns <= greedy.result.makespan_ns);
  CHECK(found->result.makespan_ns >= MakespanBound(problem).time_ns);
  CHECK(Validate(problem, found->schedule).ok());
  const auto again = Search(problem, {.restarts = 80, .seed = seed});
  CHECK(again->schedule.device_ops == found->schedule.device_ops);
}

TEST_CASE("A micro-batch that does not fit is said to be stuck, not run") {
  Problem problem =
      MakeUniform({.stages = 2, .micro_batches = 2, .forward_ns = 1, .backward_ns = 1});
  problem.devices[1].memory_bytes = 10;
  const auto found = Search(problem, {});
  CHECK_FALSE(found.ok());
  CHECK_THAT(std::string(found.status().message()), Catch::Contains("no schedule fits"));
}

}  // namespace
}  // namespace atl::sim

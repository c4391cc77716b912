#include "bench/planner/rounds.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "bench/measure.h"
#include "coordinator/simulator/rounds.h"
#include "coordinator/simulator/testing/star.h"

namespace atl::bench {
namespace {

constexpr sim::Nanos kSecond = 1'000'000'000;
constexpr int kSteps = 64;
constexpr sim::Nanos kStep = kSecond;

// Islands that need `delays` more time per step, two servers, every card as fast as another. Alone,
// an island's push and pull take `exchange` of the time of its steps.
sim::RoundsProblem Setting(const std::vector<double>& delays, double exchange) {
  sim::RoundsProblem problem;
  for (const double delay : delays) {
    const auto step = static_cast<sim::Nanos>(static_cast<double>(kStep) * (1 + delay));
    problem.islands.push_back({step, 1, {}, {}, {}});
  }
  constexpr double kBytesPerSecond = 1.25e9;
  const double bytes = exchange * kSteps * kBytesPerSecond / 2;
  const auto shard = static_cast<int64_t>(bytes / 2);
  problem.servers.assign(2, {shard, shard, 1e18, 1e18});
  problem.steps_per_round = kSteps;
  problem.control_ns = kSecond / 100;
  problem.until_ns = 200 * kSteps * kStep;
  sim::JoinInStar({std::vector<double>(delays.size(), kBytesPerSecond),
                   std::vector<double>(2, kBytesPerSecond), kSecond / 100},
                  problem);
  return problem;
}

double Efficiency(sim::RoundsProblem problem, bool all, sim::Overlap overlap) {
  problem.wait_for_all = all;
  problem.overlap = overlap;
  return sim::SimulateRounds(problem, false)->efficiency;
}

}  // namespace

void PrintRounds() {
  std::printf(
      "\nOuter rounds of 64 steps, simulated: tokens over those of islands that only train\n"
      "(alone, one island's push and pull take the given share of the time of its steps)\n"
      "%22s %9s | %11s %11s %11s\n",
      "islands", "exchange", "synchronous", "asynchron.", "carried on");
  double carried = 1;
  for (const double exchange : {0.01, 0.05, 0.2}) {
    for (const int islands : {1, 2, 4, 8, 16}) {
      const sim::RoundsProblem equal = Setting(std::vector<double>(islands, 0.0), exchange);
      const double carry = Efficiency(equal, false, sim::Overlap::kCarry);
      std::printf("%14d, equal %8.0f%% | %11.3f %11.3f %11.3f\n", islands, 100 * exchange,
                  Efficiency(equal, true, sim::Overlap::kNone),
                  Efficiency(equal, false, sim::Overlap::kNone), carry);
      if (exchange <= 0.05) carried = std::min(carried, carry);
    }
  }
  const std::vector<double> delays = {0, 0.16, 0.33, 0.5};
  const sim::RoundsProblem uneven = Setting(delays, 0);
  const double synchronous = Efficiency(uneven, true, sim::Overlap::kNone);
  const double asynchronous = Efficiency(uneven, false, sim::Overlap::kNone);
  std::printf("%22s %8.0f%% | %11.3f %11.3f %11.3f\n", "delays 0/16/33/50%", 0.0, synchronous,
              asynchronous, Efficiency(uneven, false, sim::Overlap::kCarry));
  PrintFigureAtLeast("asynchronous_speedup", asynchronous / synchronous, "ratio", 1.22);
  PrintFigureAtLeast("weak_scaling_carried_on_16", 100 * carried, "%", 98.6);
}

}  // namespace atl::bench

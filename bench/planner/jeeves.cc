#include "bench/planner/jeeves.h"

#include <cmath>
#include <vector>

#include "coordinator/planner/balance.h"
#include "coordinator/simulator/bounds.h"
#include "coordinator/simulator/schedules.h"
#include "coordinator/simulator/search.h"

namespace atl::bench {
namespace {

constexpr int kStages = 8;
constexpr int kReplicas = 64;
constexpr int kMicroBatches = 32;
constexpr double kLayerForwardMs = 28.3 / 3 / 12;
constexpr double kShareMs = 7.76;  // one activation over 1/64 of 1 Tbit/s
constexpr int64_t kLayerBytes = 1 << 20;

sim::Nanos Ms(double ms) { return static_cast<sim::Nanos>(std::llround(ms * 1e6)); }

// `coordinated`: all replicas, one lane per direction at full speed. Otherwise one replica on its
// fair share, which is the same for all.
sim::Problem Build(const JeevesCase& c, const std::vector<int>& layers, bool coordinated) {
  sim::Problem problem;
  const int replicas = coordinated ? kReplicas : 1;
  const double serial_ms = kShareMs / c.tbit_per_s / (coordinated ? kReplicas : 1);
  if (coordinated)
    problem.network.lanes = {{sim::LaneOrder::kRoundRobin}, {sim::LaneOrder::kRoundRobin}};
  for (int r = 0; r < replicas; ++r) {
    for (int s = 0; s < kStages; ++s) {
      sim::Chunk chunk;
      chunk.device = r * kStages + s;
      chunk.forward_ns = Ms(layers[s] * kLayerForwardMs);
      chunk.backward_ns = Ms(2 * layers[s] * kLayerForwardMs);
      chunk.activation_bytes = layers[s] * kLayerBytes;
      if (s == kStages / 2 - 1) {
        for (int* link : {&chunk.forward_link, &chunk.backward_link}) {
          *link = static_cast<int>(problem.network.links.size());
          problem.network.links.push_back({{sim::Edge{Ms(c.latency_ms), 1e9, {}, -1}}});
          if (coordinated) problem.network.links.back().lane = link == &chunk.forward_link ? 0 : 1;
        }
        chunk.forward_bytes = chunk.backward_bytes = Ms(serial_ms);  // 1 byte per ns
      }
      problem.chunks.push_back(chunk);
      problem.devices.push_back({c.slots * 12 * kLayerBytes});
    }
    problem.pipelines.push_back({r * kStages, kStages, kMicroBatches, r});
  }
  return problem;
}

double MsOf(const sim::Found& found) {
  return static_cast<double>(found.result.makespan_ns) * 1e-6;
}

std::vector<int> MemoryAware(const JeevesCase& c, double transfer_ms) {
  plan::DivisionProblem division;
  division.layers = 96;
  division.memory_layers.assign(kStages, c.slots * 12);
  division.micro_batches = kMicroBatches;
  division.forward_s = kLayerForwardMs;
  division.backward_s = 2 * kLayerForwardMs;
  division.transfer_s.assign(kStages - 1, 0);
  division.transfer_s[kStages / 2 - 1] = transfer_ms;
  return plan::DivideLayers(division);
}

// Moves layers between stages while the simulated step of one replica gets shorter. That replica
// stands for the last one in turn, which waits for all others' first message.
std::vector<int> Climb(const JeevesCase& c, std::vector<int> best) {
  const auto value = [&](const std::vector<int>& layers) {
    sim::Problem problem = Build(c, layers, false);
    const auto found = sim::Search(problem, {.restarts = 40});
    return found.ok() ? MsOf(*found) : INFINITY;
  };
  double best_ms = value(best);
  for (bool better = true; better;) {
    better = false;
    for (int from = 0; from < kStages; ++from) {
      for (int to = 0; to < kStages; ++to) {
        if (from == to || best[from] < 2) continue;
        std::vector<int> tried = best;
        --tried[from];
        ++tried[to];
        const double tried_ms = value(tried);
        if (tried_ms >= best_ms) continue;
        best = std::move(tried);
        best_ms = tried_ms;
        better = true;
      }
    }
  }
  return best;
}

}  // namespace

JeevesTimes PlayJeeves(const JeevesCase& c) {
  const std::vector<int> uniform(kStages, 12);
  JeevesTimes times;
  JeevesCase near = c;
  near.latency_ms = 0;
  near.tbit_per_s = 1e9;
  // 1F1B has its own idea of memory: it takes 8 slots whatever there is.
  near.slots = 8;
  const sim::Problem intra = Build(near, uniform, false);
  times.intra_ms = MsOf(*sim::ScheduleByName(intra, "1f1b", {}));
  JeevesCase roomy = c;
  roomy.slots = 8;
  const sim::Problem dapple = Build(roomy, uniform, false);
  times.dapple_ms = MsOf(*sim::ScheduleByName(dapple, "1f1b", {}));

  const double full_ms = kShareMs / c.tbit_per_s / kReplicas;
  const std::vector<int> division = MemoryAware(c, c.latency_ms + full_ms);
  times.jeeves_ms = MsOf(sim::Greedy(Build(c, division, true), {}));
  JeevesCase overrun = c;
  ++overrun.slots;
  times.overrun_ms = MsOf(sim::Greedy(Build(overrun, division, true), {}));

  times.ours_ms = INFINITY;
  for (const std::vector<int>& layers : {division, Climb(c, uniform), Climb(c, division)}) {
    const sim::Problem problem = Build(c, layers, true);
    const auto found = sim::Search(problem, {.restarts = 40});
    if (!found.ok() || MsOf(*found) >= times.ours_ms) continue;
    times.ours_ms = MsOf(*found);
    times.bound_ms = static_cast<double>(sim::MakespanBound(problem).time_ns) * 1e-6;
    times.layers = layers;
  }
  return times;
}

}  // namespace atl::bench

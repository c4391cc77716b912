#include "bench/planner/division.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"

namespace atl::bench {

double DivisionSeconds(const DivisionProblem& problem, const std::vector<int>& layers_of_stage) {
  const int p = static_cast<int>(layers_of_stage.size());
  const double per_layer = problem.forward_s + problem.backward_s;
  double slowest = 0;
  double through = 0;
  for (int s = 0; s < p; ++s) {
    slowest = std::max(slowest, layers_of_stage[s] * per_layer);
    through += layers_of_stage[s] * per_layer;
  }
  double round_trip = through;  // from stage s on
  for (const double c : problem.transfer_s) round_trip += 2 * c;
  double before = 0;
  double ideal = 0;
  double extra = 0;
  for (int s = 0; s < p; ++s) {
    const double work = layers_of_stage[s] * per_layer;
    ideal = std::max(ideal, before + problem.micro_batches * work);
    const int64_t slots =
        layers_of_stage[s] == 0 ? INT32_MAX : problem.memory_layers[s] / layers_of_stage[s];
    if (slots == 0) return INFINITY;
    const double rounds =
        std::ceil(static_cast<double>(problem.micro_batches) / static_cast<double>(slots)) - 1;
    extra =
        std::max(extra, rounds * std::max(0.0, round_trip - static_cast<double>(slots) * slowest));
    const double c = s + 1 < p ? problem.transfer_s[s] : 0;
    before += work + 2 * c;
    round_trip -= work + 2 * c;
  }
  return ideal + extra;
}

namespace {

// Steepest descent from `best`.
double Descend(const DivisionProblem& problem, std::vector<int>& best) {
  const int p = static_cast<int>(best.size());
  double best_s = DivisionSeconds(problem, best);
  // Every round improves or ends; the bound only guards against cycles of rounding.
  for (int round = 0; round < 1000; ++round) {
    std::vector<int> next = best;
    double next_s = best_s;
    for (int from = 0; from < p; ++from) {
      for (int to = 0; to < p; ++to) {
        for (const int moved : {1, 2}) {
          if (from == to || best[from] < moved) continue;
          std::vector<int> tried = best;
          tried[from] -= moved;
          tried[to] += moved;
          const double tried_s = DivisionSeconds(problem, tried);
          if (!(tried_s < next_s)) continue;
          next_s = tried_s;
          next = std::move(tried);
        }
      }
    }
    if (!(next_s < best_s)) break;
    best = std::move(next);
    best_s = next_s;
  }
  return best_s;
}

}  // namespace

std::vector<int> DivideLayers(const DivisionProblem& problem) {
  const int p = static_cast<int>(problem.memory_layers.size());
  ATOLL_CHECK(p >= 1 && problem.transfer_s.size() + 1 == problem.memory_layers.size());
  std::vector<int> best(p, problem.layers / p);
  for (int s = 0; s < problem.layers % p; ++s) ++best[p - 1 - s];
  double best_s = Descend(problem, best);
  for (int front = 1; front < p; ++front) {
    for (int each = problem.layers / p; each >= 1; --each) {
      std::vector<int> start(p, each);
      const int rest = problem.layers - front * each;
      for (int s = front; s < p; ++s) {
        start[s] = rest / (p - front) + (s >= p - rest % (p - front) ? 1 : 0);
      }
      const double start_s = Descend(problem, start);
      if (!(start_s < best_s)) continue;
      best = std::move(start);
      best_s = start_s;
    }
  }
  return best;
}

}  // namespace atl::bench

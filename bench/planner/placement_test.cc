#include "bench/planner/placement.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <vector>

#include "common/rng.h"

namespace atl::plan {
namespace {

using sim::Nanos;

sim::Link MakeSimLink(Nanos latency_ns, double bytes_per_ns) {
  return {{sim::Edge{latency_ns, bytes_per_ns * 1e9, {}, -1}}};
}

PlacementProblem RandomProblem(uint64_t seed) {
  Rng rng(seed);
  PlacementProblem problem;
  const int devices = 2 + static_cast<int>(rng.Below(2));
  const int ops = 2 + static_cast<int>(rng.Below(4));
  const int models = 1 + static_cast<int>(rng.Below(2));
  for (int m = 0; m < models; ++m) problem.weights.push_back(0.5 + rng.Uniform());
  problem.memory_bytes.assign(devices, rng.Chance(0.3) ? 40 : 1000);
  for (int i = 0; i < ops; ++i) {
    Operator op;
    for (int d = 0; d < devices; ++d) op.time_ns.push_back(1 + static_cast<Nanos>(rng.Below(20)));
    for (int j = 0; j < i; ++j) {
      if (rng.Chance(0.4)) op.inputs.push_back(j);
    }
    op.result_bytes = static_cast<int64_t>(rng.Below(15));
    op.workspace_bytes = static_cast<int64_t>(rng.Below(5));
    op.model = static_cast<int>(rng.Below(models));
    problem.operators.push_back(op);
  }
  for (int a = 0; a < devices; ++a) {
    for (int b = 0; b < devices; ++b) {
      if (a != b) problem.links[{a, b}] = MakeSimLink(static_cast<Nanos>(rng.Below(6)), 1);
    }
  }
  return problem;
}

// Tries every order and device by plain recursion. Links have one edge of one byte per ns.
class BruteForce {
 public:
  explicit BruteForce(const PlacementProblem& problem) : problem_(problem) {
    const size_t n = problem.operators.size();
    device_.assign(n, -1);
    end_.assign(n, 0);
    free_.assign(problem.memory_bytes.size(), 0);
    Go(0);
  }
  double best() const { return best_; }

 private:
  void Go(size_t placed) {
    if (placed == device_.size()) {
      std::vector<Nanos> ends(problem_.weights.size(), 0);
      double cost = 0;
      for (size_t i = 0; i < device_.size(); ++i) {
        Nanos& end = ends[problem_.operators[i].model];
        end = std::max(end, end_[i]);
      }
      for (size_t m = 0; m < ends.size(); ++m) {
        cost += problem_.weights[m] * static_cast<double>(ends[m]);
      }
      best_ = std::min(best_, cost);
      return;
    }
    for (size_t i = 0; i < device_.size(); ++i) {
      const Operator& op = problem_.operators[i];
      const auto placed_input = [&](int input) { return device_[input] >= 0; };
      if (device_[i] >= 0 || !std::all_of(op.inputs.begin(), op.inputs.end(), placed_input)) {
        continue;
      }
      for (size_t d = 0; d < free_.size(); ++d) Try(i, static_cast<int>(d), placed);
    }
  }

  void Try(size_t i, int d, size_t placed) {
    const Operator& op = problem_.operators[i];
    const auto links = link_free_;
    const auto free = free_;
    Nanos start = free_[d];
    for (const int input : op.inputs) {
      Nanos there = end_[input];
      if (device_[input] != d) {
        Nanos& link = link_free_[{device_[input], d}];
        const Nanos latency = problem_.links.at({device_[input], d}).edges[0].latency_ns;
        const int64_t bytes = problem_.operators[input].result_bytes;
        const Nanos begin = std::max(link, there);
        if (bytes > 0) link = begin + bytes;
        there = begin + bytes + latency;
      }
      start = std::max(start, there);
    }
    if (Bytes(i, d, start) <= problem_.memory_bytes[d]) {
      device_[i] = d;
      end_[i] = free_[d] = start + op.time_ns[d];
      Go(placed + 1);
      device_[i] = -1;
    }
    link_free_ = links;
    free_ = free;
  }

  int64_t Bytes(size_t i, int d, Nanos start) const {
    const Operator& op = problem_.operators[i];
    int64_t bytes = op.workspace_bytes + op.result_bytes;
    for (const int input : op.inputs) {
      if (device_[input] != d) bytes += problem_.operators[input].result_bytes;
    }
    for (size_t j = 0; j < device_.size(); ++j) {
      if (device_[j] != d) continue;
      bool wanted = false;
      bool consumed = false;
      for (size_t c = 0; c < device_.size(); ++c) {
        const auto& inputs = problem_.operators[c].inputs;
        if (std::count(inputs.begin(), inputs.end(), static_cast<int>(j)) == 0) continue;
        consumed = true;
        wanted = wanted || device_[c] < 0 || end_[c] > start;
      }
      if (wanted || !consumed) bytes += problem_.operators[j].result_bytes;
    }
    return bytes;
  }

  const PlacementProblem& problem_;
  std::vector<int> device_;
  std::vector<Nanos> end_;
  std::vector<Nanos> free_;
  std::map<std::pair<int, int>, Nanos> link_free_;
  double best_ = INFINITY;
};

TEST_CASE("Branch and bound finds the best of all placements") {
  const uint64_t seed = GENERATE(range(0, 150));
  INFO("seed " << seed);
  const PlacementProblem problem = RandomProblem(seed);
  const double best = BruteForce(problem).best();
  const auto found = PlaceOptimally(problem, {.max_nodes = 1'000'000});
  CHECK(found.ok() == std::isfinite(best));
  if (!found.ok()) return;
  CHECK(found->optimal);
  CHECK(found->cost_ns == Approx(best));
  const auto greedy = PlaceGreedily(problem);
  if (greedy.ok()) CHECK(greedy->cost_ns >= found->cost_ns * (1 - 1e-12));
}

TEST_CASE("Ended early, it keeps its best and an honest bound") {
  Rng rng(1);
  PlacementProblem problem;
  problem.weights = {1};
  problem.memory_bytes.assign(3, 1 << 20);
  for (int i = 0; i < 16; ++i) {
    Operator op;
    for (int d = 0; d < 3; ++d) op.time_ns.push_back(5 + static_cast<Nanos>(rng.Below(30)));
    for (int j = std::max(0, i - 4); j < i; ++j) {
      if (rng.Chance(0.4)) op.inputs.push_back(j);
    }
    op.result_bytes = 10;
    problem.operators.push_back(op);
  }
  for (int a = 0; a < 3; ++a) {
    for (int b = 0; b < 3; ++b) {
      if (a != b) problem.links[{a, b}] = MakeSimLink(2, 1);
    }
  }
  const auto greedy = PlaceGreedily(problem);
  const auto early = PlaceOptimally(problem, {.max_nodes = 50});
  const auto late = PlaceOptimally(problem, {.max_nodes = 20'000});
  REQUIRE((greedy.ok() && early.ok() && late.ok()));
  CHECK(early->cost_ns <= greedy->cost_ns);
  CHECK(late->cost_ns <= early->cost_ns);
  CHECK(early->bound_ns <= late->bound_ns);
  CHECK(late->bound_ns <= late->cost_ns);
  bool stopped = false;
  CHECK(PlaceOptimally(problem, {.stop = [&] { return stopped = true; }})->nodes == 0);
  CHECK(stopped);
}

TEST_CASE("Any number of workers finds the same placement") {
  const uint64_t seed = GENERATE(range(0, 20));
  INFO("seed " << seed);
  const PlacementProblem problem = RandomProblem(seed);
  const auto alone = PlaceOptimally(problem, {});
  for (const int workers : {2, 5}) {
    ThreadPool pool(workers);
    PlacementOptions options;
    options.pool = &pool;
    const auto together = PlaceOptimally(problem, options);
    REQUIRE(together.ok() == alone.ok());
    if (!alone.ok()) continue;
    CHECK(together->cost_ns == alone->cost_ns);
    CHECK(together->nodes == alone->nodes);
    for (size_t i = 0; i < alone->order.size(); ++i) {
      CHECK(together->order[i].op == alone->order[i].op);
      CHECK(together->order[i].device == alone->order[i].device);
      CHECK(together->order[i].start_ns == alone->order[i].start_ns);
    }
  }
}

// One operator feeds another that only a second device runs.
double ChainOver(const sim::Link& link) {
  PlacementProblem problem;
  problem.weights = {1};
  problem.memory_bytes.assign(2, 1 << 20);
  problem.operators = {{{10, -1}, {}, 600, 0, 0}, {{-1, 10}, {0}, 0, 0, 0}};
  problem.links[{0, 1}] = link;
  return PlaceOptimally(problem, {.max_nodes = 1000})->cost_ns;
}

TEST_CASE("A second edge shortens a transfer, unless it excludes the first") {
  const sim::Edge fast{0, 2e9, {}, 1};
  CHECK(ChainOver({{fast}}) == 10 + 300 + 10);
  CHECK(ChainOver({{fast, sim::Edge{0, 1e9, {}, -1}}}) == 10 + 200 + 10);
  CHECK(ChainOver({{fast, sim::Edge{0, 1e9, {}, 1}}}) == 10 + 300 + 10);
}

TEST_CASE("What fits nowhere is refused by name") {
  PlacementProblem problem;
  problem.weights = {1};
  problem.memory_bytes = {100};
  problem.operators = {{{1}, {}, 10, 0, 0}, {{1}, {0}, 10, 200, 0}};
  const auto found = PlaceOptimally(problem, {.max_nodes = 1000});
  CHECK_THAT(std::string(found.status().message()), Catch::Contains("operator 1"));
  problem.operators[1].inputs = {5};
  CHECK_FALSE(PlaceOptimally(problem, {.max_nodes = 1000}).ok());
}

}  // namespace
}  // namespace atl::plan

// Small problems solved exactly by make_exact_optima.py, kept here as expected values.

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "coordinator/simulator/bounds.h"
#include "coordinator/simulator/search.h"
#include "coordinator/simulator/testing/uniform.h"

namespace atl::sim {
namespace {

struct Stage {
  Nanos forward, backward, weight;
};

struct Case {
  std::vector<Stage> stages;
  int m;
  Nanos c;
  int slots;
  Nanos optimum;
};

const std::vector<Case>& Cases() {
  static const auto* cases = new std::vector<Case>{
      {{{9, 8, 0}, {12, 19, 0}}, 6, 12, 4, 227},
      {{{11, 18, 12}, {5, 19, 7}}, 4, 1, 4, 164},
      {{{13, 5, 9}, {13, 5, 9}}, 5, 0, 5, 148},
      {{{10, 12, 0}, {15, 12, 0}}, 5, 12, 3, 181},
      {{{15, 8, 0}, {7, 14, 0}}, 5, 0, 3, 128},
      {{{8, 14, 0}, {9, 20, 0}, {13, 17, 0}, {14, 6, 0}}, 5, 12, 4, 346},
      {{{13, 16, 4}, {13, 16, 4}, {13, 16, 4}, {13, 16, 4}}, 5, 0, 5, 236},
      {{{8, 5, 0}, {8, 5, 0}, {8, 5, 0}, {8, 5, 0}}, 5, 12, 5, 176},
      {{{13, 9, 11}, {13, 11, 9}, {5, 20, 8}, {14, 11, 11}}, 4, 12, 8, 254},
      {{{14, 15, 10}, {14, 5, 6}, {15, 10, 11}}, 5, 25, 3, 405},
      {{{9, 6, 0}, {15, 7, 0}}, 6, 0, 2, 147},
      {{{9, 8, 0}, {9, 8, 0}, {9, 8, 0}}, 4, 0, 3, 102},
      {{{9, 14, 0}, {9, 14, 0}}, 5, 12, 4, 162},
      {{{8, 13, 4}, {8, 13, 4}}, 4, 12, 2, 165},
      {{{7, 19, 11}, {7, 19, 11}}, 4, 1, 4, 156},
      {{{15, 15, 0}, {15, 15, 0}, {15, 15, 0}}, 4, 1, 3, 188},
      {{{9, 10, 9}, {9, 10, 9}}, 5, 0, 5, 149},
      {{{14, 19, 0}, {7, 6, 0}}, 6, 12, 2, 243},
      {{{11, 11, 10}, {6, 17, 7}, {13, 20, 3}}, 4, 4, 4, 203},
      {{{10, 9, 8}, {10, 9, 8}, {10, 9, 8}}, 5, 25, 4, 330},
      {{{6, 6, 0}, {6, 9, 0}, {7, 10, 0}, {13, 11, 0}}, 5, 4, 5, 188},
      {{{9, 12, 12}, {9, 12, 12}, {9, 12, 12}, {9, 12, 12}}, 5, 12, 4, 336},
      {{{11, 7, 12}, {13, 12, 12}}, 5, 0, 3, 196},
      {{{12, 13, 0}, {6, 6, 0}, {9, 5, 0}}, 5, 25, 3, 327},
      {{{5, 11, 6}, {14, 18, 5}}, 5, 0, 4, 190},
      {{{6, 18, 9}, {13, 14, 11}}, 6, 4, 4, 238},
      {{{5, 5, 7}, {5, 5, 7}, {5, 5, 7}}, 4, 0, 3, 78},
      {{{8, 20, 0}, {8, 20, 0}, {8, 20, 0}}, 6, 25, 3, 424},
      {{{9, 7, 10}, {9, 7, 10}, {9, 7, 10}}, 4, 4, 3, 148},
      {{{10, 8, 0}, {10, 8, 0}, {10, 8, 0}}, 6, 0, 3, 144},
      {{{6, 5, 3}, {9, 16, 10}, {12, 9, 4}}, 4, 25, 4, 223},
      {{{7, 9, 0}, {7, 9, 0}}, 6, 0, 6, 112},
      {{{13, 6, 8}, {13, 6, 8}, {13, 6, 8}, {13, 6, 8}}, 5, 4, 4, 216},
      {{{13, 19, 0}, {13, 19, 0}, {5, 17, 0}, {10, 10, 0}}, 5, 4, 8, 212},
      {{{5, 6, 0}, {10, 9, 0}}, 6, 25, 2, 259},
      {{{14, 17, 0}, {14, 17, 0}}, 5, 1, 4, 188},
      {{{15, 19, 0}, {15, 12, 0}}, 4, 1, 3, 144},
      {{{11, 15, 11}, {11, 15, 11}, {11, 15, 11}}, 6, 4, 3, 284},
      {{{13, 16, 5}, {12, 7, 4}, {14, 17, 5}, {7, 13, 9}}, 4, 1, 4, 186},
      {{{15, 16, 9}, {15, 16, 9}, {15, 16, 9}, {15, 16, 9}}, 4, 0, 4, 226},
  };
  return *cases;
}

Problem MakeProblem(const Case& c) {
  const bool split = c.stages[0].weight > 0;
  Problem problem = MakeUniform({.stages = static_cast<int>(c.stages.size()),
                                 .micro_batches = c.m,
                                 .weight_ns = split ? 1 : 0,
                                 .latency_ns = c.c,
                                 .slots = c.slots});
  for (size_t s = 0; s < c.stages.size(); ++s) {
    problem.chunks[s].forward_ns = c.stages[s].forward;
    problem.chunks[s].backward_ns = c.stages[s].backward;
    problem.chunks[s].weight_ns = c.stages[s].weight;
  }
  return problem;
}

TEST_CASE("Bounds never exceed the optimum; searched schedules come within 2% of it") {
  double worst = 0;
  double sum = 0;
  for (size_t i = 0; i < Cases().size(); ++i) {
    const Case& c = Cases()[i];
    INFO("case " << i);
    const Problem problem = MakeProblem(c);
    CHECK(MakespanBound(problem).time_ns <= c.optimum);
    const auto found = Search(problem, {.restarts = 1200});
    REQUIRE(found.ok());
    CHECK(found->result.makespan_ns >= c.optimum);
    const double ratio =
        static_cast<double>(found->result.makespan_ns) / static_cast<double>(c.optimum);
    CHECK(ratio <= 1.02);
    worst = std::max(worst, ratio);
    sum += ratio;
  }
  CHECK(sum / static_cast<double>(Cases().size()) <= 1.001);
}

}  // namespace
}  // namespace atl::sim

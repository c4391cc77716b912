// Every declared operation: on every backend against the reference, bit for bit again, and the
// reference's gradients against finite differences.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "common/rng.h"
#include "kernels/reference/reference.h"
#include "kernels/testing/backends.h"
#include "kernels/testing/case_run.h"
#include "tests/catch/skip.h"

namespace atl::testing {
namespace {

constexpr uint64_t kSeed = 20261121;

// Forward and backward on fresh contents; everything written.
Contents RunCase(Backend& backend, const OpCase& op_case, bool padded,
                 DType compute = DType::kFloat32) {
  CaseRun run(backend, op_case, padded, compute);
  run.Fill(InitialContents(op_case, kSeed));
  run.Forward();
  run.Backward();
  return run.Results();
}

double LargestMagnitude(const Numbers& numbers) {
  double largest = 0;
  for (double x : numbers) largest = std::max(largest, std::abs(x));
  return largest;
}

void RequireClose(const Contents& results, const Contents& expected, double tolerance) {
  for (const auto& [name, numbers] : expected) {
    const Numbers& got = results.at(name);
    REQUIRE(got.size() == numbers.size());
    const double limit = tolerance * (LargestMagnitude(numbers) + 1e-3);
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (!(std::abs(got[i] - numbers[i]) <= limit)) {
        FAIL(name << "[" << i << "] is " << got[i] << ", not " << numbers[i]);
      }
    }
  }
}

TEST_CASE("every backend computes what the reference computes") {
  const std::unique_ptr<Backend> reference = NewReferenceBackend();
  for (const OpCase& op_case : TestCases()) {
    const Contents expected = RunCase(*reference, op_case, /*padded=*/false);
    for (const BackendUnderTest& under_test : BackendsUnderTest()) {
      auto backend = under_test.make();
      if (!backend.ok()) continue;  // named by the next case
      // bf16 keeps 8 bits: results are near, not equal.
      const double tolerance = under_test.compute == DType::kBfloat16 ? 0.05 : op_case.tolerance;
      for (bool padded : {false, true}) {
        INFO(op_case.name << " on " << under_test.name << (padded ? ", padded" : ""));
        RequireClose(RunCase(**backend, op_case, padded, under_test.compute), expected, tolerance);
      }
    }
  }
}

TEST_CASE("every backend is there to be tested") {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    auto backend = under_test.make();
    if (!backend.ok()) {
      SkipCase(absl::StrCat(under_test.name, ": ", backend.status().message()));
      continue;
    }
    REQUIRE((*backend)->Supports(under_test.compute));
  }
}

TEST_CASE("a repeated operation gives the same bits") {
  for (const OpCase& op_case : TestCases()) {
    for (const BackendUnderTest& under_test : BackendsUnderTest()) {
      auto backend = under_test.make();
      if (!backend.ok()) continue;
      INFO(op_case.name << " on " << under_test.name);
      const Contents first = RunCase(**backend, op_case, false, under_test.compute);
      REQUIRE(RunCase(**backend, op_case, false, under_test.compute) == first);
    }
  }
}

// The function whose gradient backward computes: sum over outputs y of <y, dy>.
double Loss(CaseRun& run, const OpCase& op_case, const Contents& contents) {
  run.Fill(contents);
  run.Forward();
  double loss = 0;
  for (const Arg& arg : op_case.args) {
    if (arg.role != Role::kOutput) continue;
    const Numbers y = run.Read(arg.name);
    const Numbers& dy = contents.at("d" + arg.name);
    for (size_t i = 0; i < y.size(); ++i) loss += y[i] * dy[i];
  }
  return loss;
}

// What backward added for the gradient argument, at element i.
double Gradient(const Contents& results, const Contents& before, const Arg& arg, int64_t i) {
  const double base = arg.added_to.empty() ? 0.0 : before.at(arg.added_to)[i];
  return results.at(arg.name)[i] - base;
}

TEST_CASE("the reference's gradients are the slopes of its forward operations") {
  constexpr double kStep = 1.0 / 128;
  constexpr int64_t kElements = 24;  // of each gradient, chosen at random
  const std::unique_ptr<Backend> reference = NewReferenceBackend();
  for (const OpCase& op_case : TestCases()) {
    if (!op_case.backward) continue;
    CaseRun run(*reference, op_case, /*padded=*/false);
    const Contents before = InitialContents(op_case, kSeed);
    const Contents results = RunCase(*reference, op_case, /*padded=*/false);
    Rng rng(kSeed);
    for (const Arg& arg : op_case.args) {
      if (arg.role != Role::kGradient) continue;
      const std::string input = arg.name.substr(1);
      const int64_t size = arg.rows * arg.cols;
      for (int64_t n = 0; n < std::min(size, kElements); ++n) {
        const int64_t i = size <= kElements ? n : static_cast<int64_t>(rng.Below(size));
        Contents up = before, down = before;
        up[input][i] += kStep;
        down[input][i] -= kStep;
        const double slope = (Loss(run, op_case, up) - Loss(run, op_case, down)) / (2 * kStep);
        const double gradient = Gradient(results, before, arg, i);
        const double limit = 2e-3 * (1 + std::abs(slope));
        if (!(std::abs(gradient - slope) <= limit)) {
          FAIL(op_case.name << ": " << arg.name << "[" << i << "] is " << gradient
                            << ", the slope is " << slope);
        }
      }
    }
  }
}

TEST_CASE("the CPU backend's results do not depend on its number of threads") {
  for (const OpCase& op_case : TestCases()) {
    std::vector<Contents> results;
    for (const BackendUnderTest& under_test : BackendsUnderTest()) {
      auto backend = under_test.make();
      if (!backend.ok() || (*backend)->Name() != "cpu") continue;
      results.push_back(RunCase(**backend, op_case, false));
    }
    INFO(op_case.name);
    REQUIRE(results.size() >= 2);
    for (const Contents& result : results) REQUIRE(result == results[0]);
  }
}

}  // namespace
}  // namespace atl::testing

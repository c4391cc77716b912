// Every declared operation: on every backend against the reference, bit for bit again, and the
// reference's gradients against finite differences.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/rng.h"
#include "kernels/testing/backends.h"
#include "kernels/testing/case_run.h"
#include "kernels/testing/reference/reference.h"
#include "tests/catch/skip.h"

namespace atl::testing {
namespace {

constexpr uint64_t kSeed = 20261121;

const char* Name(Gaps gaps) {
  return gaps == Gaps::kNone ? "" : gaps == Gaps::kOdd ? ", odd gaps" : ", aligned gaps";
}

// Forward and backward on fresh contents; everything written.
Contents RunCase(Backend& backend, const OpCase& op_case, Gaps gaps,
                 DType compute = DType::kFloat32) {
  CaseRun run(backend, op_case, gaps, compute);
  run.Fill(InitialContents(op_case, kSeed));
  run.Forward();
  run.Backward();
  Contents results = run.Results();
  if (!run.trouble().empty()) FAIL_CHECK(run.trouble());
  return results;
}

double LargestMagnitude(const Numbers& numbers) {
  double largest = 0;
  for (double x : numbers) largest = std::max(largest, std::abs(x));
  return largest;
}

// Returns what is wrong with results, empty for nothing: of each of them how many numbers are off,
// and the worst.
std::string Differences(const Contents& results, const Contents& expected, double tolerance) {
  std::string text;
  for (const auto& [name, numbers] : expected) {
    const Numbers& got = results.at(name);
    REQUIRE(got.size() == numbers.size());
    const double limit = tolerance * (LargestMagnitude(numbers) + 1e-3);
    size_t wrong = 0, worst = 0;
    double most = 0;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const double off = std::abs(got[i] - numbers[i]);
      if (off <= limit) continue;
      const double excess = std::isnan(off) ? std::numeric_limits<double>::infinity() : off;
      if (wrong++ == 0 || excess > most) worst = i, most = excess;
    }
    if (wrong == 0) continue;
    absl::StrAppend(&text, name, ": ", wrong, " of ", numbers.size(), " are off by more than ",
                    limit, ", most of all [", worst, "], ", got[worst], " instead of ",
                    numbers[worst], "; ");
  }
  return text;
}

// Backends that this machine has, each made once; the others are named by a case of their own.
struct Present {
  const BackendUnderTest* entry;
  std::unique_ptr<Backend> backend;
};
std::vector<Present> PresentBackends() {
  std::vector<Present> present;
  for (const BackendUnderTest& entry : BackendsUnderTest()) {
    auto backend = entry.make();
    if (backend.ok()) present.push_back({&entry, *std::move(backend)});
  }
  return present;
}

// Cases of the size that tensor cores want are for GPUs: elsewhere once, without gaps, will do.
bool TooLarge(const OpCase& op_case, const BackendUnderTest& entry) {
  return op_case.forward_flops > 4e6 && entry.name.rfind("cuda", 0) != 0;
}

bool NamedBy(const char* variable, const OpCase& op_case) {
  for (const absl::string_view begin : absl::StrSplit(variable, ',')) {
    if (absl::StartsWith(op_case.name, begin)) return true;
  }
  return false;
}

// Beginnings of cases' names, with commas: $ATOLL_EXCEPT_OPS for tools that fail on libraries'
// kernels, $ATOLL_ONLY_OPS for tools that take long.
bool LeftOut(const OpCase& op_case) {
  const char* except = std::getenv("ATOLL_EXCEPT_OPS");
  const char* only = std::getenv("ATOLL_ONLY_OPS");
  return (except != nullptr && NamedBy(except, op_case)) ||
         (only != nullptr && !NamedBy(only, op_case));
}

TEST_CASE("every backend computes what the reference computes") {
  const std::unique_ptr<Backend> reference = NewReferenceBackend();
  const std::vector<Present> backends = PresentBackends();
  for (const OpCase& op_case : TestCases()) {
    if (LeftOut(op_case)) continue;
    const Contents expected = RunCase(*reference, op_case, Gaps::kNone);
    for (const auto& [entry, backend] : backends) {
      // bf16 keeps 8 bits: results are near, not equal.
      const double tolerance = entry->compute == DType::kBfloat16 ? 0.05 : op_case.tolerance;
      for (const Gaps gaps : {Gaps::kNone, Gaps::kOdd, Gaps::kAligned}) {
        if (gaps != Gaps::kNone && TooLarge(op_case, *entry)) continue;
        INFO(op_case.name << " on " << entry->name << Name(gaps));
        const Contents results = RunCase(*backend, op_case, gaps, entry->compute);
        // One wrong operation hides no other.
        const std::string wrong = Differences(results, expected, tolerance);
        if (!wrong.empty()) FAIL_CHECK(wrong);
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
  std::vector<Present> backends = PresentBackends();
  // The emulator runs threads in one order, always the same.
  std::erase_if(backends, [](const Present& p) { return p.entry->name.starts_with("emulated"); });
  for (const OpCase& op_case : TestCases()) {
    for (const auto& [entry, backend] : backends) {
      if (TooLarge(op_case, *entry)) continue;
      INFO(op_case.name << " on " << entry->name);
      const Contents first = RunCase(*backend, op_case, Gaps::kNone, entry->compute);
      const bool same = RunCase(*backend, op_case, Gaps::kNone, entry->compute) == first;
      CHECK(same);
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

// Returns what backward added for the gradient argument, at element i.
double Gradient(const Contents& results, const Contents& before, const Arg& arg, int64_t i) {
  const double base = arg.added_to.empty() ? 0.0 : before.at(arg.added_to)[i];
  return results.at(arg.name)[i] - base;
}

TEST_CASE("the reference's gradients are the slopes of its forward operations") {
  constexpr double kStep = 1.0 / 128;
  const std::unique_ptr<Backend> reference = NewReferenceBackend();
  for (const OpCase& op_case : TestCases()) {
    if (!op_case.backward) continue;
    const int64_t most = op_case.forward_flops > 4e6 ? 2 : 8;  // elements, chosen at random
    CaseRun run(*reference, op_case, Gaps::kNone);
    const Contents before = InitialContents(op_case, kSeed);
    const Contents results = RunCase(*reference, op_case, Gaps::kNone);
    Rng rng(kSeed);
    for (const Arg& arg : op_case.args) {
      if (arg.role != Role::kGradient) continue;
      const std::string input = arg.name.substr(1);
      const int64_t size = arg.rows * arg.cols;
      for (int64_t n = 0; n < std::min(size, most); ++n) {
        const int64_t i = size <= most ? n : static_cast<int64_t>(rng.Below(size));
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

TEST_CASE("a_router_chooses_the_lowest_of_equal_experts_and_never_what_is_not_a_number") {
  constexpr int64_t kExperts = 70, kChosen = 5;
  const OpCase op_case{
      .name = "router",
      .args = {{"logits", Role::kInput, 2, kExperts},
               {"experts", Role::kOutput, 2, kChosen, Type::kInt32, nullptr, true},
               {"weights", Role::kOutput, 2, kChosen, Type::kF32}},
      .forward = [](Call& a) {
        a.Run(
            RouteForward{.logits = a["logits"], .experts = a["experts"], .weights = a["weights"]});
      }};
  for (const auto& [entry, backend] : PresentBackends()) {
    INFO(entry->name);
    CaseRun run(*backend, op_case, Gaps::kNone, entry->compute);
    Contents contents = InitialContents(op_case, kSeed);
    Numbers& logits = contents["logits"];
    std::fill(logits.begin(), logits.end(), 0.5);
    logits[69] = logits[33] = logits[34] = 2;
    logits[kExperts] = std::numeric_limits<double>::quiet_NaN();
    logits[kExperts + 2] = std::numeric_limits<double>::infinity();
    run.Fill(contents);
    run.Forward();
    CHECK(run.Read("experts") == Numbers{33, 34, 69, 0, 1, 2, 1, 3, 4, 5});
  }
}

TEST_CASE("a_router_adds_its_bias_unrounded") {
  const OpCase op_case{
      .name = "router",
      .args = {{"logits", Role::kInput, 1, 2},
               {"bias", Role::kInput, 1, 2, Type::kF32},
               {"experts", Role::kOutput, 1, 1, Type::kInt32, nullptr, true},
               {"weights", Role::kOutput, 1, 1, Type::kF32}},
      .forward = [](Call& a) {
        a.Run(RouteForward{
            {.score = RouterScore::kSigmoid}, a["logits"], a["bias"], a["experts"], a["weights"]});
      }};
  for (const auto& [entry, backend] : PresentBackends()) {
    INFO(entry->name);
    CaseRun run(*backend, op_case, Gaps::kNone, entry->compute);
    Contents contents = InitialContents(op_case, kSeed);
    contents["logits"] = {0, 0};
    contents["bias"] = {10, 10.03};  // alike in half precision
    run.Fill(contents);
    run.Forward();
    CHECK(run.Read("experts") == Numbers{1});
  }
}

// A bias makes a token's experts ones whose scores are 0 in float32.
TEST_CASE("weights_and_gradients_of_scores_of_zero_are_zero") {
  static constexpr RouterRule kRule{.score = RouterScore::kSigmoid, .normalise = true};
  const OpCase op_case{
      .name = "router",
      .args = {{"logits", Role::kInput, 1, 3},
               {"bias", Role::kInput, 1, 3, Type::kF32},
               {"experts", Role::kOutput, 1, 2, Type::kInt32, nullptr, true},
               {"weights", Role::kOutput, 1, 2, Type::kF32},
               {"dweights", Role::kInput, 1, 2, Type::kF32},
               {"dlogits", Role::kOutput, 1, 3}},
      .forward = [](Call& a) {
        a.Run(RouteForward{kRule, a["logits"], a["bias"], a["experts"], a["weights"]});
        a.Run(RouteBackward{kRule, a["logits"], a["experts"], a["dweights"], a["dlogits"], {}});
      }};
  for (const auto& [entry, backend] : PresentBackends()) {
    INFO(entry->name);
    CaseRun run(*backend, op_case, Gaps::kNone, entry->compute);
    Contents contents = InitialContents(op_case, kSeed);
    contents["logits"] = {-120, 1, -120};
    contents["bias"] = {4, 0, 5};
    contents["dweights"] = {1, -1};
    run.Fill(contents);
    run.Forward();
    CHECK(run.Read("experts") == Numbers{2, 0});
    for (const char* result : {"weights", "dlogits"}) {
      for (const double number : run.Read(result)) CHECK(std::abs(number) < 1e-9);
    }
  }
}

TEST_CASE("the CPU backend's results do not depend on its number of threads") {
  std::vector<Present> backends = PresentBackends();
  std::erase_if(backends, [](const Present& p) { return p.backend->Name() != "cpu"; });
  if (backends.empty()) return SkipCase("the CPU backend is not under test");
  REQUIRE(backends.size() >= 2);
  for (const OpCase& op_case : TestCases()) {
    std::vector<Contents> results;
    for (const Present& present : backends) {
      results.push_back(RunCase(*present.backend, op_case, Gaps::kNone));
    }
    INFO(op_case.name);
    for (const Contents& result : results) REQUIRE(result == results[0]);
  }
}

}  // namespace
}  // namespace atl::testing

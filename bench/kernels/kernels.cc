// Every declared operation on every registered backend, against what the machine can do: products
// against the fastest large product, the rest against a loop that scales memory in place.

#include <memory>
#include <vector>

#include "bench/measure.h"
#include "kernels/testing/backends.h"
#include "kernels/testing/case_run.h"

namespace atl::bench {
namespace {

using testing::BackendUnderTest;
using testing::CaseRun;
using testing::OpCase;

constexpr int kRounds = 7;

// Median seconds of forward, or of backward.
double MeasurePassSeconds(CaseRun& run, const OpCase& op_case, bool backward) {
  return MedianSeconds(
      [&] {
        (backward ? op_case.backward : op_case.forward)(run.call());
        if (!run.backend().Synchronize(run.stream()).ok()) std::abort();
      },
      kRounds);
}

struct Ceilings {
  double flops_per_s;
  double bytes_per_s;
};

Ceilings MeasureCeilings(Backend& backend) {
  const OpCase product = testing::LargeProductCase();
  CaseRun product_run(backend, product, testing::Gaps::kNone);
  product_run.Fill(InitialContents(product, 1));
  const OpCase scaling = testing::MemoryCase();
  CaseRun scaling_run(backend, scaling, testing::Gaps::kNone);
  scaling_run.Fill(InitialContents(scaling, 1));
  return {product.forward_flops / MeasurePassSeconds(product_run, product, false),
          scaling.forward_bytes / MeasurePassSeconds(scaling_run, scaling, false)};
}

void PrintPass(const OpCase& op_case, const char* pass, double seconds, double flops, double bytes,
               const Ceilings& ceilings) {
  const bool product = flops > 0;
  const double rate = (product ? flops : bytes) / seconds;
  const double ceiling = product ? ceilings.flops_per_s : ceilings.bytes_per_s;
  std::printf("%-44s %-8s %9.3f %9.1f %-7s %6.2f\n", op_case.name.c_str(), pass, 1e3 * seconds,
              1e-9 * rate, product ? "GFLOP/s" : "GB/s", rate / ceiling);
}

void RunBackend(const BackendUnderTest& under_test) {
  auto backend = under_test.make();
  if (!backend.ok()) {
    std::printf("%s: not on this machine: %s\n", under_test.name.c_str(),
                std::string(backend.status().message()).c_str());
    return;
  }
  const Ceilings ceilings = MeasureCeilings(**backend);
  std::printf("\n%s: ceilings %.1f GFLOP/s, %.1f GB/s from memory (small cases run in the cache)\n",
              under_test.name.c_str(), 1e-9 * ceilings.flops_per_s, 1e-9 * ceilings.bytes_per_s);
  std::printf("%-44s %-8s %9s %9s %-7s %6s\n", "operation", "pass", "ms", "rate", "", "ratio");
  for (const OpCase& op_case : testing::BenchmarkCases()) {
    CaseRun run(**backend, op_case, testing::Gaps::kNone, under_test.compute);
    run.Fill(InitialContents(op_case, 1));
    PrintPass(op_case, "forward", MeasurePassSeconds(run, op_case, false), op_case.forward_flops,
              op_case.forward_bytes, ceilings);
    if (!op_case.backward) continue;
    PrintPass(op_case, "backward", MeasurePassSeconds(run, op_case, true), op_case.backward_flops,
              op_case.backward_bytes, ceilings);
  }
}

}  // namespace
}  // namespace atl::bench

// Arguments: names of backends, or parts of them; none: all.
int main(int argc, char** argv) {
  for (const auto& under_test : atl::testing::BackendsUnderTest()) {
    bool wanted = argc < 2;
    for (int i = 1; i < argc; ++i) wanted |= under_test.name.find(argv[i]) != std::string::npos;
    if (wanted) atl::bench::RunBackend(under_test);
  }
}

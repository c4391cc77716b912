// Our models against PyTorch's numbers on GPUs, and on what stands in for them: whole training
// steps through the CUDA backend's kernels.

#include "kernels/testing/backends.h"
#include "tests/catch/skip.h"
#include "worker/model/testing/parity.h"

namespace atl {
namespace {

using parity::Compared;
using parity::Fixture;
using parity::kRows;
using parity::kSeqLen;
using parity::Must;
using testing::BackendUnderTest;

// Tolerances of logits and gradients, in units of a tensor's largest number; and of the loss of
// early steps.
struct Tolerance {
  double numbers, loss;
};

Tolerance GetTolerance(const BackendUnderTest& under_test, const Fixture& fixture) {
  return under_test.compute == DType::kBfloat16
             ? Tolerance{parity::Bfloat16Tolerance(fixture.config()), 0.01}
             : Tolerance{1e-4, 1e-4};
}

void CheckModel(const BackendUnderTest& under_test, std::unique_ptr<Backend> backend,
                const std::string& name) {
  CAPTURE(under_test.name, name);
  Compared compared(name, std::move(backend), under_test.compute,
                    Must(ReadModelConfig(Fixture::Folder(name))));
  const double tolerance = GetTolerance(under_test, compared.fixture()).numbers;
  compared.CheckLogits(tolerance);
  compared.CheckGradients(tolerance);
}

void CheckSteps(const BackendUnderTest& under_test, std::unique_ptr<Backend> backend,
                const std::string& name) {
  CAPTURE(under_test.name, name);
  Backend& device = *backend;
  Fixture fixture(name, std::move(backend), kRows, under_test.compute);
  ModelRunner& runner = fixture.runner();
  const std::vector<float> losses = fixture.Expected("losses");
  auto optimizer = Must(Optimizer::Create(device, runner.stream(), runner.layers(), {}));
  for (int64_t step = 0; step < 3; ++step) {
    CAPTURE(step);
    const double loss = Must(runner.Train(fixture.Batch(step))).mean();
    REQUIRE(std::abs(loss / losses[step] - 1) < GetTolerance(under_test, fixture).loss);
    Must(optimizer->Step(step + 1, 1e-2f));
  }
}

template <typename Check>
void OnEveryDevice(const Check& check) {
  for (const BackendUnderTest& under_test : testing::BackendsUnderTest()) {
    if (under_test.compute == DType::kFloat64) continue;  // no device's type
    const bool gpu = under_test.name.rfind("cuda", 0) == 0;
    for (const std::string& name : gpu ? parity::kGpuModels : parity::kEmulatedModels) {
      auto backend = under_test.make();
      if (backend.ok()) {
        check(under_test, *std::move(backend), name);
      } else {
        testing::SkipCase(absl::StrCat(under_test.name, ": ", backend.status().message()));
      }
    }
  }
}

TEST_CASE("on devices, logits and gradients are PyTorch's") { OnEveryDevice(CheckModel); }

TEST_CASE("on devices, AdamW steps with clipping have PyTorch's losses") {
  OnEveryDevice(CheckSteps);
}

// In fp32: bf16 follows no losses far.
TEST_CASE("on_devices_steps_of_every_optimizer_have_pytorchs_losses") {
  const auto [kind, key, rate] = GENERATE(table<InnerOptimizer, std::string, float>({
      {InnerOptimizer::kSgd, "sgd", 0.05f},
      {InnerOptimizer::kRmsProp, "rmsprop", 1e-3f},
      {InnerOptimizer::kLamb, "lamb", 1e-2f},
      {InnerOptimizer::kMuon, "muon", 0.02f},
  }));
  for (const BackendUnderTest& under_test : testing::BackendsUnderTest()) {
    if (under_test.compute != DType::kFloat32) continue;
    CAPTURE(under_test.name, key);
    auto backend = under_test.make();
    if (!backend.ok()) {
      testing::SkipCase(absl::StrCat(under_test.name, ": ", backend.status().message()));
      continue;
    }
    Backend& device = **backend;
    Fixture fixture("gpt2", *std::move(backend), kRows, under_test.compute, kind);
    ModelRunner& runner = fixture.runner();
    const std::vector<float> losses = fixture.Expected(key, "optimizers");
    auto optimizer =
        Must(Optimizer::Create(device, runner.stream(), runner.layers(), {.kind = kind}));
    for (int64_t step = 0; step < 4; ++step) {
      CAPTURE(step);
      const double loss = Must(runner.Train(fixture.Batch(step))).mean();
      REQUIRE(std::abs(loss / losses[step] - 1) < 2e-4);
      Must(optimizer->Step(step + 1, rate));
    }
  }
}

// The adapter adds nothing yet.
TEST_CASE("on_devices_frozen_weights_make_pytorchs_logits") {
  OnEveryDevice([](const BackendUnderTest& under_test, std::unique_ptr<Backend> backend,
                   const std::string& name) {
    ModelConfig config = Must(ReadModelConfig(Fixture::Folder(name)));
    if (config.architecture().objective != Objective::kNextToken) return;
    if (config.experts.correction && under_test.compute == DType::kBfloat16) return;  // refused
    CAPTURE(under_test.name, name);
    config.adapter = {.rank = 8, .alpha = 8, .targets = {kAllLinear}};
    if (config.experts.count > 0) config.adapter.targets = {"q_proj", "v_proj", "o_proj"};
    Compared compared(name, std::move(backend), under_test.compute, config);
    compared.CheckLogits(GetTolerance(under_test, compared.fixture()).numbers);
  });
}

}  // namespace
}  // namespace atl

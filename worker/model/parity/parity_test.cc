// Our models against PyTorch's numbers (make_fixtures.py), on every CPU backend.

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "kernels/bfloat16.h"
#include "kernels/cpu/cpu.h"
#include "kernels/reference/reference.h"
#include "worker/model/optimizer.h"
#include "worker/model/runner.h"
#include "worker/model/safetensors.h"
#include "worker/model/weights.h"

namespace atl {
namespace {

constexpr double kTolerance = 1e-4;
constexpr int64_t kRows = 3, kSeqLen = 16;

// ---- vocabulary of these tests ----

template <typename T>
T Must(absl::StatusOr<T> value) {
  INFO(value.status().message());
  REQUIRE(value.ok());
  return *std::move(value);
}

void Must(const absl::Status& status) {
  INFO(status.message());
  REQUIRE(status.ok());
}

std::unique_ptr<Backend> NewBackend(const std::string& name) {
  return name == "cpu" ? NewCpuBackend(2) : NewReferenceBackend();
}

std::span<float> HostView(const Tensor& tensor) {  // CPU backends' memory is the host's
  return {tensor.f32(), static_cast<size_t>(tensor.size())};
}

// The largest difference in units of the largest expected number.
double Difference(std::span<const float> actual, std::span<const float> expected) {
  REQUIRE(actual.size() == expected.size());
  double largest = 0, difference = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    REQUIRE(std::isfinite(actual[i]));
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    difference = std::max(difference, std::abs(static_cast<double>(actual[i]) - expected[i]));
  }
  return difference / largest;
}

class Fixture {
 public:
  Fixture(const std::string& name, const std::string& backend, int64_t micro_batch_rows,
          DType compute = DType::kFloat32)
      : backend_(NewBackend(backend)),
        folder_("worker/model/parity/" + name),
        expected_(Must(SafetensorsReader::Open(folder_ + "/expected.safetensors"))),
        model_(Must(Model::Create(Must(ReadModelConfig(folder_)), compute))),
        runner_(Must(ModelRunner::Create(*backend_, model_, {micro_batch_rows, kSeqLen}))) {
    std::vector<LayerLayout> layouts;
    std::vector<std::span<float>> layers;
    for (size_t i = 0; i < model_.layers().size(); ++i) {
      layouts.push_back(model_.layers()[i]->layout());
      layers.push_back(HostView(runner_->params(static_cast<int>(i))));
    }
    Must(ReadWeights(folder_, layouts, layers));
    for (size_t i = 0; i < layers.size(); ++i)
      runner_->layer(static_cast<int>(i)).ParamsWritten(runner_->stream());
    for (const float token : Expected("tokens")) tokens_.push_back(static_cast<int32_t>(token));
  }

  ModelRunner& runner() { return *runner_; }

  std::vector<float> Expected(const std::string& name) {
    std::vector<float> values(static_cast<size_t>(expected_.tensors().at(name).size()));
    Must(expected_.Read(name, values));
    return values;
  }

  std::span<const int32_t> Batch(int64_t index) {
    const size_t size = kRows * (kSeqLen + 1);
    return std::span(tokens_).subspan(index * size % tokens_.size(), size);
  }

  // A gradient as files have it, so that it compares with PyTorch's.
  std::vector<float> Grad(int layer, const ParamSpec& param) {
    const auto grads = HostView(runner_->grads(layer)).subspan(param.offset, param.size);
    std::vector<float> values(grads.begin(), grads.end());
    if (param.transposed) {
      const int64_t in = param.shape[0], out = param.shape[1];
      for (int64_t i = 0; i < param.size; ++i) values[i] = grads[i % out * in + i / out];
    }
    return values;
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::string folder_;
  SafetensorsReader expected_;
  Model model_;
  std::unique_ptr<ModelRunner> runner_;
  std::vector<int32_t> tokens_;
};

#define ON_EVERY_MODEL_AND_BACKEND()                                \
  const std::string name = GENERATE("gpt2", "llama", "llama_tied"); \
  const std::string backend = GENERATE("reference", "cpu");         \
  const int64_t micro_batch_rows = GENERATE(3, 2);                  \
  CAPTURE(name, backend, micro_batch_rows);                         \
  Fixture fixture(name, backend, micro_batch_rows)

TEST_CASE("logits are PyTorch's") {
  ON_EVERY_MODEL_AND_BACKEND();
  const std::vector<float> expected = fixture.Expected("logits");
  const int64_t row_size = static_cast<int64_t>(expected.size()) / kRows;
  for (int64_t row = 0; row < kRows; ++row) {
    std::vector<float> logits(static_cast<size_t>(row_size));
    Must(fixture.runner().Logits(fixture.Batch(0).subspan(row * (kSeqLen + 1), kSeqLen), logits));
    REQUIRE(Difference(logits, std::span(expected).subspan(row * row_size, row_size)) < kTolerance);
    const size_t vocab = logits.size() / kSeqLen;
    std::vector<float> last(vocab);
    Must(fixture.runner().Logits(fixture.Batch(0).subspan(row * (kSeqLen + 1), kSeqLen), last));
    REQUIRE(Difference(last, std::span(logits).last(vocab)) < 1e-6);
  }
}

TEST_CASE("every gradient tensor is PyTorch's, however the batch is cut") {
  ON_EVERY_MODEL_AND_BACKEND();
  const LossSum loss = Must(fixture.runner().Train(fixture.Batch(0), kRows));
  REQUIRE(loss.tokens == kRows * kSeqLen);
  const auto layers = fixture.runner().model().layers();
  for (size_t i = 0; i < layers.size(); ++i) {
    for (const ParamSpec& param : layers[i]->layout().params) {
      CAPTURE(param.name);
      const std::vector<float> grad = fixture.Grad(static_cast<int>(i), param);
      REQUIRE(Difference(grad, fixture.Expected("grad." + param.name)) < kTolerance);
    }
  }
}

TEST_CASE("twenty AdamW steps with clipping have PyTorch's losses") {
  ON_EVERY_MODEL_AND_BACKEND();
  const std::vector<float> losses = fixture.Expected("losses");
  auto optimizer = Must(AdamWOptimizer::Create(
      fixture.runner().backend(), fixture.runner().stream(), fixture.runner().layers(), {}));
  REQUIRE(losses.size() == 20);
  for (size_t step = 0; step < losses.size(); ++step) {
    CAPTURE(step);
    const auto batch = fixture.Batch(static_cast<int64_t>(step));
    const double evaluated = Must(fixture.runner().Evaluate(batch, kRows)).mean();
    const double trained = Must(fixture.runner().Train(batch, kRows)).mean();
    REQUIRE(std::abs(trained / losses[step] - 1) < kTolerance);
    REQUIRE(std::abs(evaluated / losses[step] - 1) < kTolerance);
    Must(optimizer->Step(static_cast<int64_t>(step) + 1, 1e-2f));
  }
}

// ---- bf16: eight bits of every activation and weight, everything that is summed in fp32 ----

TEST_CASE("in bf16, logits, gradients and losses are PyTorch's but for rounding") {
  const std::string name = GENERATE("gpt2", "llama", "llama_tied");
  CAPTURE(name);
  Fixture fixture(name, "reference", 2, DType::kBfloat16);
  ModelRunner& runner = fixture.runner();
  const std::vector<float> expected = fixture.Expected("logits");
  std::vector<float> logits(expected.size() / kRows);
  Must(runner.Logits(fixture.Batch(0).first(kSeqLen), logits));
  REQUIRE(Difference(logits, std::span(expected).first(logits.size())) < 0.03);

  Must(runner.Train(fixture.Batch(0), kRows));
  for (size_t i = 0; i < runner.model().layers().size(); ++i) {
    for (const ParamSpec& param : runner.model().layers()[i]->layout().params) {
      CAPTURE(param.name);
      const std::vector<float> grad = fixture.Grad(static_cast<int>(i), param);
      REQUIRE(Difference(grad, fixture.Expected("grad." + param.name)) < 0.06);
    }
  }
}

TEST_CASE("in bf16, training follows PyTorch's losses, and small steps are not lost to rounding") {
  const std::string name = GENERATE("gpt2", "llama", "llama_tied");
  CAPTURE(name);
  Fixture fixture(name, "reference", 3, DType::kBfloat16);
  ModelRunner& runner = fixture.runner();
  const std::vector<float> losses = fixture.Expected("losses");
  auto optimizer =
      Must(AdamWOptimizer::Create(runner.backend(), runner.stream(), runner.layers(), {}));
  for (size_t step = 0; step < losses.size(); ++step) {
    CAPTURE(step);
    const double loss = Must(runner.Train(fixture.Batch(static_cast<int64_t>(step)), kRows)).mean();
    // Rounding grows with every step at this learning rate.
    REQUIRE(std::abs(loss / losses[step] - 1) < (step < 6 ? 0.01 : 0.1));
    Must(optimizer->Step(static_cast<int64_t>(step) + 1, 1e-2f));
  }
  // The layers read the rounded parameters; steps far below bf16's last bit still move the others.
  const auto params = HostView(runner.params(1));
  const std::vector<float> before(params.begin(), params.end());
  Must(runner.Train(fixture.Batch(0), kRows));
  Must(optimizer->Step(21, 1e-6f));
  int moved = 0;
  for (size_t k = 0; k < before.size(); ++k) {
    moved += params[k] != before[k];
    REQUIRE(runner.layer(1).params_copy().as<Bfloat16>()[k] == RoundToBfloat16(params[k]));
  }
  REQUIRE(moved > static_cast<int>(before.size() / 2));
}

}  // namespace
}  // namespace atl

// Our models of images against PyTorch's numbers (images.py), on every CPU backend, on GPUs and on
// what stands in for them.

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "common/files.h"
#include "kernels/cpu/cpu.h"
#include "kernels/testing/backends.h"
#include "kernels/testing/reference/reference.h"
#include "tests/catch/skip.h"
#include "worker/model/optimizer.h"
#include "worker/model/runner.h"
#include "worker/model/safetensors.h"
#include "worker/model/weights.h"

namespace atl {
namespace {

constexpr double kTolerance = 1e-4;
constexpr int64_t kRows = 6;

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

double Difference(std::span<const float> actual, std::span<const float> expected) {
  REQUIRE(actual.size() == expected.size());
  double largest = 1e-30, difference = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    REQUIRE(std::isfinite(actual[i]));
    largest = std::max(largest, std::abs(double{expected[i]}));
    difference = std::max(difference, std::abs(double{actual[i]} - expected[i]));
  }
  return difference / largest;
}

class Fixture {
 public:
  explicit Fixture(const std::string& name, const std::string& backend,
                   int64_t micro_batch_rows = kRows)
      : Fixture(name, backend == "cpu" ? NewCpuBackend(2) : NewReferenceBackend(), DType::kFloat32,
                micro_batch_rows) {}
  Fixture(const std::string& name, std::unique_ptr<Backend> backend, DType compute,
          int64_t micro_batch_rows = kRows)
      : folder_("worker/model/parity/" + name),
        backend_(std::move(backend)),
        expected_(Must(SafetensorsReader::Open(folder_ + "/expected.safetensors"))),
        model_(Must(Model::Create(Must(ReadModelConfig(folder_)), compute))),
        runner_(Must(ModelRunner::Create(*backend_, model_,
                                         {.micro_batch_rows = micro_batch_rows,
                                          .seq_len = 1,
                                          .optimizer = InnerOptimizer::kSgd}))) {
    for (const auto& layer : model_.layers()) layouts_.push_back(layer->layout());
    std::vector<std::vector<float>> values;
    for (const LayerLayout& layout : layouts_) values.emplace_back(layout.size);
    std::vector<std::span<float>> spans(values.begin(), values.end());
    Must(ReadWeights(folder_, layouts_, spans));
    for (size_t i = 0; i < values.size(); ++i) {
      LayerState& layer = runner_->layer(static_cast<int>(i));
      backend_->CopyToDevice(runner_->stream(), layer.params(), values[i].data());
      layer.ParamsWritten(runner_->stream());
    }
    Must(backend_->Synchronize(runner_->stream()));
    const std::vector<float> labels = Expected("labels");
    const auto each = static_cast<size_t>(model_.config().image.pixels());
    for (size_t at = 0; at < labels.size(); at += kRows) {
      ModelRunner::Batch batch{{}, {}, kRows};
      for (size_t i = at * each; i < (at + kRows) * each; ++i) {
        batch.inputs.push_back(static_cast<int32_t>(i * 40503 / 64 % 256));
      }
      for (size_t i = at; i < at + kRows; ++i) {
        batch.targets.push_back(static_cast<int32_t>(labels[i]));
      }
      batches_.push_back(std::move(batch));
    }
  }

  std::vector<float> Expected(const std::string& name) {
    std::vector<float> values(static_cast<size_t>(expected_.tensors().at(name).size()));
    Must(expected_.Read(name, values));
    return values;
  }
  std::vector<float> Read(const Tensor& tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.size()));
    backend_->CopyToHost(runner_->stream(), values.data(), tensor);
    Must(backend_->Synchronize(runner_->stream()));
    return values;
  }
  // Calls check(layer, parameter, whether gradients train it).
  template <typename Check>
  void ForEachParam(const Check& check) {
    for (size_t i = 0; i < layouts_.size(); ++i) {
      for (const ParamSpec& param : layouts_[i].params) {
        check(static_cast<int>(i), param, param.offset < layouts_[i].trained_size);
      }
    }
  }

  ModelRunner& runner() { return *runner_; }
  const std::vector<LayerLayout>& layouts() const { return layouts_; }
  const ModelRunner::Batch& Batch(size_t index) const { return batches_[index % batches_.size()]; }

 private:
  const std::string folder_;
  const std::unique_ptr<Backend> backend_;
  const SafetensorsReader expected_;
  const Model model_;
  const std::unique_ptr<ModelRunner> runner_;
  std::vector<LayerLayout> layouts_;
  std::vector<ModelRunner::Batch> batches_;
};

#define ON_EVERY_MODEL_AND_BACKEND()                                           \
  const std::string name = GENERATE("resnet", "resnet_basic", "efficientnet"); \
  const std::string backend = GENERATE("reference", "cpu");                    \
  CAPTURE(name, backend);                                                      \
  Fixture fixture(name, backend);                                              \
  [[maybe_unused]] ModelRunner& runner = fixture.runner()

// ---- On devices ----

void CheckGradients(Fixture& fixture) {
  Must(fixture.runner().Train(fixture.Batch(0)));
  fixture.ForEachParam([&](int layer, const ParamSpec& param, bool trained) {
    if (!trained) return;
    CAPTURE(param.name);
    const auto grad = fixture.Read(fixture.runner().grads(layer).Columns(param.offset, param.size));
    const std::vector<float> expected = fixture.Expected("grad." + param.name);
    const auto largest = [](const std::vector<float>& values) {
      float most = 0;
      for (const float value : values) most = std::max(most, std::abs(value));
      return most;
    };
    // Zero but for PyTorch's rounding: a bias that the next normalisation takes out again.
    if (largest(expected) < 1e-9f) {
      REQUIRE(largest(grad) < 1e-5f);
    } else {
      REQUIRE(Difference(grad, expected) < kTolerance);
    }
  });
}

void CheckOnDevice(const std::string& name, const testing::BackendUnderTest& under_test) {
  CAPTURE(name, under_test.name);
  auto backend = under_test.make();
  if (!backend.ok()) {
    return testing::SkipCase(absl::StrCat(under_test.name, ": ", backend.status().message()));
  }
  Fixture fixture(name, *std::move(backend), under_test.compute);
  ModelRunner& runner = fixture.runner();
  const bool half = under_test.compute == DType::kBfloat16;
  const std::vector<float> expected = fixture.Expected("logits");
  std::vector<float> logits(expected.size() / kRows);
  const auto pixels = static_cast<size_t>(runner.model().config().image.pixels());
  Must(runner.Logits(std::span(fixture.Batch(0).inputs).first(pixels), logits));
  REQUIRE(Difference(logits, std::span(expected).first(logits.size())) <
          (half ? 0.05 : kTolerance));
  if (!half) CheckGradients(fixture);

  Fixture steps(name, Must(under_test.make()), under_test.compute);
  auto optimizer = Must(Optimizer::Create(steps.runner().backend(), steps.runner().stream(),
                                          steps.runner().layers(), {.kind = InnerOptimizer::kSgd}));
  const std::vector<float> losses = steps.Expected("losses");
  for (size_t step = 0; step < 3; ++step) {
    CAPTURE(step);
    const double loss = Must(steps.runner().Train(steps.Batch(step))).mean();
    REQUIRE(std::abs(loss / losses[step] - 1) < (half ? 0.02 : kTolerance));
    Must(optimizer->Step(static_cast<int64_t>(step) + 1, 0.01f, kRows));
  }
}

TEST_CASE("on_devices_logits_gradients_and_losses_are_pytorchs") {
  const std::string name = GENERATE("resnet", "resnet_basic", "efficientnet");
  for (const testing::BackendUnderTest& under_test : testing::BackendsUnderTest()) {
    if (under_test.compute != DType::kFloat64) CheckOnDevice(name, under_test);
  }
}

// ---- On CPUs ----

TEST_CASE("logits_by_running_statistics_are_pytorchs") {
  ON_EVERY_MODEL_AND_BACKEND();
  const std::vector<float> expected = fixture.Expected("logits");
  const size_t classes = expected.size() / kRows;
  const auto pixels = static_cast<size_t>(runner.model().config().image.pixels());
  int64_t hits = 0;
  for (size_t row = 0; row < kRows; ++row) {
    const auto image = std::span(fixture.Batch(0).inputs).subspan(row * pixels, pixels);
    std::vector<float> logits(classes);
    Must(runner.Logits(image, logits));
    REQUIRE(Difference(logits, std::span(expected).subspan(row * classes, classes)) < kTolerance);
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    hits += best == fixture.Batch(0).targets[row] ? 1 : 0;
  }
  const LossSum loss = Must(runner.Evaluate(fixture.Batch(0)));
  REQUIRE(loss.tokens == kRows);
  REQUIRE(loss.hits == static_cast<double>(hits));
}

TEST_CASE("every_gradient_is_pytorchs") {
  ON_EVERY_MODEL_AND_BACKEND();
  CheckGradients(fixture);
}

TEST_CASE("twenty_steps_have_pytorchs_losses_and_running_statistics") {
  ON_EVERY_MODEL_AND_BACKEND();
  const std::vector<float> losses = fixture.Expected("losses");
  auto optimizer = Must(Optimizer::Create(runner.backend(), runner.stream(), runner.layers(),
                                          {.kind = InnerOptimizer::kSgd}));
  REQUIRE(losses.size() == 20);
  for (size_t step = 0; step < losses.size(); ++step) {
    CAPTURE(step);
    const double loss = Must(runner.Train(fixture.Batch(step))).mean();
    REQUIRE(std::abs(loss / losses[step] - 1) < kTolerance);
    Must(optimizer->Step(static_cast<int64_t>(step) + 1, 0.01f, kRows));
  }
  fixture.ForEachParam([&](int layer, const ParamSpec& param, bool trained) {
    if (trained) return;
    CAPTURE(param.name);
    const auto running = fixture.Read(runner.params(layer).Columns(param.offset, param.size));
    REQUIRE(Difference(running, fixture.Expected("final." + param.name)) < kTolerance);
  });
}

// One running step over all micro-batches together: a mean weighted by their samples.
TEST_CASE("running_statistics_are_means_over_micro_batches") {
  Fixture whole("resnet_basic", "reference"), cut("resnet_basic", "reference", 4);
  for (Fixture* fixture : {&whole, &cut}) {
    ModelRunner& runner = fixture->runner();
    auto optimizer = Must(Optimizer::Create(runner.backend(), runner.stream(), runner.layers(),
                                            {.kind = InnerOptimizer::kSgd}));
    Must(runner.Train(fixture->Batch(0)));
    Must(optimizer->Step(1, 0, kRows));
  }
  // The stem's means are of its inputs alone, so that how a batch is cut changes nothing.
  const ParamSpec& mean = whole.layouts()[0].Find("bn1.running_mean");
  const auto of = [&](Fixture& fixture) {
    return fixture.Read(fixture.runner().params(0).Columns(mean.offset, mean.size));
  };
  REQUIRE(Difference(of(cut), of(whole)) < 1e-5);
}

TEST_CASE("a_written_folder_reads_back_the_same") {
  Fixture fixture("efficientnet", "reference");
  const std::string folder = std::filesystem::temp_directory_path() / "atoll_image_parity";
  std::filesystem::remove_all(folder);
  std::vector<float> buffer;
  const ModelConfig config = fixture.runner().model().config();
  Must(WriteModelFolder(folder, config, fixture.layouts(),
                        [&](int layer) -> absl::StatusOr<std::span<const float>> {
                          buffer = fixture.Read(fixture.runner().params(layer));
                          return std::span<const float>(buffer);
                        }));
  REQUIRE(Must(ReadModelConfig(folder)) == config);
  Must(CheckWeights(folder, fixture.layouts()));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace atl

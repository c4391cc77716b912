// A tiny model with PyTorch's weights on a backend, and PyTorch's numbers (make_fixtures.py).

#ifndef ATOLL_WORKER_MODEL_TESTING_PARITY_H_
#define ATOLL_WORKER_MODEL_TESTING_PARITY_H_

#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/testing/reference/reference.h"
#include "worker/model/optimizer.h"
#include "worker/model/runner.h"
#include "worker/model/safetensors.h"
#include "worker/model/weights.h"

namespace atl::parity {

inline constexpr int64_t kRows = 3, kSeqLen = 16;
// Folders of fixtures.
inline const std::vector<std::string> kModels = {
    "bert",    "gpt2",      "llama",     "llama_tied", "llama3", "llama_linear", "llama_yarn",
    "mistral", "qwen2",     "qwen3",     "olmo2",      "gemma2", "phi3",         "bert_padded",
    "mixtral", "qwen2_moe", "qwen3_moe", "olmoe",      "dots1"};
// Models among these with which GPUs, and what stands in for them, are tested: together they have
// every operation.
inline const std::vector<std::string> kGpuModels = {
    "bert",   "gpt2", "llama",       "llama_tied", "mistral",   "qwen2",     "qwen3", "olmo2",
    "gemma2", "phi3", "bert_padded", "mixtral",    "qwen2_moe", "qwen3_moe", "olmoe", "dots1"};
inline const std::vector<std::string> kEmulatedModels = {
    "bert", "gpt2", "llama_tied", "olmo2", "gemma2", "bert_padded", "qwen2_moe", "dots1"};
// Returns the tolerance of a gradient in bf16, in units of a tensor's largest number: few channels
// average little out.
inline double Bfloat16Tolerance(const ModelConfig& config) {
  return config.d_model < 32 ? 0.15 : 0.06;
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  INFO(value.status().message());
  REQUIRE(value.ok());
  return *std::move(value);
}

inline void Must(const absl::Status& status) {
  INFO(status.message());
  REQUIRE(status.ok());
}

// The largest difference in units of the largest expected number.
inline double Difference(std::span<const float> actual, std::span<const float> expected) {
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
  static std::string Folder(const std::string& name) { return "worker/model/parity/" + name; }

  Fixture(const std::string& name, std::unique_ptr<Backend> backend, int64_t micro_batch_rows,
          DType compute = DType::kFloat32, InnerOptimizer optimizer = InnerOptimizer::kAdamW)
      : Fixture(name, std::move(backend), micro_batch_rows, compute,
                Must(ReadModelConfig(Folder(name))), optimizer) {}
  // `config`: the folder's, with an adapter or without.
  Fixture(const std::string& name, std::unique_ptr<Backend> backend, int64_t micro_batch_rows,
          DType compute, const ModelConfig& config,
          InnerOptimizer optimizer = InnerOptimizer::kAdamW)
      : backend_(std::move(backend)),
        folder_(Folder(name)),
        expected_(Must(SafetensorsReader::Open(folder_ + "/expected.safetensors"))),
        model_(Must(Model::Create(config, compute))),
        runner_(Must(ModelRunner::Create(
            *backend_, model_,
            {.micro_batch_rows = micro_batch_rows, .seq_len = kSeqLen, .optimizer = optimizer}))) {
    const std::vector<LayerLayout> layouts = MakeLayouts(config.Base());
    std::vector<std::vector<float>> values;
    for (const LayerLayout& layout : layouts) values.emplace_back(layout.size);
    std::vector<std::span<float>> layers(values.begin(), values.end());
    Must(ReadWeights(folder_, layouts, layers));
    for (size_t i = 0; i < values.size(); ++i) {
      LayerState& layer = runner_->layer(static_cast<int>(i));
      if (config.adapter.present()) {
        Must(layer.WriteFrozen(runner_->stream(), FrozenWeights(layer.layout(), values[i])));
        values[i].resize(static_cast<size_t>(layer.layout().size));
        InitLayer(layer.layout(), config.layers, /*seed=*/1, values[i]);
      }
      if (values[i].empty()) continue;
      backend_->CopyToDevice(runner_->stream(), layer.params(), values[i].data());
      layer.ParamsWritten(runner_->stream());
      Must(backend_->Synchronize(runner_->stream()));
    }
    ReadBatches();
  }

  ModelRunner& runner() { return *runner_; }
  const ModelConfig& config() const { return model_.config(); }

  std::vector<float> Expected(const std::string& name) { return Expected(expected_, name); }
  // Reads expected numbers from another file than expected.safetensors.
  std::vector<float> Expected(const std::string& name, const std::string& file) {
    const auto reader = Must(SafetensorsReader::Open(folder_ + "/" + file + ".safetensors"));
    return Expected(reader, name);
  }

  // Makes a batch of one sequence of batch 0, with or without its padding.
  ModelRunner::Batch MakeRowBatch(int64_t row, bool padded) const {
    const ModelRunner::Batch& batch = batches_[0];
    const int32_t unpadded = batch.borders.at(static_cast<size_t>(row));
    const int64_t begin = row * kSeqLen, end = begin + (padded ? kSeqLen : unpadded);
    return {{batch.inputs.begin() + begin, batch.inputs.begin() + end},
            {batch.targets.begin() + begin, batch.targets.begin() + end},
            1,
            {unpadded}};
  }

  const ModelRunner::Batch& Batch(int64_t index) const {
    return batches_[static_cast<size_t>(index) % batches_.size()];
  }
  // Returns one sequence of batch 0 without its padding.
  std::span<const int32_t> Sequence(int64_t row) const {
    const int64_t length = batches_[0].borders.empty() ? kSeqLen : batches_[0].borders[row];
    return std::span(batches_[0].inputs).subspan(row * kSeqLen, length);
  }

  std::vector<float> Read(const Tensor& tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.size()));
    backend_->CopyToHost(runner_->stream(), values.data(), tensor);
    Must(backend_->Synchronize(runner_->stream()));
    return values;
  }

  // Returns the difference between a parameter's gradient and PyTorch's, or `like`'s. A gradient
  // that is zero but for rounding (of a bias of keys, which softmax does not see) is measured by
  // the largest of its layer.
  double GradDifference(int layer, const ParamSpec& param, Fixture* like = nullptr) {
    const auto right = [&](const ParamSpec& p) {
      return like == nullptr ? Expected("grad." + p.name) : like->Grad(layer, p);
    };
    const auto largest = [&](const std::vector<float>& values) {
      double most = 0;
      for (const float value : values) most = std::max(most, std::abs(double{value}));
      return most;
    };
    const std::vector<float> expected = right(param);
    double of_layer = 0;
    for (const ParamSpec& other : model_.layers()[layer]->layout().params) {
      of_layer = std::max(of_layer, largest(right(other)));
    }
    const std::vector<float> grad = Grad(layer, param);
    if (largest(expected) < 1e-12 * of_layer) return largest(grad) / of_layer;
    return Difference(grad, expected);
  }

  // A gradient as files have it, so that it compares with PyTorch's.
  std::vector<float> Grad(int layer, const ParamSpec& param) {
    const std::vector<float> grads = Read(runner_->grads(layer).Columns(param.offset, param.size));
    std::vector<float> values = grads;
    if (param.transposed) {
      const int64_t in = param.shape[0], out = param.shape[1];
      for (int64_t i = 0; i < param.size; ++i) values[i] = grads[i % out * in + i / out];
    }
    return values;
  }

 private:
  std::vector<int32_t> Integers(const std::string& name) {
    const std::vector<float> values = Expected(name);
    return {values.begin(), values.end()};
  }

  void ReadBatches() {
    if (!expected_.tensors().contains("inputs")) {
      const std::vector<int32_t> tokens = Integers("tokens");
      constexpr size_t kSize = kRows * (kSeqLen + 1);
      for (size_t at = 0; at < tokens.size(); at += kSize) {
        batches_.push_back(runner_->MakeBatch(std::span(tokens).subspan(at, kSize), kRows, 1));
      }
      return;
    }
    const std::vector<int32_t> inputs = Integers("inputs"), targets = Integers("targets");
    const std::vector<int32_t> types = Integers("types");
    std::vector<int32_t> lengths;
    if (expected_.tensors().contains("lengths")) lengths = Integers("lengths");
    constexpr size_t kSize = kRows * kSeqLen;
    for (size_t at = 0; at < inputs.size(); at += kSize) {
      const auto begin = targets.begin() + static_cast<std::ptrdiff_t>(at);
      ModelRunner::Batch batch{{}, {begin, begin + kSize}, kRows, lengths};
      for (size_t i = at; i < at + kSize; ++i) {
        batch.inputs.push_back(inputs[i] | types[i % types.size()] << kTokenTypeShift);
      }
      batches_.push_back(std::move(batch));
    }
  }

  static std::vector<float> Expected(const SafetensorsReader& reader, const std::string& name) {
    std::vector<float> values(static_cast<size_t>(reader.tensors().at(name).size()));
    Must(reader.Read(name, values));
    return values;
  }

  std::unique_ptr<Backend> backend_;
  std::string folder_;
  SafetensorsReader expected_;
  Model model_;
  std::unique_ptr<ModelRunner> runner_;
  std::vector<ModelRunner::Batch> batches_;
};

// A model on a backend, and the right numbers: PyTorch's. Bf16 chooses other experts for a few
// tokens, which no tolerance can separate from a wrong gradient; so tokens of mixtures go through
// all experts there, and the numbers are those of the reference, which is compared with PyTorch's.
class Compared {
 public:
  Compared(const std::string& name, std::unique_ptr<Backend> backend, DType compute,
           ModelConfig config) {
    if (compute == DType::kBfloat16 && config.experts.count > 0) {
      config.experts.per_token = config.experts.count;
      right_.emplace(name, NewReferenceBackend(), 2, DType::kFloat32, config);
    }
    fixture_.emplace(name, std::move(backend), 2, compute, config);
  }
  const Fixture& fixture() const { return *fixture_; }

  // Compares those of a sequence.
  void CheckLogits(double tolerance) {
    std::vector<float> expected = fixture_->Expected("logits");
    expected.resize(expected.size() / kRows);
    if (right_) Must(right_->runner().Logits(right_->Sequence(0), expected));
    std::vector<float> logits(expected.size());
    Must(fixture_->runner().Logits(fixture_->Sequence(0), logits));
    REQUIRE(Difference(logits, expected) < tolerance);
  }
  void CheckGradients(double tolerance) {
    if (right_) Must(right_->runner().Train(right_->Batch(0)));
    Must(fixture_->runner().Train(fixture_->Batch(0)));
    const auto layers = fixture_->runner().model().layers();
    for (size_t i = 0; i < layers.size(); ++i) {
      for (const ParamSpec& param : layers[i]->layout().params) {
        if (param.offset >= layers[i]->layout().trained_size) continue;
        CAPTURE(param.name);
        REQUIRE(fixture_->GradDifference(static_cast<int>(i), param, right_ ? &*right_ : nullptr) <
                tolerance);
      }
    }
  }

 private:
  std::optional<Fixture> fixture_, right_;
};

}  // namespace atl::parity

#endif  // ATOLL_WORKER_MODEL_TESTING_PARITY_H_

// The loss head over slices of rows.

#include "worker/model/loss_head.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "common/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/testing/reference/reference.h"
#include "worker/model/runner.h"

namespace atl {
namespace {

constexpr int64_t kRows = 6, kSeqLen = 7, kVocab = 523;

ModelConfig Tiny(ModelFamily family, bool tied) {
  ModelConfig c;
  c.family = family;
  c.vocab = kVocab;
  c.d_model = 16;
  c.layers = 1;
  c.heads = c.kv_heads = 2;
  c.ffn = 24;
  c.max_positions = 12;
  c.tied_head = tied;
  return c;
}

std::vector<int32_t> Tokens(int64_t count) {
  Rng rng(3);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.Below(kVocab));
  return tokens;
}

struct Subject {
  Subject(const ModelConfig& config, bool on_reference, int64_t micro_batch_rows, bool train = true)
      : backend(on_reference ? NewReferenceBackend() : NewCpuBackend(2)),
        model(*Model::Create(config)),
        runner(*ModelRunner::Create(
            *backend, model,
            {.micro_batch_rows = micro_batch_rows, .seq_len = kSeqLen, .train = train})) {
    for (int i = 0; i < layers(); ++i) {
      Rng rng(100 + static_cast<uint64_t>(i));
      for (float& value : Values(runner->params(i))) value = static_cast<float>(0.3 * rng.Normal());
    }
  }
  static std::span<float> Values(const Tensor& tensor) {
    return {tensor.f32(), static_cast<size_t>(tensor.size())};
  }
  int layers() const { return static_cast<int>(model.layers().size()); }

  std::unique_ptr<Backend> backend;
  Model model;
  std::unique_ptr<ModelRunner> runner;
};

const std::vector<int32_t> kBatch = Tokens(kRows * (kSeqLen + 1));

TEST_CASE("slices_have_the_loss_and_the_gradient_of_rows_that_fit_into_one") {
  const ModelConfig config =
      Tiny(GENERATE(ModelFamily::kGpt2, ModelFamily::kLlama, ModelFamily::kGemma2), true);
  const bool on_reference = GENERATE(false, true);
  REQUIRE(LossRows(config, {kRows, kSeqLen}) == 16);  // of 42
  REQUIRE(LossRows(config, {1, kSeqLen}) == kSeqLen);
  Subject sliced(config, on_reference, kRows), whole(config, on_reference, 1);
  const auto a = sliced.runner->Train(kBatch, kRows), b = whole.runner->Train(kBatch, kRows);
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  CHECK(a->nats == Approx(b->nats).epsilon(1e-6));
  CHECK(a->tokens == b->tokens);
  for (int i = 0; i < sliced.layers(); ++i) {
    const auto x = Subject::Values(sliced.runner->grads(i));
    const auto y = Subject::Values(whole.runner->grads(i));
    double difference = 0, norm = 0;
    for (size_t k = 0; k < x.size(); ++k) {
      difference += (double{x[k]} - y[k]) * (double{x[k]} - y[k]);
      norm += double{y[k]} * y[k];
    }
    INFO("layer " << i);
    REQUIRE(norm > 0);
    CHECK(std::sqrt(difference / norm) < 1e-5);
  }
}

TEST_CASE("the_loss_of_slices_is_that_of_the_logits") {
  const ModelConfig config = Tiny(ModelFamily::kGemma2, true);
  Subject subject(config, /*on_reference=*/false, kRows, /*train=*/false);
  std::vector<float> logits(kSeqLen * kVocab), last(kVocab);
  double nats = 0, hits = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    const auto row = std::span(kBatch).subspan(static_cast<size_t>(r * (kSeqLen + 1)), kSeqLen + 1);
    REQUIRE(subject.runner->Logits(row.first(kSeqLen), logits).ok());
    REQUIRE(subject.runner->Logits(row.first(kSeqLen), last).ok());
    // Products of one row and of many may add in another order.
    for (int64_t k = 0; k < kVocab; ++k) {
      REQUIRE(last[static_cast<size_t>(k)] ==
              Approx(logits[static_cast<size_t>((kSeqLen - 1) * kVocab + k)]).margin(1e-5));
    }
    for (int64_t t = 0; t < kSeqLen; ++t) {
      const auto at = std::span(logits).subspan(static_cast<size_t>(t * kVocab), kVocab);
      const auto target = static_cast<size_t>(row[static_cast<size_t>(t) + 1]);
      double sum = 0;
      for (const float x : at) sum += std::exp(double{x});
      nats += std::log(sum) - at[target];
      hits += std::ranges::max(at) == at[target] ? 1 : 0;
    }
  }
  const auto loss = subject.runner->Evaluate(kBatch, kRows);
  REQUIRE(loss.ok());
  CHECK(loss->nats == Approx(nats).epsilon(1e-5));
  CHECK(loss->hits == hits);
}

}  // namespace
}  // namespace atl

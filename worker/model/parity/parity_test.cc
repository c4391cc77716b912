// Our models against PyTorch's numbers (make_fixtures.py), on every CPU backend.

#include "worker/model/testing/parity.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "common/masked_tokens.h"
#include "kernels/bfloat16.h"
#include "kernels/cpu/cpu.h"
#include "kernels/testing/reference/reference.h"

namespace atl {
namespace {

using parity::Difference;
using parity::Fixture;
using parity::kRows;
using parity::kSeqLen;
using parity::Must;

constexpr double kTolerance = 1e-4;

std::unique_ptr<Backend> NewBackend(const std::string& name) {
  return name == "cpu" ? NewCpuBackend(2) : NewReferenceBackend();
}

#define ON_EVERY_MODEL_AND_BACKEND()                              \
  const std::string name = GENERATE(from_range(parity::kModels)); \
  const std::string backend = GENERATE("reference", "cpu");       \
  const int64_t micro_batch_rows = GENERATE(3, 2);                \
  CAPTURE(name, backend, micro_batch_rows);                       \
  Fixture fixture(name, NewBackend(backend), micro_batch_rows)

TEST_CASE("logits are PyTorch's") {
  ON_EVERY_MODEL_AND_BACKEND();
  const std::vector<float> expected = fixture.Expected("logits");
  const int64_t row_size = static_cast<int64_t>(expected.size()) / kRows;
  for (int64_t row = 0; row < kRows; ++row) {
    const std::span<const int32_t> sequence = fixture.Sequence(row);
    const size_t vocab = static_cast<size_t>(row_size) / kSeqLen;
    std::vector<float> logits(sequence.size() * vocab);
    Must(fixture.runner().Logits(sequence, logits));
    REQUIRE(Difference(logits, std::span(expected).subspan(row * row_size, logits.size())) <
            kTolerance);
    std::vector<float> last(vocab);
    Must(fixture.runner().Logits(sequence, last));
    REQUIRE(Difference(last, std::span(logits).last(vocab)) < 1e-6);
  }
}

TEST_CASE("cached_passes_over_new_tokens_alone_give_pytorchs_logits_for_every_decoder") {
  const std::string name = GENERATE(from_range(parity::kModels));
  CAPTURE(name);
  CachedCpuBackend cached = NewCachedCpuBackend(2);
  Fixture fixture(name, std::move(cached.backend), 1);
  if (!fixture.config().architecture().causal) return;
  const std::vector<float> expected = fixture.Expected("logits");
  const int64_t vocab = fixture.config().vocab;
  REQUIRE(std::ssize(expected) == kRows * kSeqLen * vocab);
  std::vector<float> last(static_cast<size_t>(vocab));
  for (int64_t row = 0; row < kRows; ++row) {
    int64_t passed = 0;
    for (const int64_t length : {3, 4, 5, 9, 10, 15, 16}) {
      CAPTURE(row, length);
      cached.cache->StartPass(passed);
      Must(fixture.runner().Logits(fixture.Sequence(row).subspan(passed, length - passed), last));
      const auto of_last = std::span(expected).subspan((row * kSeqLen + length - 1) * vocab, vocab);
      REQUIRE(Difference(last, of_last) < kTolerance);
      passed = length;
    }
  }
}

// The fixtures' files have transformers' names and shapes, from make_fixtures.py.
TEST_CASE("an_export_of_every_family_has_the_tensors_that_transformers_has") {
  const std::string name = GENERATE(from_range(parity::kModels));
  CAPTURE(name);
  Fixture fixture(name, NewBackend("cpu"), 1);
  const std::string folder = std::filesystem::temp_directory_path() / ("atoll_export_" + name);
  std::filesystem::remove_all(folder);
  std::vector<LayerLayout> layouts;
  for (const auto& layer : fixture.runner().model().layers()) layouts.push_back(layer->layout());
  std::vector<float> values;
  Must(WriteModelFolder(folder, fixture.config(), layouts,
                        [&](int layer) -> absl::StatusOr<std::span<const float>> {
                          values = fixture.Read(fixture.runner().params(layer));
                          return std::span<const float>(values);
                        }));
  const auto made = Must(SafetensorsReader::Open(folder + "/model.safetensors"));
  const auto known = Must(SafetensorsReader::Open(Fixture::Folder(name) + "/model.safetensors"));
  CHECK(made.tensors().size() == known.tensors().size());
  for (const auto& [tensor, entry] : known.tensors()) {
    CAPTURE(tensor);
    REQUIRE(made.tensors().contains(tensor));
    CHECK(made.tensors().at(tensor).shape == entry.shape);
    std::vector<float> got(static_cast<size_t>(entry.size())), expected(got.size());
    Must(made.Read(tensor, got));
    Must(known.Read(tensor, expected));
    CHECK(Difference(got, expected) < 1e-6);  // norms of Gemma lie in memory as 1 + w
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("every gradient tensor is PyTorch's, however the batch is cut") {
  ON_EVERY_MODEL_AND_BACKEND();
  const ModelRunner::Batch& batch = fixture.Batch(0);
  const LossSum loss = Must(fixture.runner().Train(batch));
  const auto counted = static_cast<int64_t>(
      std::count_if(batch.targets.begin(), batch.targets.end(), [](int32_t t) { return t >= 0; }));
  REQUIRE(loss.tokens == counted);
  const auto layers = fixture.runner().model().layers();
  for (size_t i = 0; i < layers.size(); ++i) {
    for (const ParamSpec& param : layers[i]->layout().params) {
      if (param.offset >= layers[i]->layout().trained_size) continue;
      CAPTURE(param.name);
      REQUIRE(fixture.GradDifference(static_cast<int>(i), param) < kTolerance);
    }
  }
}

TEST_CASE("padded_documents_have_pytorchs_losses_of_each_document_alone") {
  const std::string backend = GENERATE("reference", "cpu");
  CAPTURE(backend);
  Fixture fixture("bert_padded", NewBackend(backend), 2);
  ModelRunner& runner = fixture.runner();
  const std::vector<float> alone = fixture.Expected("alone");
  REQUIRE(alone.size() == kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    CAPTURE(row);
    const LossSum padded = Must(runner.Evaluate(fixture.MakeRowBatch(row, true)));
    CHECK(padded.nats == Approx(alone[static_cast<size_t>(row)]).epsilon(kTolerance));
    const LossSum unpadded = Must(runner.Evaluate(fixture.MakeRowBatch(row, false)));
    CHECK(unpadded.nats == Approx(padded.nats).epsilon(1e-6));
    CHECK(unpadded.tokens == padded.tokens);
  }
  const LossSum batch = Must(runner.Evaluate(fixture.Batch(0)));
  CHECK(batch.nats == Approx(std::accumulate(alone.begin(), alone.end(), 0.0)).epsilon(kTolerance));
}

TEST_CASE("rows_of_padded_documents_have_the_losses_of_each_document_alone") {
  Fixture fixture("bert_padded", NewBackend("cpu"), 3);
  ModelRunner& runner = fixture.runner();
  constexpr size_t kRow = kSeqLen + 1;
  const std::vector<size_t> lengths = {16, 3, 11, 8};
  std::vector<int32_t> rows(lengths.size() * kRow, MaskToken(0));  // [PAD]
  LossSum sum;
  for (size_t r = 0; r < lengths.size(); ++r) {
    for (size_t i = 0; i < lengths[r]; ++i) {
      rows[r * kRow + i] = static_cast<int32_t>(4 + (7 * r + 5 * i) % 28);
    }
    const std::span<const int32_t> row = std::span(rows).subspan(r * kRow, lengths[r] + 1);
    const LossSum alone = Must(runner.Evaluate(runner.MakeBatch(row, 1, 1)));
    REQUIRE(alone.tokens == CountPredicted(static_cast<int64_t>(lengths[r])));
    sum.nats += alone.nats;
    sum.tokens += alone.tokens;
  }
  const LossSum padded = Must(runner.Evaluate(runner.MakeBatch(rows, std::ssize(lengths), 1)));
  CHECK(padded.tokens == sum.tokens);
  CHECK(padded.nats == Approx(sum.nats).epsilon(1e-5));
}

TEST_CASE("the_balance_loss_of_routers_is_transformers_of_each_sequence_and_is_not_in_the_loss") {
  const std::string name = GENERATE("qwen2_moe", "olmoe");
  const std::string backend = GENERATE("reference", "cpu");
  const int64_t micro_batch_rows = GENERATE(3, 2);
  CAPTURE(name, backend, micro_batch_rows);
  Fixture fixture(name, NewBackend(backend), micro_batch_rows);
  ModelRunner& runner = fixture.runner();
  const LossSum trained = Must(runner.Train(fixture.Batch(0)));
  REQUIRE(trained.balance() == Approx(fixture.Expected("balance")[0]).epsilon(kTolerance));
  const LossSum evaluated = Must(runner.Evaluate(fixture.Batch(0)));
  REQUIRE(evaluated.balance() == 0);
  REQUIRE(evaluated.nats == Approx(trained.nats).epsilon(1e-6));
}

TEST_CASE("twenty AdamW steps with clipping have PyTorch's losses") {
  ON_EVERY_MODEL_AND_BACKEND();
  const std::vector<float> losses = fixture.Expected("losses");
  auto optimizer = Must(Optimizer::Create(fixture.runner().backend(), fixture.runner().stream(),
                                          fixture.runner().layers(), {}));
  REQUIRE(losses.size() == 20);
  for (size_t step = 0; step < losses.size(); ++step) {
    CAPTURE(step);
    const ModelRunner::Batch& batch = fixture.Batch(static_cast<int64_t>(step));
    const double evaluated = Must(fixture.runner().Evaluate(batch)).mean();
    const double trained = Must(fixture.runner().Train(batch)).mean();
    REQUIRE(std::abs(trained / losses[step] - 1) < kTolerance);
    REQUIRE(std::abs(evaluated / losses[step] - 1) < kTolerance);
    Must(optimizer->Step(static_cast<int64_t>(step) + 1, 1e-2f));
  }
}

TEST_CASE("twenty_steps_of_every_other_optimizer_have_pytorchs_losses") {
  const auto [kind, key, rate] = GENERATE(table<InnerOptimizer, std::string, float>({
      {InnerOptimizer::kSgd, "sgd", 0.05f},
      {InnerOptimizer::kRmsProp, "rmsprop", 1e-3f},
      {InnerOptimizer::kLamb, "lamb", 1e-2f},
      {InnerOptimizer::kMuon, "muon", 0.02f},
  }));
  const std::string name = GENERATE("gpt2", "llama");
  const std::string backend = GENERATE("reference", "cpu");
  CAPTURE(key, name, backend);
  Fixture fixture(name, NewBackend(backend), 2, DType::kFloat32, kind);
  ModelRunner& runner = fixture.runner();
  const std::vector<float> losses = fixture.Expected(key, "optimizers");
  auto optimizer =
      Must(Optimizer::Create(runner.backend(), runner.stream(), runner.layers(), {.kind = kind}));
  REQUIRE(losses.size() == 20);
  for (size_t step = 0; step < losses.size(); ++step) {
    CAPTURE(step);
    const double loss = Must(runner.Train(fixture.Batch(static_cast<int64_t>(step)))).mean();
    REQUIRE(std::abs(loss / losses[step] - 1) < kTolerance);
    Must(optimizer->Step(static_cast<int64_t>(step) + 1, rate));
  }
}

// ---- bf16: eight bits of every activation and weight, everything that is summed in fp32 ----

TEST_CASE("in bf16, logits, gradients and losses are PyTorch's but for rounding") {
  const std::string name = GENERATE(from_range(parity::kModels));
  CAPTURE(name);
  parity::Compared compared(name, NewReferenceBackend(), DType::kBfloat16,
                            Must(ReadModelConfig(Fixture::Folder(name))));
  compared.CheckLogits(0.03);
  compared.CheckGradients(parity::Bfloat16Tolerance(compared.fixture().config()));
}

TEST_CASE("in bf16, training follows PyTorch's losses, and small steps are not lost to rounding") {
  const std::string name = GENERATE(from_range(parity::kModels));
  CAPTURE(name);
  Fixture fixture(name, NewReferenceBackend(), 3, DType::kBfloat16);
  ModelRunner& runner = fixture.runner();
  const std::vector<float> losses = fixture.Expected("losses");
  auto optimizer = Must(Optimizer::Create(runner.backend(), runner.stream(), runner.layers(), {}));
  for (size_t step = 0; step < losses.size(); ++step) {
    CAPTURE(step);
    const double loss = Must(runner.Train(fixture.Batch(static_cast<int64_t>(step)))).mean();
    // Rounding grows with every step at this learning rate.
    REQUIRE(std::abs(loss / losses[step] - 1) < (step < 6 ? 0.01 : 0.1));
    Must(optimizer->Step(static_cast<int64_t>(step) + 1, 1e-2f));
  }
  // The layers read the rounded parameters; steps far below bf16's last bit still move the others.
  const std::vector<float> before = fixture.Read(runner.params(1));
  Must(runner.Train(fixture.Batch(0)));
  Must(optimizer->Step(21, 1e-6f));
  const std::vector<float> params = fixture.Read(runner.params(1));
  int moved = 0;
  for (size_t k = 0; k < before.size(); ++k) {
    moved += params[k] != before[k];
    REQUIRE(runner.layer(1).params_copy().as<Bfloat16>()[k] == RoundToBfloat16(params[k]));
  }
  REQUIRE(moved > static_cast<int>(before.size() / 2));
}

}  // namespace
}  // namespace atl

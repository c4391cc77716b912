#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "absl/strings/match.h"
#include "common/masked_tokens.h"
#include "common/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/testing/reference/reference.h"
#include "worker/model/generate.h"
#include "worker/model/runner.h"
#include "worker/model/weights.h"

namespace atl {
namespace {

// ---- vocabulary of these tests ----

ModelConfig Tiny(ModelFamily family, bool tied) {
  ModelConfig c;
  c.family = family;
  c.vocab = 29;
  c.d_model = 24;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = family == ModelFamily::kGpt2 ? 4 : 2;
  c.ffn = family == ModelFamily::kGpt2 ? 40 : 20;  // wider and narrower than d_model
  c.max_positions = 12;
  c.tied_head = tied;
  return c;
}

std::span<float> HostView(const Tensor& tensor) {
  return {tensor.f32(), static_cast<size_t>(tensor.size())};
}

std::vector<int32_t> Tokens(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.Below(29));
  return tokens;
}

// Every parameter random and far from special values.
void Scramble(std::span<float> params, uint64_t seed) {
  Rng rng(seed);
  for (float& value : params) value = static_cast<float>(0.3 * rng.Normal() + 0.05);
}

struct Subject {
  Subject(const ModelConfig& config, std::unique_ptr<Backend> with, RunnerOptions options)
      : backend(std::move(with)), model(*Model::Create(config)) {
    runner = *ModelRunner::Create(*backend, model, options);
    for (int i = 0; i < layers(); ++i) Scramble(HostView(runner->params(i)), 100 + i);
  }
  int layers() const { return static_cast<int>(model.layers().size()); }

  std::unique_ptr<Backend> backend;
  Model model;
  std::unique_ptr<ModelRunner> runner;
};

#define FOR_EVERY_MODEL()                                                       \
  const ModelFamily family = GENERATE(ModelFamily::kGpt2, ModelFamily::kLlama); \
  const bool tied = GENERATE(false, true);                                      \
  CAPTURE(family == ModelFamily::kGpt2, tied);                                  \
  const ModelConfig config = Tiny(family, tied)

// Runs micro-batches of two rows with F, B and W in any order; every one has memory of its own.
class Pipeline {
 public:
  static constexpr int64_t kRows = 2, kSeqLen = 7;

  Pipeline(const ModelConfig& config, int micro_batches)
      : backend_(NewCpuBackend(1)),
        model_(*Model::Create(config)),
        stream_(*backend_->NewStream()),
        shape_{kRows, kSeqLen},
        runs_(micro_batches) {
    const size_t layers = model_.layers().size();
    for (size_t i = 0; i < layers; ++i) {
      const auto& layer = *model_.layers()[i];
      const LayerBytes bytes = layer.Bytes(*backend_, shape_);
      params_.push_back(Memory(layer.layout().size * 4));
      grads_.push_back(Memory(layer.layout().size * 4));
      Scramble({static_cast<float*>(params_[i]), static_cast<size_t>(layer.layout().size)}, 7 + i);
      workspace_.bytes = std::max(workspace_.bytes, bytes.workspace);
      for (Run& run : runs_) {
        run.stash.push_back({Memory(bytes.forward_stash), Memory(bytes.backward_stash)});
        run.output.push_back(Matrix(layer.output_cols()));
        run.grad_input.push_back(Matrix(config.d_model));
      }
    }
    workspace_.data = Memory(workspace_.bytes);
    tied_grads_ = Memory(config.vocab * config.d_model * 4);
    constants_ = model_.Constants(kSeqLen, Memory(kSeqLen * config.head_dim() * 4));
    ATOLL_CHECK(model_.InitConstants(*backend_, *stream_, constants_).ok());
    uint64_t seed = 1;
    for (Run& run : runs_) {
      run.host_tokens = Tokens(shape_.tokens(), seed++);
      run.tokens = {run.host_tokens.data(), DType::kInt32, 1, shape_.tokens()};
    }
  }

  int layers() const { return static_cast<int>(params_.size()); }

  void F(int m) {
    Run& run = runs_[m];
    for (int i = 0; i < layers(); ++i) {
      REQUIRE(model_.layers()[i]
                  ->Forward(Call(), Layer(i), Input(m, i), run.output[i], run.stash[i])
                  .ok());
    }
    // Any gradient will do for the loss: here the logits themselves.
  }
  void B(int m, int i) {
    Run& run = runs_[m];
    REQUIRE(model_.layers()[i]
                ->BackwardInput(Call(), Layer(i), Input(m, i), GradOutput(m, i), run.grad_input[i],
                                run.stash[i])
                .ok());
  }
  void W(int m, int i) {
    model_.layers()[i]->BackwardWeight(Call(), Layer(i), Input(m, i), GradOutput(m, i),
                                       runs_[m].stash[i]);
  }

  // All gradients, and the head's for a tied table.
  std::vector<float> Grads() const {
    std::vector<float> all;
    for (int i = 0; i < layers(); ++i) {
      const auto* grads = static_cast<const float*>(grads_[i]);
      all.insert(all.end(), grads, grads + model_.layers()[i]->layout().size);
    }
    const int64_t table = model_.config().vocab * model_.config().d_model;
    const auto* tied = static_cast<const float*>(tied_grads_);
    all.insert(all.end(), tied, tied + table);
    return all;
  }

 private:
  struct Run {
    std::vector<int32_t> host_tokens;
    Tensor tokens;
    std::vector<Stash> stash;
    std::vector<Tensor> output, grad_input;
  };

  void* Memory(int64_t bytes) {
    buffers_.push_back(*backend_->Allocate(bytes));
    std::memset(buffers_.back().data(), 0, static_cast<size_t>(bytes));
    return buffers_.back().data();
  }
  Tensor Matrix(int64_t cols) {
    return {Memory(shape_.tokens() * cols * 4), DType::kFloat32, shape_.tokens(), cols};
  }
  LayerCall Call() { return {*backend_, *stream_, workspace_, shape_, constants_}; }
  LayerMemory Layer(int i) {
    return {params_[i], static_cast<float*>(grads_[i]), params_[0],
            static_cast<float*>(tied_grads_)};
  }
  Tensor Input(int m, int i) { return i == 0 ? runs_[m].tokens : runs_[m].output[i - 1]; }
  Tensor GradOutput(int m, int i) {
    return i + 1 == layers() ? runs_[m].output[i] : runs_[m].grad_input[i + 1];
  }

  std::unique_ptr<Backend> backend_;
  Model model_;
  std::unique_ptr<Stream> stream_;
  BatchShape shape_;
  std::vector<Buffer> buffers_;
  std::vector<void*> params_, grads_;
  void* tied_grads_ = nullptr;
  Tensor constants_;
  Workspace workspace_;
  std::vector<Run> runs_;
};

// ---- F, B, W ----

TEST_CASE("gradients are bit-identical for every legal order of F, B and W") {
  FOR_EVERY_MODEL();
  constexpr int kMicroBatches = 3;
  Pipeline in_turn(config, kMicroBatches);
  const int last = in_turn.layers() - 1;
  for (int m = 0; m < kMicroBatches; ++m) {
    in_turn.F(m);
    for (int i = last; i >= 0; --i) in_turn.B(m, i), in_turn.W(m, i);
  }

  Pipeline late(config, kMicroBatches);  // all F, all B in the other order, then all W
  for (int m = 0; m < kMicroBatches; ++m) late.F(m);
  for (int m = kMicroBatches - 1; m >= 0; --m) {
    for (int i = last; i >= 0; --i) late.B(m, i);
  }
  for (int i = 0; i <= last; ++i) {
    for (int m = 0; m < kMicroBatches; ++m) late.W(m, i);
  }
  REQUIRE(in_turn.Grads() == late.Grads());

  Pipeline shuffled(config, kMicroBatches);  // W of m while B of m + 1 runs, layers upside down
  for (int m = 0; m < kMicroBatches; ++m) {
    shuffled.F(m);
    for (int i = last; i >= 0; --i) {
      shuffled.B(m, i);
      if (m > 0) shuffled.W(m - 1, last - i);
    }
  }
  for (int i = last; i >= 0; --i) shuffled.W(kMicroBatches - 1, i);
  REQUIRE(in_turn.Grads() == shuffled.Grads());
}

TEST_CASE("gradients are the loss's slopes") {
  FOR_EVERY_MODEL();
  Subject s(config, NewReferenceBackend(), {2, 9});
  const std::vector<int32_t> tokens = Tokens(3 * 10, 5);
  const auto loss = [&] { return s.runner->Evaluate(tokens, 3)->mean(); };
  REQUIRE(std::abs(s.runner->Train(tokens, 3)->mean() - loss()) < 1e-6);
  Rng rng(1);
  for (int i = 0; i < s.layers(); ++i) {
    for (const ParamSpec& param : s.model.layers()[i]->layout().params) {
      // Along a random direction all elements count, and rounding does not drown the slope.
      const auto values = HostView(s.runner->params(i)).subspan(param.offset, param.size);
      const auto grads = HostView(s.runner->grads(i)).subspan(param.offset, param.size);
      const std::vector<float> start(values.begin(), values.end());
      std::vector<double> direction;
      double slope = 0, norm = 0;
      for (const float grad : grads) {
        direction.push_back((grad > 0 ? 1 : -1) * (0.5 + rng.Uniform()));
        slope += direction.back() * grad;
        norm += direction.back() * direction.back();
      }
      const double step = 3e-3 / std::sqrt(norm);
      double side[2];
      for (int sign : {0, 1}) {
        for (size_t k = 0; k < start.size(); ++k) {
          values[k] = static_cast<float>(start[k] + (sign == 0 ? -step : step) * direction[k]);
        }
        side[sign] = loss();
      }
      std::copy(start.begin(), start.end(), values.begin());
      CAPTURE(param.name, slope);
      REQUIRE(std::abs((side[1] - side[0]) / (2 * step) - slope) <
              2e-2 * std::abs(slope) + 3e-4 * std::sqrt(norm));
    }
  }
}

TEST_CASE("micro-batches add up to the batch, and a second batch adds to the first") {
  FOR_EVERY_MODEL();
  const std::vector<int32_t> tokens = Tokens(5 * 10, 8);
  Subject whole(config, NewCpuBackend(1), {5, 9}), cut(config, NewCpuBackend(1), {2, 9});
  const double loss = whole.runner->Train(tokens, 5)->mean();
  REQUIRE(cut.runner->Train(tokens, 5)->mean() == Approx(loss).epsilon(1e-6));
  const auto same = [&](float factor) {
    for (int i = 0; i < whole.layers(); ++i) {
      const auto a = HostView(whole.runner->grads(i)), b = HostView(cut.runner->grads(i));
      for (size_t k = 0; k < a.size(); ++k) {
        REQUIRE(std::abs(factor * a[k] - b[k]) <= 1e-5 + 1e-4 * std::abs(b[k]));
      }
    }
  };
  same(1);
  REQUIRE(cut.runner->Train(tokens, 5).ok());
  same(2);
}

TEST_CASE("a runner that only evaluates finds the same loss") {
  FOR_EVERY_MODEL();
  const std::vector<int32_t> tokens = Tokens(4 * 7, 3);
  RunnerOptions options{3, 9};
  Subject trains(config, NewCpuBackend(1), options);
  options.train = false;
  Subject evaluates(config, NewCpuBackend(1), options);
  REQUIRE(evaluates.runner->Evaluate(tokens, 4)->nats == trains.runner->Evaluate(tokens, 4)->nats);
}

TEST_CASE("memory that is not there is missed by layer and purpose") {
  const auto backend = NewReferenceBackend();
  const auto stream = *backend->NewStream();
  LayerLayout layout;
  layout.name = "block.3";
  layout.size = int64_t{1} << 50;
  const auto state =
      LayerState::Create(*backend, *stream, layout, DType::kFloat32, LayerState::Training{});
  REQUIRE(absl::IsResourceExhausted(state.status()));
  REQUIRE(absl::StartsWith(state.status().message(),
                           "layer block.3, parameters: out of memory on the reference: "));
}

TEST_CASE("sequences longer than the model's positions are refused") {
  const Model model = *Model::Create(Tiny(ModelFamily::kGpt2, true));
  const auto backend = NewCpuBackend(1);
  const auto runner = ModelRunner::Create(*backend, model, {1, 13});
  REQUIRE(runner.status().message() ==
          "sequences of 13 tokens; the model has positions for 1 to 12");
}

// ---- targets that are not counted ----

TEST_CASE("the_loss_of_a_masked_row_is_the_mean_over_the_targets_that_count") {
  FOR_EVERY_MODEL();
  Subject s(config, NewCpuBackend(1), {2, 7, true});
  const std::vector<int32_t> row = {3, 1, 4, 1, 5, 2, 6, 5};
  std::vector<double> nats;  // of each target: what it adds to the row's
  for (size_t n = 2; n <= row.size(); ++n) {
    nats.push_back(s.runner->Evaluate(std::span(row).first(n), 1)->nats);
  }
  std::vector<int32_t> masked = row;
  for (const size_t i : {0, 1, 2, 4, 7}) masked[i] = MaskToken(masked[i]);
  const LossSum loss = *s.runner->Evaluate(masked, 1);
  REQUIRE(loss.tokens == 3);  // targets 3, 5 and 6
  REQUIRE(loss.nats == Approx(nats[2] - nats[1] + nats[5] - nats[3]).epsilon(1e-4));
  // A masked row has no gradient: two rows, one without a target, train as one row does.
  const auto gradient = [&](std::vector<int32_t> rows, int64_t count) {
    std::vector<std::vector<float>> all;
    for (int l = 0; l < s.layers(); ++l) {
      const std::span<float> host = HostView(s.runner->grads(l));
      std::fill(host.begin(), host.end(), 0.0f);
    }
    REQUIRE(s.runner->Train(rows, count)->tokens == 3);
    for (int l = 0; l < s.layers(); ++l) {
      const std::span<float> host = HostView(s.runner->grads(l));
      all.emplace_back(host.begin(), host.end());
    }
    return all;
  };
  std::vector<int32_t> two = masked;
  for (const int32_t token : row) two.push_back(MaskToken(token));
  const auto one_row = gradient(masked, 1), two_rows = gradient(two, 2);
  for (size_t l = 0; l < one_row.size(); ++l) {
    for (size_t i = 0; i < one_row[l].size(); ++i) {
      REQUIRE(two_rows[l][i] == Approx(one_row[l][i]).margin(1e-6));
    }
  }
}

// ---- several documents in a sequence ----

struct Gradients {
  LossSum loss;
  std::vector<double> values;
};

Gradients TrainInDouble(const ModelConfig& config, const RunnerOptions& options,
                        const std::vector<std::vector<int32_t>>& batches) {
  const auto backend = NewReferenceBackend();
  const Model model = *Model::Create(config, DType::kFloat64);
  const auto runner = *ModelRunner::Create(*backend, model, options);
  const auto values = [](const Tensor& x) {
    return std::span(x.as<double>(), static_cast<size_t>(x.size()));
  };
  Rng rng(3);
  for (LayerState* layer : runner->layers()) {
    for (double& value : values(layer->params())) value = 0.3 * rng.Normal() + 0.05;
  }
  Gradients all;
  for (const std::vector<int32_t>& row : batches) {
    std::vector<std::vector<double>> before;
    for (LayerState* layer : runner->layers()) {
      const auto grads = values(layer->grads());
      before.emplace_back(grads.begin(), grads.end());
      std::ranges::fill(grads, 0);
    }
    const LossSum loss = *runner->Train(row, 1);
    all.loss.nats += loss.nats;
    all.loss.tokens += loss.tokens;
    // Gradients are of the mean of a batch: sums are compared.
    for (size_t l = 0; l < before.size(); ++l) {
      const auto grads = values(runner->layers()[l]->grads());
      for (size_t i = 0; i < grads.size(); ++i) {
        grads[i] = before[l][i] + grads[i] * static_cast<double>(loss.tokens);
      }
    }
  }
  for (LayerState* layer : runner->layers()) {
    const auto grads = values(layer->grads());
    all.values.insert(all.values.end(), grads.begin(), grads.end());
  }
  return all;
}

TEST_CASE("packed_documents_have_the_loss_and_gradients_of_each_document_alone") {
  FOR_EVERY_MODEL();
  const std::vector<std::vector<int32_t>> alone = {{3, 1, 4, 1, 5}, {9, 2}, {6, 5, 3, 5}, {8, 9}};
  std::vector<int32_t> packed;
  for (const std::vector<int32_t>& document : alone) {
    packed.push_back(MarkDocument(document[0]));
    packed.insert(packed.end(), document.begin() + 1, document.end());
  }
  const Gradients each = TrainInDouble(config, {1, 12, true}, alone);
  const auto together = [&](Documents documents) {
    return TrainInDouble(config, {.seq_len = 12, .documents = documents}, {packed});
  };
  const Gradients sum = together(Documents::kMask);
  REQUIRE(sum.loss.tokens == 9);
  REQUIRE(each.loss.tokens == 9);
  CHECK(sum.loss.nats == Approx(each.loss.nats).epsilon(1e-12));
  double difference = 0, largest = 0;
  for (size_t i = 0; i < sum.values.size(); ++i) {
    difference = std::max(difference, std::abs(sum.values[i] - each.values[i]));
    largest = std::max(largest, std::abs(each.values[i]));
  }
  CHECK(difference < 1e-6 * largest);  // the factor of a mean is a float
  // Rotary positions are relative; learned ones are others where they go on.
  const bool alike = std::abs(together(Documents::kContinue).loss.nats / each.loss.nats - 1) < 1e-9;
  CHECK(alike == (family == ModelFamily::kLlama));
  CHECK(std::abs(together(Documents::kText).loss.nats / each.loss.nats - 1) > 1e-6);
}

// ---- sampling ----

TEST_CASE("sampling follows the logits, the temperature and top_k") {
  const std::vector<float> logits = {0.0f, 2.0f, 1.0f, 2.0f};
  REQUIRE(SampleToken(logits, {.temperature = 0}, 0.9) == 1);
  REQUIRE(SampleToken(logits, {.top_k = 1}, 0.999) == 1);
  Rng rng(4);
  std::vector<int> seen(4);
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) ++seen[SampleToken(logits, {.temperature = 0.5}, rng.Uniform())];
  const double sum = std::exp(0.0) + 2 * std::exp(4.0) + std::exp(2.0);
  for (size_t i = 0; i < 4; ++i) {
    REQUIRE(seen[i] / double{kDraws} == Approx(std::exp(2 * logits[i]) / sum).margin(0.012));
  }
}

TEST_CASE("generation repeats for a seed, slides past the context and refuses bad prompts") {
  Subject s(Tiny(ModelFamily::kLlama, false), NewCpuBackend(1), {1, 8, false});
  const std::vector<int32_t> prompt = {1, 2, 3};
  std::vector<int32_t> seen;
  const auto text = Generate(*s.runner, nullptr, prompt, {.count = 20, .seed = 5},
                             [&](int32_t token) { return seen.push_back(token), true; });
  REQUIRE(text->size() == 20);
  REQUIRE(*text == seen);
  REQUIRE(*Generate(*s.runner, nullptr, prompt, {.count = 20, .seed = 5}) == *text);
  REQUIRE(*Generate(*s.runner, nullptr, prompt, {.count = 20, .seed = 6}) != *text);
  REQUIRE_FALSE(Generate(*s.runner, nullptr, {}, {}).ok());
  const std::vector<int32_t> outside = {29};
  REQUIRE(Generate(*s.runner, nullptr, outside, {}).status().message() ==
          "the prompt's token 29 is outside the vocabulary of 29");
}

TEST_CASE("top_p keeps the fewest likeliest tokens, a stop token or the callback ends generation") {
  const std::vector<float> logits = {0.0f, std::log(6.0f), std::log(3.0f), -9.0f};
  Rng rng(4);
  for (int i = 0; i < 500; ++i) {
    REQUIRE(SampleToken(logits, {.top_p = 0.5}, rng.Uniform()) == 1);
    const int32_t token = SampleToken(logits, {.top_p = 0.7}, rng.Uniform());
    REQUIRE((token == 1 || token == 2));
  }
  Subject s(Tiny(ModelFamily::kLlama, false), NewCpuBackend(1), {1, 8, false});
  const std::vector<int32_t> prompt = {1, 2, 3};
  const auto text = *Generate(*s.runner, nullptr, prompt, {.count = 20, .seed = 5});
  SamplingOptions stops{.count = 20, .stop = {text[7]}, .seed = 5};
  const auto end = std::find(text.begin(), text.end(), text[7]);
  REQUIRE(*Generate(*s.runner, nullptr, prompt, stops) == std::vector<int32_t>(text.begin(), end));
  const auto one =
      Generate(*s.runner, nullptr, prompt, {.count = 20, .seed = 5}, [](int32_t) { return false; });
  REQUIRE(one->size() == 1);
}

TEST_CASE("a pass over new tokens alone gives the logits of a pass over all of them") {
  const auto family = GENERATE(ModelFamily::kGpt2, ModelFamily::kLlama, ModelFamily::kMistral,
                               ModelFamily::kGemma2);
  ModelConfig config = Tiny(family, true);
  CAPTURE(static_cast<int>(family));
  // Widths of heads of real models, and one that is no multiple of a vector's lanes.
  const auto head_dim = GENERATE(int64_t{0}, int64_t{64}, int64_t{84});
  CAPTURE(head_dim);
  if (head_dim > 0) {
    config.d_model = head_dim * config.heads;
    config.head_channels = 0;
  }
  if (family == ModelFamily::kMistral) config.window.tokens = 4;
  if (family == ModelFamily::kGemma2) config.window.tokens = 20;
  if (family == ModelFamily::kGemma2) config.attention_softcap = 0.05;
  config.max_positions = 40;
  CachedCpuBackend cached = NewCachedCpuBackend(2);
  SequenceCache* cache = cached.cache;
  Subject with(config, std::move(cached.backend), {1, 40, false});
  Subject without(config, NewCpuBackend(1), {1, 40, false});
  const std::vector<int32_t> tokens = Tokens(40, 3);
  std::vector<float> got(29), expected(29);
  size_t passed = 0;
  // Also several new tokens in one pass.
  for (const size_t length : {3, 4, 5, 8, 12, 16, 17, 30, 39, 40}) {
    cache->StartPass(static_cast<int64_t>(passed));
    REQUIRE(with.runner->Logits(std::span(tokens).subspan(passed, length - passed), got).ok());
    REQUIRE(without.runner->Logits(std::span(tokens).first(length), expected).ok());
    for (size_t i = 0; i < 29; ++i) REQUIRE(got[i] == Approx(expected[i]).margin(1e-5));
    passed = length;
  }
  // A context that is full goes on with its newer half.
  REQUIRE(Generate(*with.runner, cache, tokens, {.count = 70, .temperature = 0})->size() == 70);
}

#undef FOR_EVERY_MODEL

}  // namespace
}  // namespace atl

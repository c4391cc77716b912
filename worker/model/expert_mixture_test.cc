// Mixtures of experts in double: gradients against slopes, of the loss with the routers' losses.

#include <catch2/catch.hpp>
#include <cmath>

#include "common/rng.h"
#include "kernels/testing/reference/reference.h"
#include "worker/model/runner.h"

namespace atl {
namespace {

constexpr int64_t kMixtureVocab = 23, kMixtureSeqLen = 7, kMixtureRows = 3;

ModelConfig MakeMixture(const Experts& experts) {
  ModelConfig c;
  c.family = ModelFamily::kQwen3Moe;
  c.vocab = kMixtureVocab;
  c.d_model = 12;
  c.layers = 2;
  c.heads = 2;
  c.kv_heads = 1;
  c.ffn = 10;
  c.max_positions = 12;
  c.experts = experts;
  return c;
}

const Experts kEachKind[] = {
    {.count = 5,
     .per_token = 2,
     .hidden = 6,
     .normalise = true,
     .auxiliary_loss = 0.3,
     .adds_auxiliary_loss = true,
     .z_loss = 0.05},
    {.count = 6,
     .per_token = 3,
     .hidden = 5,
     .shared_hidden = 7,
     .shared_gate = true,
     .dense_blocks = {0},
     .auxiliary_loss = 0.4,
     .adds_auxiliary_loss = true},
    // DeepSeek's.
    {.count = 6,
     .per_token = 2,
     .hidden = 5,
     .shared_hidden = 4,
     .score = Experts::Score::kSigmoid,
     .normalise = true,
     .scale = 2.5,
     .correction = true,
     .auxiliary_loss = 0.3,
     .adds_auxiliary_loss = true},
    {.count = 3, .per_token = 1, .hidden = 4, .z_loss = 0.1},
    {.count = 4, .per_token = 4, .hidden = 4, .auxiliary_loss = 0.5},  // which training adds not
};

class MixtureInDouble {
 public:
  explicit MixtureInDouble(const ModelConfig& config)
      : config_(config),
        backend_(NewReferenceBackend()),
        model_(*Model::Create(config, DType::kFloat64)),
        runner_(*ModelRunner::Create(*backend_, model_,
                                     {.micro_batch_rows = 2, .seq_len = kMixtureSeqLen})) {
    Rng rng(7);
    for (int i = 0; i < layers(); ++i) {
      for (double& x : Numbers(runner_->params(i))) x = 0.3 * rng.Normal() + 0.05;
    }
    for (int64_t i = 0; i < kMixtureRows * (kMixtureSeqLen + 1); ++i) {
      tokens_.push_back(static_cast<int32_t>(rng.Below(kMixtureVocab)));
    }
  }

  int layers() const { return static_cast<int>(model_.layers().size()); }
  const LayerLayout& layout(int i) const {
    return model_.layers()[static_cast<size_t>(i)]->layout();
  }
  static std::span<double> Numbers(const Tensor& x) {
    return {x.as<double>(), static_cast<size_t>(x.size())};
  }
  std::span<double> params(int i) { return Numbers(runner_->params(i)); }
  std::span<double> grads(int i) { return Numbers(runner_->grads(i)); }

  // Returns what training makes smaller. Adds to grads.
  double Train() {
    const LossSum sum = *runner_->Train(tokens_, kMixtureRows);
    const Experts& e = config_.experts;
    return sum.mean() + (e.adds_auxiliary_loss ? e.auxiliary_loss : 0) * sum.balance() +
           e.z_loss * sum.router_z();
  }

 private:
  const ModelConfig config_;
  std::unique_ptr<Backend> backend_;
  Model model_;
  std::unique_ptr<ModelRunner> runner_;
  std::vector<int32_t> tokens_;
};

TEST_CASE("gradients_of_a_mixture_are_the_slopes_of_its_loss_and_its_routers_losses") {
  for (const Experts& experts : kEachKind) {
    CAPTURE(experts.count, experts.per_token);
    MixtureInDouble mixture(MakeMixture(experts));
    mixture.Train();
    std::vector<std::vector<double>> grads;
    for (int i = 0; i < mixture.layers(); ++i) {
      grads.emplace_back(mixture.grads(i).begin(), mixture.grads(i).end());
    }
    Rng rng(3);
    for (int i = 0; i < mixture.layers(); ++i) {
      for (const ParamSpec& param : mixture.layout(i).params) {
        if (param.offset >= mixture.layout(i).trained_size) continue;
        const auto values = mixture.params(i).subspan(param.offset, param.size);
        const std::vector<double> start(values.begin(), values.end());
        std::vector<double> direction;
        double slope = 0;
        for (int64_t k = 0; k < param.size; ++k) {
          direction.push_back(rng.Normal());
          slope += direction.back() * grads[static_cast<size_t>(i)][param.offset + k];
        }
        constexpr double kStep = 1e-6;  // no choice changes on the way
        double side[2];
        for (const int sign : {0, 1}) {
          for (size_t k = 0; k < start.size(); ++k) {
            values[k] = start[k] + (sign == 0 ? -kStep : kStep) * direction[k];
          }
          side[sign] = mixture.Train();
        }
        std::copy(start.begin(), start.end(), values.begin());
        CAPTURE(i, param.name, slope);
        // The factor of a mean is a float.
        CHECK((side[1] - side[0]) / (2 * kStep) == Approx(slope).epsilon(1e-6).margin(1e-7));
      }
    }
  }
}

TEST_CASE("a_mixture_needs_no_memory_of_a_feed_forward_that_no_block_has") {
  const auto backend = NewReferenceBackend();
  const auto workspace = [&](int64_t ffn, const std::vector<int64_t>& dense_blocks) {
    ModelConfig config = MakeMixture(kEachKind[0]);
    config.ffn = ffn;
    config.experts.dense_blocks = dense_blocks;
    const Model model = *Model::Create(config, DType::kFloat64);
    return model.layers()[2]->Bytes(*backend, {1, kMixtureSeqLen}).workspace;
  };
  CHECK(workspace(10, {}) == workspace(1000, {}));
  CHECK(workspace(10, {0}) < workspace(1000, {0}));
}

TEST_CASE("adapters_of_half_precision_are_refused_where_a_bias_would_be_rounded") {
  ModelConfig config = MakeMixture(kEachKind[2]);
  CHECK(Model::Create(config, DType::kBfloat16).ok());
  config.adapter = {.rank = 2, .alpha = 2, .targets = {"q_proj"}};
  CHECK(Model::Create(config, DType::kFloat32).ok());
  CHECK(absl::IsInvalidArgument(Model::Create(config, DType::kBfloat16).status()));
}

TEST_CASE("balance_is_the_number_of_experts_a_token_where_all_have_the_same_share") {
  const ModelConfig config = MakeMixture({.count = 4, .per_token = 4, .hidden = 4});
  const auto backend = NewReferenceBackend();
  const Model model = *Model::Create(config);
  auto runner = *ModelRunner::Create(*backend, model, {.micro_batch_rows = 2, .seq_len = 4});
  for (LayerState* layer : runner->layers()) {
    std::fill_n(layer->params().f32(), layer->params().size(), 0.25f);
  }
  const LossSum sum = *runner->Train(std::vector<int32_t>(10, 1), 2);
  REQUIRE(sum.balance() == Approx(4));
}

}  // namespace
}  // namespace atl

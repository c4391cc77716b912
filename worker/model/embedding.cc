// The first layer: rows of the tokens' table, with learned positions, and a norm or a scale where
// the architecture has one.

#include "worker/model/layer_base.h"

namespace atl {
namespace {

class Embedding final : public LayerBase {
 public:
  Embedding(const ModelConfig& config, const TensorPart& part, DType compute, LayerLayout layout)
      : LayerBase(config, part, compute, std::move(layout)),
        scale_(static_cast<float>(arch_.embedding_scale)) {}

  int64_t output_cols() const override { return config_.d_model; }

 private:
  Tensor InputShape(const BatchShape& shape) const override {
    return {nullptr, DType::kInt32, 1, shape.tokens()};
  }
  void StashBytes(const BatchShape& shape, LayerBytes* bytes) const override {
    const EmbeddingStash s = MakeEmbeddingStash(config_, shape, element_bytes());
    bytes->forward_stash = s.forward_bytes;
    bytes->backward_stash = s.backward_bytes;
  }

  struct Stashed {
    Norm norm;
    Tensor sum, dsum;
  };
  Stashed GetStash(const Args& a) const {
    const EmbeddingStash s = MakeEmbeddingStash(config_, a.shape, element_bytes());
    return {{Param::kNorm, Param::kNormBias, At(s.norm.mean, a.stash.forward),
             At(s.norm.rstd, a.stash.forward)},
            At(s.sum, a.stash.forward),
            At(s.grad_sum, a.stash.backward)};
  }

  void DoForward(Exec& exec, const Args& a) const override {
    const Stashed s = GetStash(a);
    const Tensor sum = arch_.embedding_norm ? s.sum : a.output;
    exec.Run(EmbeddingForward{
        .tokens = a.input,
        .table = Weight(a, Param::kTable, part_.vocab.size(), config_.d_model),
        .positions = OnLead(Weight(a, Param::kPositions, config_.max_positions, config_.d_model)),
        .types = OnLead(Weight(a, Param::kTokenTypes, arch_.token_types, config_.d_model)),
        .y = sum,
        .seq_len = a.shape.seq_len,
        .typed = arch_.token_types > 0,
        .part = !part_.whole(),
        .first_token = part_.vocab.begin,
        .starts = PositionStarts(a)});
    exec.AllReduceSum(sum);
    if (scale_ != 1) exec.Run(Scale{sum, scale_});
    if (arch_.embedding_norm) RunNorm(exec, a, s.norm, sum, a.output);
  }

  // Tokens have no gradient; what is here is W's to read.
  void DoBackwardInput(Exec& exec, const Args& a, const Tensor&) const override {
    if (!arch_.embedding_norm || adapts_) return;
    const Stashed s = GetStash(a);
    RunNormBackwardInput(exec, a, s.norm, a.output, s.sum, {}, s.dsum);
  }

  void DoBackwardWeight(Exec& exec, const Args& a) const override {
    if (adapts_) return;
    const Stashed s = GetStash(a);
    Tensor dsum = a.output;
    if (arch_.embedding_norm) {
      RunNormBackwardWeight(exec, a, s.norm, a.output, s.sum);
      dsum = s.dsum;
    }
    if (scale_ != 1) {
      const Tensor scaled = exec.Temporary(compute_, dsum.rows, dsum.cols);
      exec.Run(Convert{dsum, scaled});
      exec.Run(Scale{scaled, scale_});
      dsum = scaled;
    }
    exec.Run(EmbeddingBackwardWeight{
        .tokens = a.input,
        .dy = dsum,
        .dtable = Grad(a, Param::kTable, part_.vocab.size(), config_.d_model),
        .dpositions = Grad(a, Param::kPositions, config_.max_positions, config_.d_model),
        .dtypes = Grad(a, Param::kTokenTypes, arch_.token_types, config_.d_model),
        .seq_len = a.shape.seq_len,
        .typed = arch_.token_types > 0,
        .part = !part_.whole(),
        .first_token = part_.vocab.begin,
        .starts = PositionStarts(a)});
  }

  const float scale_;
};

}  // namespace

std::unique_ptr<Layer> NewEmbedding(const ModelConfig& config, const TensorPart& part,
                                    DType compute, LayerLayout layout) {
  return std::make_unique<Embedding>(config, part, compute, std::move(layout));
}

}  // namespace atl

// The two ends of a model: embedding, and final norm with head.

#include "worker/model/layer_base.h"

namespace atl {
namespace {

class Embedding final : public LayerBase {
 public:
  Embedding(const ModelConfig& config, const TensorPart& part, DType compute, LayerLayout layout)
      : LayerBase(config, part, compute, std::move(layout)),
        learned_positions_(config.family == ModelFamily::kGpt2) {}

  int64_t output_cols() const override { return config_.d_model; }

 private:
  enum { kTable, kPositions };

  Tensor InputShape(const BatchShape& shape) const override {
    return {nullptr, DType::kInt32, 1, shape.tokens()};
  }
  void StashBytes(const BatchShape&, LayerBytes*) const override {}

  void DoForward(Exec& exec, const Args& a) const override {
    EmbeddingForward op{.tokens = a.input,
                        .table = Param(a, kTable, part_.vocab.size(), config_.d_model),
                        .y = a.output,
                        .seq_len = a.shape.seq_len,
                        .part = !part_.whole(),
                        .first_token = part_.vocab.begin};
    if (learned_positions_) {
      op.positions = OnLead(Param(a, kPositions, config_.max_positions, config_.d_model));
    }
    exec.Run(op);
    exec.AllReduceSum(a.output);
  }

  void DoBackwardInput(Exec&, const Args&, const Tensor&) const override {}

  void DoBackwardWeight(Exec& exec, const Args& a) const override {
    EmbeddingBackwardWeight op{.tokens = a.input,
                               .dy = a.output,
                               .dtable = Grad(a, kTable, part_.vocab.size(), config_.d_model),
                               .seq_len = a.shape.seq_len,
                               .part = !part_.whole(),
                               .first_token = part_.vocab.begin};
    if (learned_positions_) {
      op.dpositions = Grad(a, kPositions, config_.max_positions, config_.d_model);
    }
    exec.Run(op);
  }

  const bool learned_positions_;
};

class Head final : public LayerBase {
 public:
  Head(const ModelConfig& config, const TensorPart& part, DType compute, LayerLayout layout)
      : LayerBase(config, part, compute, std::move(layout)),
        d_(config.d_model),
        norm_(config.tied_head ? 0 : 1) {}

  int64_t output_cols() const override { return part_.vocab.size(); }

 private:
  struct ForwardStash {
    Tensor mean, rstd, normed;
    int64_t bytes;
  };
  ForwardStash CarveForward(const BatchShape& shape, void* memory) const {
    const int64_t n = shape.tokens();
    Carver c(memory);
    ForwardStash s;
    s.mean = c.Take(state_, 1, n);
    s.rstd = c.Take(state_, 1, n);
    s.normed = c.Take(compute_, n, d_);
    s.bytes = c.bytes();
    return s;
  }
  Tensor CarveBackward(const BatchShape& shape, void* memory) const {
    return Carver(memory).Take(compute_, shape.tokens(), d_);
  }
  void StashBytes(const BatchShape& shape, LayerBytes* bytes) const override {
    bytes->forward_stash = CarveForward(shape, nullptr).bytes;
    Carver backward(nullptr);
    backward.Take(compute_, shape.tokens(), d_);
    bytes->backward_stash = backward.bytes();
  }

  bool gpt2() const { return config_.family == ModelFamily::kGpt2; }
  Tensor Table(const Args& a) const {
    return config_.tied_head ? Tensor(a.memory.tied_params, compute_, part_.vocab.size(), d_)
                             : Param(a, 0, part_.vocab.size(), d_);
  }
  Tensor TableGrad(const Args& a) const {
    return config_.tied_head ? Tensor(a.memory.tied_grads, state_, part_.vocab.size(), d_)
                             : Grad(a, 0, part_.vocab.size(), d_);
  }

  void DoForward(Exec& exec, const Args& a) const override {
    const ForwardStash s = CarveForward(a.shape, a.stash.forward);
    const float eps = static_cast<float>(config_.norm_eps);
    const Tensor w = Param(a, norm_, 1, d_);
    if (gpt2()) {
      exec.Run(
          LayerNormForward{a.input, w, Param(a, norm_ + 1, 1, d_), s.normed, s.mean, s.rstd, eps});
    } else {
      exec.Run(RmsNormForward{a.input, w, s.normed, s.rstd, eps});
    }
    exec.Run(LinearForward{.x = s.normed, .w = Table(a), .y = a.output});
  }

  void DoBackwardInput(Exec& exec, const Args& a, const Tensor& grad_input) const override {
    const ForwardStash s = CarveForward(a.shape, a.stash.forward);
    const Tensor dnormed = CarveBackward(a.shape, a.stash.backward);
    const Tensor w = Param(a, norm_, 1, d_);
    exec.Run(LinearBackwardInput{.dy = a.output, .w = Table(a), .dx = dnormed});
    exec.AllReduceSum(dnormed);
    if (gpt2()) {
      exec.Run(LayerNormBackwardInput{dnormed, a.input, w, s.mean, s.rstd, {}, grad_input});
    } else {
      exec.Run(RmsNormBackwardInput{dnormed, a.input, w, s.rstd, {}, grad_input});
    }
  }

  void DoBackwardWeight(Exec& exec, const Args& a) const override {
    const ForwardStash s = CarveForward(a.shape, a.stash.forward);
    const Tensor dnormed = CarveBackward(a.shape, a.stash.backward);
    const Tensor dw = Grad(a, norm_, 1, d_);
    exec.Run(LinearBackwardWeight{.x = s.normed, .dy = a.output, .dw = TableGrad(a)});
    if (gpt2()) {
      exec.Run(
          LayerNormBackwardWeight{dnormed, a.input, s.mean, s.rstd, dw, Grad(a, norm_ + 1, 1, d_)});
    } else {
      exec.Run(RmsNormBackwardWeight{dnormed, a.input, s.rstd, dw});
    }
  }

  const int64_t d_;
  const int norm_;  // position of the norm's weight in the layout
};

}  // namespace

std::unique_ptr<Layer> NewEmbedding(const ModelConfig& config, const TensorPart& part,
                                    DType compute, LayerLayout layout) {
  return std::make_unique<Embedding>(config, part, compute, std::move(layout));
}

std::unique_ptr<Layer> NewHead(const ModelConfig& config, const TensorPart& part, DType compute,
                               LayerLayout layout) {
  return std::make_unique<Head>(config, part, compute, std::move(layout));
}

}  // namespace atl

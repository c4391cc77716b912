// The last layer: a norm, and the product with the head's matrix or the embedding's table. Of an
// encoder, a product and a nonlinearity come before the norm.

#include "worker/model/layer_base.h"

namespace atl {
namespace {

class Head final : public LayerBase {
 public:
  Head(const ModelConfig& config, const TensorPart& part, DType compute, LayerLayout layout)
      : LayerBase(config, part, compute, std::move(layout)),
        d_(config.d_model),
        transforms_(arch_.objective == Objective::kMaskedToken) {}

  int64_t output_cols() const override { return part_.vocab.size(); }

 private:
  struct Stashed {
    Norm norm;
    Tensor normed, pre, transformed;
    Tensor dnormed, dpre;
  };
  Stashed GetStash(const Args& a) const {
    const HeadStash s = MakeHeadStash(config_, a.shape, element_bytes());
    void* const f = a.stash.forward;
    void* const b = a.stash.backward;
    return {{Param::kNorm, Param::kNormBias, At(s.norm.mean, f), At(s.norm.rstd, f)},
            At(s.normed, f),
            At(s.transform, f),
            At(s.transformed, f),
            At(s.grad_normed, b),
            At(s.grad_transform, b)};
  }
  void StashBytes(const BatchShape& shape, LayerBytes* bytes) const override {
    const HeadStash s = MakeHeadStash(config_, shape, element_bytes());
    bytes->forward_stash = s.forward_bytes;
    bytes->backward_stash = s.backward_bytes;
  }

  Tensor Table(const Args& a) const {
    return config_.tied_head ? Tensor(a.memory.tied_params, compute_, part_.vocab.size(), d_)
                             : Weight(a, Param::kHead, part_.vocab.size(), d_);
  }
  Tensor TableGrad(const Args& a) const {
    return config_.tied_head ? Tensor(a.memory.tied_grads, state_, part_.vocab.size(), d_)
                             : Grad(a, Param::kHead, part_.vocab.size(), d_);
  }

  void DoForward(Exec& exec, const Args& a) const override {
    const Stashed s = GetStash(a);
    if (transforms_) {
      exec.Run(LinearForward{.x = a.input,
                             .w = Weight(a, Param::kTransform, d_, d_),
                             .bias = Weight(a, Param::kTransformBias, 1, d_),
                             .y = s.transformed,
                             .activation = Activation::kGeluErf,
                             .pre = s.pre});
    }
    RunNorm(exec, a, s.norm, transforms_ ? s.transformed : a.input, s.normed);
    exec.Run(LinearForward{.x = s.normed,
                           .w = Table(a),
                           .bias = Weight(a, Param::kHeadBias, 1, part_.vocab.size()),
                           .y = a.output});
  }

  void DoBackwardInput(Exec& exec, const Args& a, const Tensor& grad_input) const override {
    const Stashed s = GetStash(a);
    exec.Run(LinearBackwardInput{.dy = a.output, .w = Table(a), .dx = s.dnormed});
    exec.AllReduceSum(s.dnormed);
    if (!transforms_) {
      return RunNormBackwardInput(exec, a, s.norm, s.dnormed, a.input, {}, grad_input);
    }
    RunNormBackwardInput(exec, a, s.norm, s.dnormed, s.transformed, {}, s.dpre);
    exec.Run(
        GatedBackward{.gate = s.pre, .dy = s.dpre, .dgate = s.dpre, .kind = Activation::kGeluErf});
    exec.Run(LinearBackwardInput{
        .dy = s.dpre, .w = Weight(a, Param::kTransform, d_, d_), .dx = grad_input});
  }

  void DoBackwardWeight(Exec& exec, const Args& a) const override {
    if (adapts_) return;
    const Stashed s = GetStash(a);
    exec.Run(LinearBackwardWeight{.x = s.normed,
                                  .dy = a.output,
                                  .dw = TableGrad(a),
                                  .dbias = Grad(a, Param::kHeadBias, 1, part_.vocab.size())});
    RunNormBackwardWeight(exec, a, s.norm, s.dnormed, transforms_ ? s.transformed : a.input);
    if (!transforms_) return;
    exec.Run(LinearBackwardWeight{.x = a.input,
                                  .dy = s.dpre,
                                  .dw = Grad(a, Param::kTransform, d_, d_),
                                  .dbias = Grad(a, Param::kTransformBias, 1, d_)});
  }

  const int64_t d_;
  const bool transforms_;
};

}  // namespace

std::unique_ptr<Layer> NewHead(const ModelConfig& config, const TensorPart& part, DType compute,
                               LayerLayout layout) {
  return std::make_unique<Head>(config, part, compute, std::move(layout));
}

}  // namespace atl

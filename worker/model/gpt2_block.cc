// x2 = x + attention(LayerNorm(x)); y = x2 + W_proj gelu(W_fc LayerNorm(x2)); all with biases.

#include <cmath>

#include "worker/model/layer_base.h"

namespace atl {
namespace {

class Gpt2Block final : public LayerBase {
 public:
  Gpt2Block(const ModelConfig& config, const TensorPart& part, DType compute, LayerLayout layout)
      : LayerBase(config, part, compute, std::move(layout)),
        d_(config.d_model),
        q_(part.heads.size() * config.head_dim()),
        f_(part.ffn.size()) {}

  int64_t output_cols() const override { return d_; }

 private:
  // Positions in the layout (layout.cc).
  enum {
    kQkv,
    kOut,
    kFc,
    kProj,
    kNorm1,
    kNorm1Bias,
    kQkvBias,
    kOutBias,
    kNorm2,
    kNorm2Bias,
    kFcBias,
    kProjBias
  };

  struct ForwardStash {
    Tensor mean1, rstd1, n1, qkv, out, lse, x2, mean2, rstd2, n2, pre, hidden;
    int64_t bytes;
  };
  ForwardStash CarveForward(const BatchShape& shape, void* memory) const {
    const int64_t n = shape.tokens();
    Carver c(memory);
    ForwardStash s;
    s.mean1 = c.Take(state_, 1, n);
    s.rstd1 = c.Take(state_, 1, n);
    s.n1 = c.Take(compute_, n, d_);
    s.qkv = c.Take(compute_, n, 3 * q_);
    s.out = c.Take(compute_, n, q_);
    s.lse = c.Take(state_, shape.rows * part_.heads.size(), shape.seq_len);
    s.x2 = c.Take(compute_, n, d_);
    s.mean2 = c.Take(state_, 1, n);
    s.rstd2 = c.Take(state_, 1, n);
    s.n2 = c.Take(compute_, n, d_);
    s.pre = c.Take(compute_, n, f_);
    s.hidden = c.Take(compute_, n, f_);
    s.bytes = c.bytes();
    return s;
  }

  struct BackwardStash {
    Tensor dn1, dqkv, dx2, dn2, dpre;
    int64_t bytes;
  };
  BackwardStash CarveBackward(const BatchShape& shape, void* memory) const {
    const int64_t n = shape.tokens();
    Carver c(memory);
    BackwardStash s;
    s.dn1 = c.Take(compute_, n, d_);
    s.dqkv = c.Take(compute_, n, 3 * q_);
    s.dx2 = c.Take(compute_, n, d_);
    s.dn2 = c.Take(compute_, n, d_);
    s.dpre = c.Take(compute_, n, f_);
    s.bytes = c.bytes();
    return s;
  }

  void StashBytes(const BatchShape& shape, LayerBytes* bytes) const override {
    bytes->forward_stash = CarveForward(shape, nullptr).bytes;
    bytes->backward_stash = CarveBackward(shape, nullptr).bytes;
  }

  AttentionShape Attention(const BatchShape& shape) const {
    return {shape.rows,         shape.seq_len,
            part_.heads.size(), part_.heads.size(),
            config_.head_dim(), 1.0f / std::sqrt(static_cast<float>(config_.head_dim()))};
  }
  // Queries, keys, values: parts 0, 1, 2.
  Tensor Part(const Tensor& qkv, int part) const { return qkv.Columns(part * q_, q_); }

  void DoForward(Exec& exec, const Args& a) const override {
    const ForwardStash s = CarveForward(a.shape, a.stash.forward);
    const float eps = static_cast<float>(config_.norm_eps);
    exec.Run(LayerNormForward{a.input, Param(a, kNorm1, 1, d_), Param(a, kNorm1Bias, 1, d_), s.n1,
                              s.mean1, s.rstd1, eps});
    exec.Run(LinearForward{.x = s.n1,
                           .w = Param(a, kQkv, 3 * q_, d_),
                           .bias = Param(a, kQkvBias, 1, 3 * q_),
                           .y = s.qkv});
    exec.Run(AttentionForward{Attention(a.shape), Part(s.qkv, 0), Part(s.qkv, 1), Part(s.qkv, 2),
                              s.out, s.lse});
    exec.Run(LinearForward{.x = s.out,
                           .w = Param(a, kOut, d_, q_),
                           .bias = OnLead(Param(a, kOutBias, 1, d_)),
                           .add = OnLead(a.input),
                           .y = s.x2});
    exec.AllReduceSum(s.x2);
    exec.Run(LayerNormForward{s.x2, Param(a, kNorm2, 1, d_), Param(a, kNorm2Bias, 1, d_), s.n2,
                              s.mean2, s.rstd2, eps});
    exec.Run(LinearForward{.x = s.n2,
                           .w = Param(a, kFc, f_, d_),
                           .bias = Param(a, kFcBias, 1, f_),
                           .y = s.hidden,
                           .activation = Activation::kGeluTanh,
                           .pre = s.pre});
    exec.Run(LinearForward{.x = s.hidden,
                           .w = Param(a, kProj, d_, f_),
                           .bias = OnLead(Param(a, kProjBias, 1, d_)),
                           .add = OnLead(s.x2),
                           .y = a.output});
    exec.AllReduceSum(a.output);
  }

  void DoBackwardInput(Exec& exec, const Args& a, const Tensor& grad_input) const override {
    const ForwardStash s = CarveForward(a.shape, a.stash.forward);
    const BackwardStash g = CarveBackward(a.shape, a.stash.backward);
    const Tensor dy = a.output;
    exec.Run(LinearBackwardInput{.dy = dy,
                                 .w = Param(a, kProj, d_, f_),
                                 .dx = g.dpre,
                                 .activation = Activation::kGeluTanh,
                                 .pre = s.pre});
    exec.Run(LinearBackwardInput{.dy = g.dpre, .w = Param(a, kFc, f_, d_), .dx = g.dn2});
    exec.AllReduceSum(g.dn2);
    exec.Run(
        LayerNormBackwardInput{g.dn2, s.x2, Param(a, kNorm2, 1, d_), s.mean2, s.rstd2, dy, g.dx2});
    const Tensor dout = exec.Temporary(compute_, a.shape.tokens(), q_);
    exec.Run(LinearBackwardInput{.dy = g.dx2, .w = Param(a, kOut, d_, q_), .dx = dout});
    exec.Run(AttentionBackward{Attention(a.shape), Part(s.qkv, 0), Part(s.qkv, 1), Part(s.qkv, 2),
                               s.out, s.lse, dout, Part(g.dqkv, 0), Part(g.dqkv, 1),
                               Part(g.dqkv, 2)});
    exec.Run(LinearBackwardInput{.dy = g.dqkv, .w = Param(a, kQkv, 3 * q_, d_), .dx = g.dn1});
    exec.AllReduceSum(g.dn1);
    exec.Run(LayerNormBackwardInput{g.dn1, a.input, Param(a, kNorm1, 1, d_), s.mean1, s.rstd1,
                                    g.dx2, grad_input});
  }

  void DoBackwardWeight(Exec& exec, const Args& a) const override {
    const ForwardStash s = CarveForward(a.shape, a.stash.forward);
    const BackwardStash g = CarveBackward(a.shape, a.stash.backward);
    const auto linear = [&](const Tensor& x, const Tensor& dy, int weight, int bias) {
      exec.Run(
          LinearBackwardWeight{x, dy, Grad(a, weight, dy.cols, x.cols), Grad(a, bias, 1, dy.cols)});
    };
    linear(s.hidden, a.output, kProj, kProjBias);
    linear(s.n2, g.dpre, kFc, kFcBias);
    exec.Run(LayerNormBackwardWeight{g.dn2, s.x2, s.mean2, s.rstd2, Grad(a, kNorm2, 1, d_),
                                     Grad(a, kNorm2Bias, 1, d_)});
    linear(s.out, g.dx2, kOut, kOutBias);
    linear(s.n1, g.dqkv, kQkv, kQkvBias);
    exec.Run(LayerNormBackwardWeight{g.dn1, a.input, s.mean1, s.rstd1, Grad(a, kNorm1, 1, d_),
                                     Grad(a, kNorm1Bias, 1, d_)});
  }

  const int64_t d_, q_, f_;  // widths: residual stream, queries of this part, its feed-forward
};

}  // namespace

std::unique_ptr<Layer> NewGpt2Block(const ModelConfig& config, const TensorPart& part,
                                    DType compute, LayerLayout layout) {
  return std::make_unique<Gpt2Block>(config, part, compute, std::move(layout));
}

}  // namespace atl

// x2 = x + attention(RMSNorm(x)); y = x2 + W_down (silu(W_gate n) * W_up n), n = RMSNorm(x2).

#include <cmath>

#include "worker/model/layer_base.h"

namespace atl {
namespace {

class LlamaBlock final : public LayerBase {
 public:
  LlamaBlock(const ModelConfig& config, const TensorPart& part, DType compute, LayerLayout layout)
      : LayerBase(config, part, compute, std::move(layout)),
        d_(config.d_model),
        q_(part.heads.size() * config.head_dim()),
        kv_(part.kv_heads.size() * config.head_dim()),
        f_(part.ffn.size()) {}

  int64_t output_cols() const override { return d_; }

 private:
  // Positions in the layout (layout.cc). q, k and v are one matrix, as are gate and up.
  enum { kQkv = 0, kOut = 3, kGateUp = 4, kDown = 6, kNorm1 = 7, kNorm2 = 8 };

  struct ForwardStash {
    Tensor rstd1, n1, qkv, out, lse, x2, rstd2, n2, gate_up, hidden;
    int64_t bytes;
  };
  ForwardStash CarveForward(const BatchShape& shape, void* memory) const {
    const int64_t n = shape.tokens();
    Carver c(memory);
    ForwardStash s;
    s.rstd1 = c.Take(state_, 1, n);
    s.n1 = c.Take(compute_, n, d_);
    s.qkv = c.Take(compute_, n, q_ + 2 * kv_);
    s.out = c.Take(compute_, n, q_);
    s.lse = c.Take(state_, shape.rows * part_.heads.size(), shape.seq_len);
    s.x2 = c.Take(compute_, n, d_);
    s.rstd2 = c.Take(state_, 1, n);
    s.n2 = c.Take(compute_, n, d_);
    s.gate_up = c.Take(compute_, n, 2 * f_);
    s.hidden = c.Take(compute_, n, f_);
    s.bytes = c.bytes();
    return s;
  }

  // The gradient of gate_up takes its place in the forward stash.
  struct BackwardStash {
    Tensor dn1, dqkv, dx2, dn2;
    int64_t bytes;
  };
  BackwardStash CarveBackward(const BatchShape& shape, void* memory) const {
    const int64_t n = shape.tokens();
    Carver c(memory);
    BackwardStash s;
    s.dn1 = c.Take(compute_, n, d_);
    s.dqkv = c.Take(compute_, n, q_ + 2 * kv_);
    s.dx2 = c.Take(compute_, n, d_);
    s.dn2 = c.Take(compute_, n, d_);
    s.bytes = c.bytes();
    return s;
  }

  void StashBytes(const BatchShape& shape, LayerBytes* bytes) const override {
    bytes->forward_stash = CarveForward(shape, nullptr).bytes;
    bytes->backward_stash = CarveBackward(shape, nullptr).bytes;
  }

  AttentionShape Attention(const BatchShape& shape) const {
    return {shape.rows,         shape.seq_len,
            part_.heads.size(), part_.kv_heads.size(),
            config_.head_dim(), 1.0f / std::sqrt(static_cast<float>(config_.head_dim()))};
  }
  Tensor Q(const Tensor& qkv) const { return qkv.Columns(0, q_); }
  Tensor K(const Tensor& qkv) const { return qkv.Columns(q_, kv_); }
  Tensor V(const Tensor& qkv) const { return qkv.Columns(q_ + kv_, kv_); }
  Tensor QueriesAndKeys(const Tensor& qkv) const { return qkv.Columns(0, q_ + kv_); }
  Tensor Gate(const Tensor& gate_up) const { return gate_up.Columns(0, f_); }
  Tensor Up(const Tensor& gate_up) const { return gate_up.Columns(f_, f_); }

  void DoForward(Exec& exec, const Args& a) const override {
    const ForwardStash s = CarveForward(a.shape, a.stash.forward);
    const float eps = static_cast<float>(config_.norm_eps);
    exec.Run(RmsNormForward{a.input, Param(a, kNorm1, 1, d_), s.n1, s.rstd1, eps});
    exec.Run(LinearForward{.x = s.n1, .w = Param(a, kQkv, q_ + 2 * kv_, d_), .y = s.qkv});
    exec.Run(Rope{QueriesAndKeys(s.qkv), a.constants, a.shape.seq_len});
    exec.Run(AttentionForward{Attention(a.shape), Q(s.qkv), K(s.qkv), V(s.qkv), s.out, s.lse});
    exec.Run(
        LinearForward{.x = s.out, .w = Param(a, kOut, d_, q_), .add = OnLead(a.input), .y = s.x2});
    exec.AllReduceSum(s.x2);
    exec.Run(RmsNormForward{s.x2, Param(a, kNorm2, 1, d_), s.n2, s.rstd2, eps});
    exec.Run(LinearForward{.x = s.n2, .w = Param(a, kGateUp, 2 * f_, d_), .y = s.gate_up});
    exec.Run(SwigluForward{Gate(s.gate_up), Up(s.gate_up), s.hidden});
    exec.Run(LinearForward{
        .x = s.hidden, .w = Param(a, kDown, d_, f_), .add = OnLead(s.x2), .y = a.output});
    exec.AllReduceSum(a.output);
  }

  void DoBackwardInput(Exec& exec, const Args& a, const Tensor& grad_input) const override {
    const ForwardStash s = CarveForward(a.shape, a.stash.forward);
    const BackwardStash g = CarveBackward(a.shape, a.stash.backward);
    const Tensor dy = a.output;
    const int64_t n = a.shape.tokens();
    // Two temporaries that live one after the other share their memory.
    const Tensor temporary = exec.Temporary(compute_, n, std::max(f_, q_));
    const Tensor dhidden(temporary.data, compute_, n, f_);
    const Tensor dout(temporary.data, compute_, n, q_);
    exec.Run(LinearBackwardInput{.dy = dy, .w = Param(a, kDown, d_, f_), .dx = dhidden});
    exec.Run(
        SwigluBackward{Gate(s.gate_up), Up(s.gate_up), dhidden, Gate(s.gate_up), Up(s.gate_up)});
    exec.Run(LinearBackwardInput{.dy = s.gate_up, .w = Param(a, kGateUp, 2 * f_, d_), .dx = g.dn2});
    exec.AllReduceSum(g.dn2);
    exec.Run(RmsNormBackwardInput{g.dn2, s.x2, Param(a, kNorm2, 1, d_), s.rstd2, dy, g.dx2});
    exec.Run(LinearBackwardInput{.dy = g.dx2, .w = Param(a, kOut, d_, q_), .dx = dout});
    exec.Run(AttentionBackward{Attention(a.shape), Q(s.qkv), K(s.qkv), V(s.qkv), s.out, s.lse, dout,
                               Q(g.dqkv), K(g.dqkv), V(g.dqkv)});
    exec.Run(Rope{.x = QueriesAndKeys(g.dqkv),
                  .table = a.constants,
                  .seq_len = a.shape.seq_len,
                  .inverse = true});
    exec.Run(LinearBackwardInput{.dy = g.dqkv, .w = Param(a, kQkv, q_ + 2 * kv_, d_), .dx = g.dn1});
    exec.AllReduceSum(g.dn1);
    exec.Run(
        RmsNormBackwardInput{g.dn1, a.input, Param(a, kNorm1, 1, d_), s.rstd1, g.dx2, grad_input});
  }

  void DoBackwardWeight(Exec& exec, const Args& a) const override {
    const ForwardStash s = CarveForward(a.shape, a.stash.forward);
    const BackwardStash g = CarveBackward(a.shape, a.stash.backward);
    exec.Run(LinearBackwardWeight{.x = s.hidden, .dy = a.output, .dw = Grad(a, kDown, d_, f_)});
    exec.Run(LinearBackwardWeight{.x = s.n2, .dy = s.gate_up, .dw = Grad(a, kGateUp, 2 * f_, d_)});
    exec.Run(RmsNormBackwardWeight{g.dn2, s.x2, s.rstd2, Grad(a, kNorm2, 1, d_)});
    exec.Run(LinearBackwardWeight{.x = s.out, .dy = g.dx2, .dw = Grad(a, kOut, d_, q_)});
    exec.Run(LinearBackwardWeight{.x = s.n1, .dy = g.dqkv, .dw = Grad(a, kQkv, q_ + 2 * kv_, d_)});
    exec.Run(RmsNormBackwardWeight{g.dn1, a.input, s.rstd1, Grad(a, kNorm1, 1, d_)});
  }

  // Widths: residual stream; queries, keys (and values) and feed-forward of this part.
  const int64_t d_, q_, kv_, f_;
};

}  // namespace

std::unique_ptr<Layer> NewLlamaBlock(const ModelConfig& config, const TensorPart& part,
                                     DType compute, LayerLayout layout) {
  return std::make_unique<LlamaBlock>(config, part, compute, std::move(layout));
}

}  // namespace atl

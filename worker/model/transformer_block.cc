// A block of any transformer: attention, then a feed-forward, each with a residual branch beside it
// and norms where the architecture has them.

#include <limits>

#include "worker/model/block_adapters.h"
#include "worker/model/expert_mixture.h"
#include "worker/model/layer_base.h"

namespace atl {
namespace {

Activation ToActivation(Nonlinearity nonlinearity) {
  switch (nonlinearity) {
    case Nonlinearity::kSilu:
      return Activation::kSilu;
    case Nonlinearity::kGeluTanh:
      return Activation::kGeluTanh;
    case Nonlinearity::kGeluErf:
      return Activation::kGeluErf;
  }
  ATOLL_CHECK(false, "no such nonlinearity");
  __builtin_unreachable();
}

class TransformerBlock final : public LayerBase {
 public:
  TransformerBlock(const ModelConfig& config, const TensorPart& part, DType compute,
                   LayerLayout layout, int64_t index)
      : LayerBase(config, part, compute, std::move(layout)),
        index_(index),
        d_(config.d_model),
        q_(part.heads.size() * config.head_dim()),
        kv_(part.kv_heads.size() * config.head_dim()),
        f_(part.ffn.size()),
        up_(arch_.gated() ? 2 * f_ : f_),
        before_(HasNormBefore(arch_.norm_position)),
        after_(HasNormAfter(arch_.norm_position)),
        activation_(ToActivation(arch_.nonlinearity)),
        has_experts_(config.HasExperts(index)),
        experts_(config, part, compute, activation_),
        adapters_{Adapters(BlockProduct::kQueryKeyValue), Adapters(BlockProduct::kOut),
                  Adapters(BlockProduct::kUp), Adapters(BlockProduct::kDown)} {}

  int64_t output_cols() const override { return d_; }

 private:
  // Parameters and slots of one half of a block, attention or feed-forward.
  struct Half {
    Norm before, after;
    Tensor normed, sum;    // behind the norm before; what the norm after reads
    Tensor dnormed, dsum;  // their gradients
  };

  using Low = std::array<Tensor, kBlockProducts>;  // see AdapterSlots

  struct Forward {
    Half attention, feed_forward;
    Tensor qkv, raw_qk, qk_rstd, out, lse, middle, up, hidden;
    ExpertMixture::Stash experts;
    Low low;
  };
  struct Backward {
    Tensor qkv, raw_qk, query_norm, key_norm, middle, up;
    Low low;
    const Tensor& NormWeight(Param weight) const {
      return weight == Param::kQueryNorm ? query_norm : key_norm;
    }
  };

  Low LowAt(const AdapterSlots& slots, void* stash) const {
    Low low;
    for (size_t p = 0; p < low.size(); ++p) low[p] = At(slots[p], stash);
    return low;
  }

  Norm MakeNorm(const NormSlots& slots, Param weight, Param bias, void* stash) const {
    return {weight, bias, At(slots.mean, stash), At(slots.rstd, stash)};
  }

  Forward ForwardStash(const Args& a) const {
    const BlockForwardStash s =
        MakeBlockForwardStash(config_, index_, part_, a.shape, element_bytes());
    const BlockBackwardStash g =
        MakeBlockBackwardStash(config_, index_, part_, a.shape, element_bytes());
    void* const f = a.stash.forward;
    void* const b = a.stash.backward;
    return {
        .attention = {.before = MakeNorm(s.norm, Param::kNorm, Param::kNormBias, f),
                      .after = MakeNorm(s.after_norm, Param::kAfterNorm, Param::kAfterNormBias, f),
                      .normed = At(s.normed, f),
                      .sum = At(s.attention_sum, f),
                      .dnormed = At(g.normed, b),
                      .dsum = At(g.attention_sum, b)},
        .feed_forward = {.before = MakeNorm(s.feed_forward_norm, Param::kFeedForwardNorm,
                                            Param::kFeedForwardNormBias, f),
                         .after = MakeNorm(s.after_feed_forward_norm, Param::kAfterFeedForwardNorm,
                                           Param::kAfterFeedForwardNormBias, f),
                         .normed = At(s.feed_forward_normed, f),
                         .sum = At(s.feed_forward_sum, f),
                         .dnormed = At(g.feed_forward_normed, b),
                         .dsum = At(g.feed_forward_sum, b)},
        .qkv = At(s.qkv, f),
        .raw_qk = At(s.raw_qk, f),
        .qk_rstd = At(s.qk_norm.rstd, f),
        .out = At(s.out, f),
        .lse = At(s.lse, f),
        .middle = At(s.middle, f),
        .up = At(s.up, f),
        .hidden = At(s.hidden, f),
        .experts = ExpertMixture::GetStash(
            s, g, [&](const Slot& slot) { return At(slot, f); },
            [&](const Slot& slot) { return At(slot, b); }),
        .low = LowAt(s.low, f)};
  }
  ExpertMixture::Params ExpertWeights(const Args& a) const {
    return experts_.Collect([&](Param use, int64_t rows, int64_t cols) {
      // A bias that is rounded chooses other experts.
      return use == Param::kCorrection ? StateWeight(a, use, rows, cols)
                                       : Weight(a, use, rows, cols);
    });
  }
  // The gradient of gate and up takes their place.
  Backward BackwardStash(const Args& a, const Forward& s) const {
    const BlockBackwardStash g =
        MakeBlockBackwardStash(config_, index_, part_, a.shape, element_bytes());
    void* const b = a.stash.backward;
    return {.qkv = At(g.qkv, b),
            .raw_qk = At(g.raw_qk, b),
            .query_norm = At(g.query_norm_weight, b),
            .key_norm = At(g.key_norm_weight, b),
            .middle = At(g.middle, b),
            .up = arch_.gated() ? s.up : At(g.up, b),
            .low = LowAt(g.low, b)};
  }

  void StashBytes(const BatchShape& shape, LayerBytes* bytes) const override {
    bytes->forward_stash =
        MakeBlockForwardStash(config_, index_, part_, shape, element_bytes()).bytes;
    bytes->backward_stash =
        MakeBlockBackwardStash(config_, index_, part_, shape, element_bytes()).bytes;
  }

  AttentionShape Attention(const BatchShape& shape) const {
    return {.batch = shape.rows,
            .seq_len = shape.seq_len,
            .heads = part_.heads.size(),
            .kv_heads = part_.kv_heads.size(),
            .head_dim = config_.head_dim(),
            .scale = static_cast<float>(arch_.attention_scale),
            .causal = arch_.causal,
            .window = config_.WindowOfBlock(index_, shape.seq_len),
            .softcap = static_cast<float>(arch_.attention_softcap)};
  }
  Tensor Q(const Tensor& qkv) const { return qkv.Columns(0, q_); }
  Tensor K(const Tensor& qkv) const { return qkv.Columns(q_, kv_); }
  Tensor V(const Tensor& qkv) const { return qkv.Columns(q_ + kv_, kv_); }
  Tensor QueriesAndKeys(const Tensor& qkv) const { return qkv.Columns(0, q_ + kv_); }
  Tensor Gate(const Tensor& up) const { return up.Columns(0, f_); }
  Tensor Up(const Tensor& up) const { return up.Columns(f_, f_); }

  // ---- Norms of queries and keys ----

  // Calls norm(weight, its size, columns, rstd) for queries and for keys, by the columns of
  // [queries, keys]: of all heads at once.
  template <typename Function>
  void ForEachQkNorm(const Tensor& rstd, const Function& norm) const {
    if (arch_.qk_norm == QkNorm::kNone) return;
    const bool each = arch_.qk_norm == QkNorm::kEachHead;
    const int64_t of_query = each ? config_.head_dim() : q_, of_key = each ? of_query : kv_;
    const int64_t queries = q_ / of_query;
    norm(Param::kQueryNorm, of_query, Range{0, q_}, rstd.Rows(0, queries));
    norm(Param::kKeyNorm, of_key, Range{q_, q_ + kv_}, rstd.Rows(queries, kv_ / of_key));
  }

  static Tensor Columns(const Tensor& x, const Range& columns) {
    return x.Columns(columns.begin, columns.size());
  }

  // ---- The two ends of a half ----

  // The half's input, behind the norm before it, if any.
  Tensor Begin(Exec& exec, const Args& a, const Half& half, const Tensor& x) const {
    if (!before_) return x;
    RunNorm(exec, a, half.before, x, half.normed);
    return half.normed;
  }
  // From the gradient of the product that read what Begin returned: dx, of x.
  void BeginBackward(Exec& exec, const Args& a, const Half& half, BlockProduct product,
                     const Backward& g, const Tensor& dproduct, const Tensor& w, const Tensor& x,
                     const Tensor& residual, const Tensor& dx) const {
    BeginBackward(exec, a, half, x, residual, dx, [&](const Tensor& add, const Tensor& dnormed) {
      exec.Run(LinearBackwardInput{.dy = dproduct, .w = w, .add = add, .dx = dnormed});
      AdapterBackward(exec, a, product, g, dproduct, dnormed);
    });
    if (Of(product).present()) exec.AllReduceSum(SelectLow(g.low, product));
  }
  // `backward(add, dnormed)`: dnormed = add + this rank's part of the gradient of what Begin
  // returned.
  template <typename Products>
  void BeginBackward(Exec& exec, const Args& a, const Half& half, const Tensor& x,
                     const Tensor& residual, const Tensor& dx, const Products& backward) const {
    const Tensor dnormed = before_ ? half.dnormed : dx;
    backward(before_ ? Tensor() : OnLead(residual), dnormed);
    exec.AllReduceSum(dnormed);
    if (before_) RunNormBackwardInput(exec, a, half.before, dnormed, x, residual, dx);
  }

  // y = the residual stream behind the half: `inner` through its last product.
  void End(Exec& exec, const Args& a, const Half& half, BlockProduct product, const Forward& s,
           const Tensor& inner, const Tensor& w, const Tensor& bias, const Tensor& x,
           const Tensor& y) const {
    End(exec, a, half, x, y, [&](const Tensor& add, const Tensor& sum) {
      exec.Run(LinearForward{.x = inner, .w = w, .bias = OnLead(bias), .add = add, .y = sum});
      AdapterForward(exec, a, product, s, inner, sum);
    });
    if (Of(product).present() && !a.memory.without_adapter) {
      exec.AllReduceSum(SelectLow(s.low, product));
    }
  }
  // `forward(add, sum)`: sum = add + this rank's part of what the half makes.
  template <typename Products>
  void End(Exec& exec, const Args& a, const Half& half, const Tensor& x, const Tensor& y,
           const Products& forward) const {
    const NormPosition position = arch_.norm_position;
    const bool adds = position == NormPosition::kBefore || position == NormPosition::kSum;
    const Tensor sum = after_ ? half.sum : y;
    forward(adds ? OnLead(x) : Tensor(), sum);
    exec.AllReduceSum(sum);
    if (!after_) return;
    RunNorm(exec, a, half.after, sum, y);
    if (!adds) exec.Run(AddScaled{.a = y, .b = x, .out = y, .alpha = 1.0f});
  }
  // The gradient of the last product's output.
  Tensor EndGradient(const Half& half, const Tensor& dy) const { return after_ ? half.dsum : dy; }
  void EndBackward(Exec& exec, const Args& a, const Half& half, const Tensor& dy) const {
    if (after_) RunNormBackwardInput(exec, a, half.after, dy, half.sum, {}, half.dsum);
  }
  // The gradient that goes past the half.
  Tensor Residual(const Half& half, const Tensor& dy) const {
    return arch_.norm_position == NormPosition::kSum ? half.dsum : dy;
  }

  // ---- F ----

  void DoForward(Exec& exec, const Args& a) const override {
    const Forward s = ForwardStash(a);
    const Tensor x = Begin(exec, a, s.attention, a.input);
    ForwardQkv(exec, a, s, x);
    if (arch_.rotary()) {
      exec.Run(Rope{.x = QueriesAndKeys(s.qkv),
                    .table = a.constants,
                    .seq_len = a.shape.seq_len,
                    .starts = PositionStarts(a)});
    }
    AttentionShape attention = Attention(a.shape);
    // A pass may be shorter than the window, and have a cache of earlier ones before it.
    attention.window = config_.WindowOfBlock(index_, std::numeric_limits<int64_t>::max());
    exec.Run(AttentionForward{attention, Q(s.qkv), K(s.qkv), V(s.qkv), s.out, s.lse, Lengths(a),
                              Starts(a)});
    End(exec, a, s.attention, BlockProduct::kOut, s, s.out, Matrix(exec, a, Param::kOut, d_, q_),
        Weight(a, Param::kOutBias, 1, d_), a.input, s.middle);
    const Tensor read = Begin(exec, a, s.feed_forward, s.middle);
    if (has_experts_) {
      return End(exec, a, s.feed_forward, s.middle, a.output,
                 [&](const Tensor& add, const Tensor& sum) {
                   experts_.Forward(exec, ExpertWeights(a), s.experts, read, add, sum);
                 });
    }
    ForwardUp(exec, a, s, read);
    End(exec, a, s.feed_forward, BlockProduct::kDown, s, s.hidden,
        Matrix(exec, a, Param::kDown, d_, f_), Weight(a, Param::kDownBias, 1, d_), s.middle,
        a.output);
  }

  void ForwardQkv(Exec& exec, const Args& a, const Forward& s, const Tensor& x) const {
    const Tensor w = Matrix(exec, a, Param::kQuery, q_ + 2 * kv_, d_);
    const Tensor bias = Weight(a, Param::kQueryBias, 1, q_ + 2 * kv_);
    if (arch_.qk_norm == QkNorm::kNone) {
      exec.Run(LinearForward{.x = x, .w = w, .bias = bias, .y = s.qkv});
      return AdapterForward(exec, a, BlockProduct::kQueryKeyValue, s, x, s.qkv);
    }
    const auto columns = [](const Tensor& t, int64_t begin, int64_t count) {
      return t.rows == 0 ? t : t.Columns(begin, count);
    };
    exec.Run(LinearForward{
        .x = x, .w = w.Rows(0, q_ + kv_), .bias = columns(bias, 0, q_ + kv_), .y = s.raw_qk});
    exec.Run(LinearForward{
        .x = x, .w = w.Rows(q_ + kv_, kv_), .bias = columns(bias, q_ + kv_, kv_), .y = V(s.qkv)});
    Of(BlockProduct::kQueryKeyValue)
        .Forward(exec, a.memory, x, SelectLow(s.low, BlockProduct::kQueryKeyValue),
                 [&](const Range& range) {
                   return Columns(range.end <= q_ + kv_ ? s.raw_qk : s.qkv, range);
                 });
    const auto eps = static_cast<float>(config_.norm_eps);
    ForEachQkNorm(s.qk_rstd, [&](Param weight, int64_t size, const Range& at, const Tensor& rstd) {
      const Tensor w = Weight(a, weight, 1, size);
      exec.Run(NormForward{Columns(s.raw_qk, at), w, {}, Columns(s.qkv, at), {}, rstd, eps});
    });
  }

  void ForwardUp(Exec& exec, const Args& a, const Forward& s, const Tensor& x) const {
    if (arch_.gated()) {
      exec.Run(LinearForward{.x = x, .w = Matrix(exec, a, Param::kGate, 2 * f_, d_), .y = s.up});
      AdapterForward(exec, a, BlockProduct::kUp, s, x, s.up);
      return exec.Run(GatedForward{Gate(s.up), Up(s.up), s.hidden, activation_});
    }
    if (Of(BlockProduct::kUp).present()) {
      exec.Run(LinearForward{.x = x,
                             .w = Matrix(exec, a, Param::kUp, f_, d_),
                             .bias = Weight(a, Param::kUpBias, 1, f_),
                             .y = s.up});
      AdapterForward(exec, a, BlockProduct::kUp, s, x, s.up);
      return exec.Run(GatedForward{.gate = s.up, .y = s.hidden, .kind = activation_});
    }
    exec.Run(LinearForward{.x = x,
                           .w = Matrix(exec, a, Param::kUp, f_, d_),
                           .bias = Weight(a, Param::kUpBias, 1, f_),
                           .y = s.hidden,
                           .activation = activation_,
                           .pre = s.up});
  }

  // ---- B ----

  void DoBackwardInput(Exec& exec, const Args& a, const Tensor& grad_input) const override {
    const Forward s = ForwardStash(a);
    const Backward g = BackwardStash(a, s);
    // Two temporaries that live one after the other share their memory. Mixtures beside dense
    // blocks take as much as these, since their workspace is measured for all.
    const int64_t n = a.shape.tokens();
    const bool dense = arch_.gated() && config_.has_dense_blocks();
    const Tensor temporary = exec.Temporary(compute_, n, std::max(dense ? f_ : 0, q_));
    const Tensor dhidden(temporary.data, compute_, n, f_), dout(temporary.data, compute_, n, q_);

    const Tensor dy = a.output;
    EndBackward(exec, a, s.feed_forward, dy);
    if (has_experts_) {
      BeginBackward(exec, a, s.feed_forward, s.middle, Residual(s.feed_forward, dy), g.middle,
                    [&](const Tensor& add, const Tensor& dnormed) {
                      experts_.BackwardInput(exec, ExpertWeights(a), s.experts, a.router, a.shape,
                                             EndGradient(s.feed_forward, dy), add, dnormed);
                    });
    } else {
      BackwardUp(exec, a, s, g, EndGradient(s.feed_forward, dy), dhidden);
      BeginBackward(exec, a, s.feed_forward, BlockProduct::kUp, g, g.up,
                    Matrix(exec, a, arch_.gated() ? Param::kGate : Param::kUp, up_, d_), s.middle,
                    Residual(s.feed_forward, dy), g.middle);
    }

    EndBackward(exec, a, s.attention, g.middle);
    exec.Run(LinearBackwardInput{.dy = EndGradient(s.attention, g.middle),
                                 .w = Matrix(exec, a, Param::kOut, d_, q_),
                                 .dx = dout});
    AdapterBackward(exec, a, BlockProduct::kOut, g, EndGradient(s.attention, g.middle), dout);
    BackwardQkv(exec, a, s, g, dout);
    BeginBackward(exec, a, s.attention, BlockProduct::kQueryKeyValue, g, g.qkv,
                  Matrix(exec, a, Param::kQuery, q_ + 2 * kv_, d_), a.input,
                  Residual(s.attention, g.middle), grad_input);
  }

  void BackwardUp(Exec& exec, const Args& a, const Forward& s, const Backward& g, const Tensor& dy,
                  const Tensor& dhidden) const {
    const Tensor w = Matrix(exec, a, Param::kDown, d_, f_);
    if (arch_.gated()) {
      exec.Run(LinearBackwardInput{.dy = dy, .w = w, .dx = dhidden});
      AdapterBackward(exec, a, BlockProduct::kDown, g, dy, dhidden);
      return exec.Run(
          GatedBackward{Gate(s.up), Up(s.up), dhidden, Gate(g.up), Up(g.up), activation_});
    }
    if (Of(BlockProduct::kDown).present()) {
      exec.Run(LinearBackwardInput{.dy = dy, .w = w, .dx = g.up});
      AdapterBackward(exec, a, BlockProduct::kDown, g, dy, g.up);
      return exec.Run(GatedBackward{.gate = s.up, .dy = g.up, .dgate = g.up, .kind = activation_});
    }
    exec.Run(
        LinearBackwardInput{.dy = dy, .w = w, .dx = g.up, .activation = activation_, .pre = s.up});
  }

  // Through attention, positions and norms, to the gradient of the product's output.
  void BackwardQkv(Exec& exec, const Args& a, const Forward& s, const Backward& g,
                   const Tensor& dout) const {
    const Tensor dqk = arch_.qk_norm == QkNorm::kNone ? QueriesAndKeys(g.qkv) : g.raw_qk;
    exec.Run(AttentionBackward{Attention(a.shape), Q(s.qkv), K(s.qkv), V(s.qkv), s.out, s.lse, dout,
                               dqk.Columns(0, q_), dqk.Columns(q_, kv_), V(g.qkv), Lengths(a),
                               Starts(a)});
    if (arch_.rotary()) {
      exec.Run(Rope{.x = dqk,
                    .table = a.constants,
                    .seq_len = a.shape.seq_len,
                    .inverse = true,
                    .starts = PositionStarts(a)});
    }
    if (arch_.qk_norm == QkNorm::kNone) return;
    if (!adapts_) {
      exec.Zero(g.query_norm);
      exec.Zero(g.key_norm);
    }
    ForEachQkNorm(s.qk_rstd,
                  [&](Param weight, int64_t size, const Range& range, const Tensor& rstd) {
                    const Tensor dy = Columns(g.raw_qk, range), x = Columns(s.raw_qk, range);
                    exec.Run(NormBackwardInput{
                        dy, x, Weight(a, weight, 1, size), {}, rstd, {}, Columns(g.qkv, range)});
                    if (adapts_) return;
                    exec.Run(NormBackwardWeight{dy, x, {}, rstd, g.NormWeight(weight), {}});
                  });
    if (adapts_) return;
    exec.AllReduceSum(g.query_norm);
    exec.AllReduceSum(g.key_norm);
  }

  // ---- W ----

  void DoBackwardWeight(Exec& exec, const Args& a) const override {
    const Forward s = ForwardStash(a);
    const Backward g = BackwardStash(a, s);
    if (adapts_) return AdaptersBackwardWeight(exec, a, s, g);
    const auto linear = [&](const Tensor& x, const Tensor& dy, Param weight, Param bias) {
      exec.Run(
          LinearBackwardWeight{x, dy, Grad(a, weight, dy.cols, x.cols), Grad(a, bias, 1, dy.cols)});
    };
    const auto norms = [&](const Half& half, const Tensor& x) {
      if (before_) RunNormBackwardWeight(exec, a, half.before, half.dnormed, x);
    };
    if (after_) RunNormBackwardWeight(exec, a, s.feed_forward.after, a.output, s.feed_forward.sum);
    const Tensor read = before_ ? s.feed_forward.normed : s.middle;
    const Tensor dy = EndGradient(s.feed_forward, a.output);
    if (has_experts_) {
      const auto grad = [&](Param use, int64_t rows, int64_t cols) {
        return Grad(a, use, rows, cols);
      };
      experts_.BackwardWeight(exec, experts_.Collect(grad), s.experts, read, dy);
    } else {
      linear(s.hidden, dy, Param::kDown, Param::kDownBias);
      linear(read, g.up, arch_.gated() ? Param::kGate : Param::kUp, Param::kUpBias);
    }
    norms(s.feed_forward, s.middle);
    if (after_) RunNormBackwardWeight(exec, a, s.attention.after, g.middle, s.attention.sum);
    linear(s.out, EndGradient(s.attention, g.middle), Param::kOut, Param::kOutBias);
    linear(before_ ? s.attention.normed : a.input, g.qkv, Param::kQuery, Param::kQueryBias);
    for (const Param weight : {Param::kQueryNorm, Param::kKeyNorm}) {
      if (arch_.qk_norm == QkNorm::kNone) break;
      const Tensor add = g.NormWeight(weight), dw = Grad(a, weight, 1, add.cols);
      exec.Run(AddScaled{.a = dw, .b = add, .out = dw, .alpha = 1.0f});
    }
    norms(s.attention, a.input);
  }

  // ---- Adapters ----

  BlockAdapters Adapters(BlockProduct product) const {
    return {layout(), config_, compute_, product};
  }
  const BlockAdapters& Of(BlockProduct product) const {
    return adapters_[static_cast<size_t>(product)];
  }
  static const Tensor& SelectLow(const Low& low, BlockProduct product) {
    return low[static_cast<size_t>(product)];
  }
  void AdapterForward(Exec& exec, const Args& a, BlockProduct product, const Forward& s,
                      const Tensor& x, const Tensor& y) const {
    Of(product).Forward(exec, a.memory, x, SelectLow(s.low, product),
                        [&](const Range& range) { return Columns(y, range); });
  }
  void AdapterBackward(Exec& exec, const Args& a, BlockProduct product, const Backward& g,
                       const Tensor& dy, const Tensor& dx) const {
    Of(product).BackwardInput(exec, a.memory, dy, SelectLow(g.low, product), dx);
  }
  void AdaptersBackwardWeight(Exec& exec, const Args& a, const Forward& s,
                              const Backward& g) const {
    const auto run = [&](BlockProduct product, const Tensor& x, const Tensor& dy) {
      Of(product).BackwardWeight(exec, a.memory, x, dy, SelectLow(s.low, product),
                                 SelectLow(g.low, product));
    };
    run(BlockProduct::kDown, s.hidden, EndGradient(s.feed_forward, a.output));
    run(BlockProduct::kUp, before_ ? s.feed_forward.normed : s.middle, g.up);
    run(BlockProduct::kOut, s.out, EndGradient(s.attention, g.middle));
    run(BlockProduct::kQueryKeyValue, before_ ? s.attention.normed : a.input, g.qkv);
  }

  const int64_t index_;
  // Widths: residual stream; queries, keys (and values) and feed-forward of this part; what the
  // feed-forward's first product makes.
  const int64_t d_, q_, kv_, f_, up_;
  const bool before_, after_;  // where the norms stand
  const Activation activation_;
  const bool has_experts_;
  const ExpertMixture experts_;
  const std::array<BlockAdapters, kBlockProducts> adapters_;  // by BlockProduct
};

}  // namespace

std::unique_ptr<Layer> NewTransformerBlock(const ModelConfig& config, const TensorPart& part,
                                           DType compute, LayerLayout layout, int64_t index) {
  return std::make_unique<TransformerBlock>(config, part, compute, std::move(layout), index);
}

}  // namespace atl

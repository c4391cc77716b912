// The feed-forward of blocks that are mixtures of experts. Not for use outside this folder.
//
// In a tensor-parallel group every rank runs the router for all tokens and, of the experts, its own
// ones for the tokens that chose them; the sum over ranks that ends each half of a block joins what
// they make. B sums up the gradient of the tokens' weights, of which each rank has its experts'
// part, before it goes through the router: so routers have the same gradient on all ranks.
//
// The same input has the same choice, bit for bit, so a recomputed F sends tokens to the same
// experts again.

#ifndef ATOLL_WORKER_MODEL_EXPERT_MIXTURE_H_
#define ATOLL_WORKER_MODEL_EXPERT_MIXTURE_H_

#include "common/model/layout.h"
#include "common/model/stash.h"
#include "worker/model/exec.h"
#include "worker/model/model.h"

namespace atl {

class ExpertMixture {
 public:
  ExpertMixture(const ModelConfig& config, const TensorPart& part, DType compute,
                Activation activation);

  // Parameters, or their gradients, with names as in the layout.
  struct Params {
    Tensor router;                  // and the shared expert's weight behind it
    Tensor experts;                 // gate, up and down of the first one here, [3 hidden, d_model]
    Tensor shared_up, shared_down;  // the former with the gate before it
    Tensor correction;
  };
  // `get(use, rows, cols)` returns the parameters that start at one; absent where there are none.
  template <typename Get>
  Params Collect(const Get& get) const {
    return {.router = get(Param::kRouter, experts_.count + (experts_.shared_gate ? 1 : 0), d_),
            .experts = get(Param::kExpertGate, 3 * f_, d_),
            .shared_up = get(Param::kSharedGate, 2 * shared_, d_),
            .shared_down = get(Param::kSharedDown, d_, shared_),
            .correction = get(Param::kCorrection, 1, experts_.count)};
  }

  // Tensors of ExpertSlots; the gradients of `up` and `shared_up` take their places.
  struct Stash {
    Tensor logits, chosen, weights, group_starts, assignments, rows, up, hidden;
    Tensor shared_up, shared_hidden;
    Tensor dlogits;  // backward
  };
  // `forward` and `backward` return the tensor of a slot.
  template <typename Forward, typename Backward>
  static Stash GetStash(const BlockForwardStash& s, const BlockBackwardStash& g,
                        const Forward& forward, const Backward& backward) {
    const auto whole = [&](const Slot& slot) {
      return Tensor(forward(slot).data, DType::kInt32, slot.rows, slot.cols);
    };
    const ExpertSlots& e = s.experts;
    return {.logits = forward(e.logits),
            .chosen = whole(e.chosen),
            .weights = forward(e.weights),
            .group_starts = whole(e.group_starts),
            .assignments = whole(e.assignments),
            .rows = whole(e.rows),
            .up = forward(s.up),
            .hidden = forward(s.hidden),
            .shared_up = forward(e.shared_up),
            .shared_hidden = forward(e.shared_hidden),
            .dlogits = backward(g.expert_logits)};
  }

  // F: y = add + what the experts here make of x; `add`, optional, may be y.
  void Forward(Exec& exec, const Params& w, const Stash& s, const Tensor& x, const Tensor& add,
               const Tensor& y) const;
  // B: dx = add + the gradient of x, this rank's part of it; `add`, optional, may be dx.
  void BackwardInput(Exec& exec, const Params& w, const Stash& s, const RouterCall& router,
                     const BatchShape& shape, const Tensor& dy, const Tensor& add,
                     const Tensor& dx) const;
  // W.
  void BackwardWeight(Exec& exec, const Params& g, const Stash& s, const Tensor& x,
                      const Tensor& dy) const;

 private:
  void ForwardShared(Exec& exec, const Params& w, const Stash& s, const Tensor& x,
                     const Tensor& y) const;
  void SharedBackward(Exec& exec, const Params& w, const Stash& s, const Tensor& dy,
                      const Tensor& dweights) const;
  void RouterBackward(Exec& exec, const Stash& s, const RouterCall& router, const BatchShape& shape,
                      const Tensor& dweights) const;

  RouterRule rule() const;
  // Columns of logits and weights: those of the chosen experts, and the shared one's behind them.
  Tensor Scores(const Tensor& logits) const { return logits.Columns(0, experts_.count); }
  Tensor Chosen(const Tensor& weights) const { return weights.Columns(0, experts_.per_token); }
  static Tensor Last(const Tensor& x) { return x.Columns(x.cols - 1, 1); }
  Tensor GateUp(const Params& p) const { return p.experts.Rows(0, 2 * f_); }
  Tensor Down(const Params& p) const {
    const Tensor rows = p.experts.Rows(2 * f_, f_);
    return {rows.data, rows.dtype, d_, f_};
  }
  int64_t stride() const { return 3 * f_ * d_; }

  const Experts experts_;
  const int64_t d_, f_, shared_;  // widths: residual stream, an expert, the shared one's part
  const int64_t first_;           // expert here
  const int64_t mixtures_;        // blocks of the model that are one
  const bool leads_;
  const DType compute_;
  const Activation activation_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_EXPERT_MIXTURE_H_

#include "worker/model/expert_mixture.h"

namespace atl {
namespace {

// The shared expert's weight is that of a router with one expert.
constexpr RouterRule kGateRule{.score = RouterScore::kSigmoid};

}  // namespace

ExpertMixture::ExpertMixture(const ModelConfig& config, const TensorPart& part, DType compute,
                             Activation activation)
    : experts_(config.experts),
      d_(config.d_model),
      f_(config.experts.hidden),
      shared_(part.shared.size()),
      first_(part.experts.begin),
      mixtures_(config.mixtures()),
      leads_(part.leads()),
      compute_(compute),
      activation_(activation) {}

RouterRule ExpertMixture::rule() const {
  return {.score = experts_.score == Experts::Score::kSoftmax ? RouterScore::kSoftmax
                                                              : RouterScore::kSigmoid,
          .normalise = experts_.normalise,
          .scale = static_cast<float>(experts_.scale)};
}

// ---- F ----

void ExpertMixture::Forward(Exec& exec, const Params& w, const Stash& s, const Tensor& x,
                            const Tensor& add, const Tensor& y) const {
  exec.Run(LinearForward{.x = x, .w = w.router, .y = s.logits});
  exec.Run(RouteForward{rule(), Scores(s.logits), w.correction, s.chosen, Chosen(s.weights)});
  exec.Run(GroupTokens{s.chosen, first_, s.group_starts, s.assignments, s.rows});
  // In the order of experts: x, and behind the experts what they make of it.
  const Tensor sorted = exec.Temporary(compute_, s.up.rows, d_);
  exec.Run(GatherRows{x, s.assignments, experts_.per_token, sorted});
  exec.Run(GroupedForward{sorted, GateUp(w), stride(), s.group_starts, s.up});
  exec.Run(WeightedGatedForward{s.up.Columns(0, f_), s.up.Columns(f_, f_), Chosen(s.weights),
                                s.assignments, s.hidden, activation_});
  exec.Run(GroupedForward{s.hidden, Down(w), stride(), s.group_starts, sorted});
  exec.Run(AddRows{sorted, s.rows, add, y});
  if (shared_ > 0) ForwardShared(exec, w, s, x, y);
}

void ExpertMixture::ForwardShared(Exec& exec, const Params& w, const Stash& s, const Tensor& x,
                                  const Tensor& y) const {
  const Tensor gate = s.shared_up.Columns(0, shared_), up = s.shared_up.Columns(shared_, shared_);
  exec.Run(LinearForward{.x = x, .w = w.shared_up, .y = s.shared_up});
  if (experts_.shared_gate) {
    const Tensor chosen = exec.Temporary(DType::kInt32, x.rows, 1);
    exec.Run(RouteForward{kGateRule, Last(s.logits), {}, chosen, Last(s.weights)});
    exec.Run(WeightedGatedForward{gate, up, Last(s.weights), {}, s.shared_hidden, activation_});
  } else {
    exec.Run(GatedForward{gate, up, s.shared_hidden, activation_});
  }
  exec.Run(LinearForward{.x = s.shared_hidden, .w = w.shared_down, .add = y, .y = y});
}

// ---- B ----

void ExpertMixture::BackwardInput(Exec& exec, const Params& w, const Stash& s,
                                  const RouterCall& router, const BatchShape& shape,
                                  const Tensor& dy, const Tensor& add, const Tensor& dx) const {
  const Tensor gate = s.up.Columns(0, f_), up = s.up.Columns(f_, f_);
  const Tensor sorted = exec.Temporary(compute_, s.up.rows, d_);
  const Tensor dhidden = exec.Temporary(compute_, s.up.rows, f_);
  const Tensor dweights = exec.Temporary(StateType(compute_), s.weights.rows, s.weights.cols);
  exec.Zero(dweights);
  exec.Run(GatherRows{dy, s.assignments, experts_.per_token, sorted});
  exec.Run(GroupedBackwardInput{sorted, Down(w), stride(), s.group_starts, dhidden});
  exec.Run(WeightedGatedBackward{gate, up, Chosen(s.weights), s.assignments, dhidden, gate, up,
                                 Chosen(dweights), activation_});
  if (shared_ > 0) SharedBackward(exec, w, s, dy, dweights);
  exec.AllReduceSum(dweights);
  RouterBackward(exec, s, router, shape, dweights);

  exec.Run(GroupedBackwardInput{s.up, GateUp(w), stride(), s.group_starts, sorted});
  exec.Run(AddRows{sorted, s.rows, add, dx});
  const auto add_product = [&](const Tensor& dproduct, const Tensor& matrix) {
    exec.Run(LinearBackwardInput{.dy = dproduct, .w = matrix, .add = dx, .dx = dx});
  };
  if (shared_ > 0) add_product(s.shared_up, w.shared_up);
  if (leads_) add_product(s.dlogits, w.router);
}

void ExpertMixture::SharedBackward(Exec& exec, const Params& w, const Stash& s, const Tensor& dy,
                                   const Tensor& dweights) const {
  const Tensor gate = s.shared_up.Columns(0, shared_), up = s.shared_up.Columns(shared_, shared_);
  const Tensor dhidden = exec.Temporary(compute_, dy.rows, shared_);
  exec.Run(LinearBackwardInput{.dy = dy, .w = w.shared_down, .dx = dhidden});
  if (!experts_.shared_gate) {
    return exec.Run(GatedBackward{gate, up, dhidden, gate, up, activation_});
  }
  exec.Run(WeightedGatedBackward{
      gate, up, Last(s.weights), {}, dhidden, gate, up, Last(dweights), activation_});
}

void ExpertMixture::RouterBackward(Exec& exec, const Stash& s, const RouterCall& router,
                                   const BatchShape& shape, const Tensor& dweights) const {
  RouterLosses losses{
      .balance = static_cast<float>(experts_.adds_auxiliary_loss ? experts_.auxiliary_loss : 0) /
                 static_cast<float>(mixtures_),
      .z = static_cast<float>(experts_.z_loss) / static_cast<float>(mixtures_),
      .share = router.share,
      .counts = exec.Temporary(DType::kInt32, shape.rows, experts_.count),
      .starts = router.starts,
      .terms = exec.Temporary(StateType(compute_), 2, shape.tokens()),
      .totals = router.totals,
      .loads = router.loads};
  if (losses.present()) exec.Run(CountExperts{s.chosen, losses.counts, losses.starts});
  exec.Run(RouteBackward{rule(), Scores(s.logits), s.chosen, Chosen(dweights), Scores(s.dlogits),
                         losses});
  if (!experts_.shared_gate) return;
  const Tensor chosen = exec.Temporary(DType::kInt32, shape.tokens(), 1);
  exec.Zero(chosen);
  exec.Run(RouteBackward{kGateRule, Last(s.logits), chosen, Last(dweights), Last(s.dlogits), {}});
}

// ---- W ----

void ExpertMixture::BackwardWeight(Exec& exec, const Params& g, const Stash& s, const Tensor& x,
                                   const Tensor& dy) const {
  const Tensor sorted = exec.Temporary(compute_, s.up.rows, d_);
  exec.Run(GatherRows{dy, s.assignments, experts_.per_token, sorted});
  exec.Run(GroupedBackwardWeight{s.hidden, sorted, s.group_starts, Down(g), stride()});
  exec.Run(GatherRows{x, s.assignments, experts_.per_token, sorted});
  exec.Run(GroupedBackwardWeight{sorted, s.up, s.group_starts, GateUp(g), stride()});
  exec.Run(LinearBackwardWeight{.x = x, .dy = s.dlogits, .dw = g.router});
  if (shared_ == 0) return;
  exec.Run(LinearBackwardWeight{.x = s.shared_hidden, .dy = dy, .dw = g.shared_down});
  exec.Run(LinearBackwardWeight{.x = x, .dy = s.shared_up, .dw = g.shared_up});
}

}  // namespace atl

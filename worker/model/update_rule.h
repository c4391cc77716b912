// An optimizer's update of one layer's elements that are owned here: one file a rule in
// optimizers/.

#ifndef ATOLL_WORKER_MODEL_UPDATE_RULE_H_
#define ATOLL_WORKER_MODEL_UPDATE_RULE_H_

#include <memory>
#include <span>

#include "common/protocol/job_spec.h"
#include "worker/model/exec.h"
#include "worker/model/layer_state.h"

namespace atl {

struct OptimizerOptions {
  InnerOptimizer kind = InnerOptimizer::kAdamW;
  float beta1 = 0.9f;
  float beta2 = 0.95f;  // also of RMSprop's mean square
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;   // on matrices only
  float clip_norm = 1.0f;      // of all gradients together (L2); 0: no clipping
  float momentum = 0.9f;       // of SGD, RMSprop and Muon
  float expert_bias_rate = 0;  // of BalanceExperts

  bool operator==(const OptimizerOptions&) const = default;
};
OptimizerOptions OptimizerOptionsFromSpec(const InnerSpec& spec);

// One step, the same for all layers.
struct UpdateCall {
  Tensor grad_scale;  // [1, 1]; absent: 1
  int64_t step = 1;   // counts from 1
  float learning_rate = 0;
  bool zero_grad = true;
  int64_t samples = 1;  // whose gradients these are: running statistics are means over them
};

// Elements of a layer. What is absent is not kept here.
struct OwnedElements {
  Tensor param, grad, first, second, copy;
};
// REQUIRES: all of them are owned.
OwnedElements Elements(const LayerState& layer, Range range);
Range Intersection(const Range& a, const Range& b);

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // Updates a layer's owned elements, or measures the workspace that this takes: see Exec.
  // `norms`: of each parameter two sums over all owners (see Norms); empty where the rule has none.
  virtual void Update(Exec& exec, const LayerState& layer, const UpdateCall& call,
                      std::span<const double> norms) const = 0;

  // Returns whether a parameter's step depends on sums over all of it. Then every owner adds up its
  // part first: Norms adds the two sums of parameter i, over elements that are owned and in
  // `counted`, to sums[2 i] and sums[2 i + 1], and changes nothing else.
  virtual bool has_norms() const { return false; }
  virtual void Norms(Exec& /*exec*/, const LayerState& /*layer*/, const UpdateCall& /*call*/,
                     std::span<const Range> /*counted*/, const Tensor& /*sums*/) const {}
};

std::unique_ptr<UpdateRule> NewUpdateRule(const OptimizerOptions& options);

// optimizers/*.cc
std::unique_ptr<UpdateRule> NewAdamWRule(const OptimizerOptions& options);
std::unique_ptr<UpdateRule> NewLambRule(const OptimizerOptions& options);
std::unique_ptr<UpdateRule> NewMomentumRule(const OptimizerOptions& options);
std::unique_ptr<UpdateRule> NewMuonRule(const OptimizerOptions& options);

// Makes the step of AdamW on the range, all of which is owned.
AdamStep MakeAdamStep(const OptimizerOptions& options, const LayerState& layer,
                      const UpdateCall& call, Range range, double learning_rate, bool decay);
// AdamW on what is owned of these elements.
void RunAdamW(Exec& exec, const OptimizerOptions& options, const LayerState& layer,
              const UpdateCall& call, Range range, float learning_rate, bool decay);

// Calls run(range, decay) for what is owned of the layer's matrices, then of its vectors.
template <typename Function>
void ForEachHalf(const LayerState& layer, const Function& run) {
  const LayerLayout& layout = layer.layout();
  const Range matrices = Intersection({0, layout.decay_size}, layer.owned());
  const Range vectors = Intersection({layout.decay_size, layout.trained_size}, layer.owned());
  if (matrices.size() > 0) run(matrices, true);
  if (vectors.size() > 0) run(vectors, false);
}

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_UPDATE_RULE_H_

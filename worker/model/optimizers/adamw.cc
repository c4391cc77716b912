// AdamW (Loshchilov and Hutter 2019), as PyTorch has it.

#include "worker/model/update_rule.h"

namespace atl {

AdamStep MakeAdamStep(const OptimizerOptions& options, const LayerState& layer,
                      const UpdateCall& call, Range range, double learning_rate, bool decay) {
  const OwnedElements elements = Elements(layer, range);
  return {.param = elements.param,
          .grad = elements.grad,
          .m = elements.first,
          .v = elements.second,
          .grad_scale = call.grad_scale,
          .param_copy = elements.copy,
          .step = call.step,
          .lr = learning_rate,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.epsilon,
          .weight_decay = decay ? options.weight_decay : 0.0f,
          .zero_grad = call.zero_grad};
}

void RunAdamW(Exec& exec, const OptimizerOptions& options, const LayerState& layer,
              const UpdateCall& call, Range range, float learning_rate, bool decay) {
  const Range owned = Intersection(range, layer.owned());
  if (owned.size() <= 0) return;
  exec.Run(MakeAdamStep(options, layer, call, owned, learning_rate, decay));
}

namespace {

class AdamWRule final : public UpdateRule {
 public:
  explicit AdamWRule(const OptimizerOptions& options) : options_(options) {}

  void Update(Exec& exec, const LayerState& layer, const UpdateCall& call,
              std::span<const double> /*norms*/) const override {
    ForEachHalf(layer, [&](Range range, bool decay) {
      RunAdamW(exec, options_, layer, call, range, call.learning_rate, decay);
    });
  }

 private:
  const OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<UpdateRule> NewAdamWRule(const OptimizerOptions& options) {
  return std::make_unique<AdamWRule>(options);
}

}  // namespace atl

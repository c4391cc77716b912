// SGD with momentum, and RMSprop with momentum, as PyTorch has them: weight decay is added to the
// gradient.

#include "worker/model/update_rule.h"

namespace atl {
namespace {

class MomentumRule final : public UpdateRule {
 public:
  explicit MomentumRule(const OptimizerOptions& options) : options_(options) {}

  void Update(Exec& exec, const LayerState& layer, const UpdateCall& call,
              std::span<const double> /*norms*/) const override {
    ForEachHalf(layer, [&](Range range, bool decay) {
      const OwnedElements elements = Elements(layer, range);
      exec.Run(MomentumStep{.param = elements.param,
                            .grad = elements.grad,
                            .m = elements.first,
                            .v = elements.second,
                            .grad_scale = call.grad_scale,
                            .param_copy = elements.copy,
                            .lr = call.learning_rate,
                            .momentum = options_.momentum,
                            .alpha = options_.beta2,
                            .eps = options_.epsilon,
                            .weight_decay = decay ? options_.weight_decay : 0.0f,
                            .zero_grad = call.zero_grad});
    });
  }

 private:
  const OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<UpdateRule> NewMomentumRule(const OptimizerOptions& options) {
  return std::make_unique<MomentumRule>(options);
}

}  // namespace atl

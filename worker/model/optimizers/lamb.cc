// LAMB (You et al. 2020): AdamW's direction, decay included, with each matrix's step in proportion
// to the matrix's norm. Norms and biases step as in AdamW.

#include <cmath>

#include "worker/model/update_rule.h"

namespace atl {
namespace {

// Returns the ratio of a matrix's norm to that of its direction; 1 where one of them is 0.
double TrustRatio(double params, double directions) {
  return params > 0 && directions > 0 ? std::sqrt(params / directions) : 1.0;
}

class LambRule final : public UpdateRule {
 public:
  explicit LambRule(const OptimizerOptions& options) : options_(options) {}

  bool has_norms() const override { return true; }

  void Norms(Exec& exec, const LayerState& layer, const UpdateCall& call,
             std::span<const Range> counted, const Tensor& sums) const override {
    const std::vector<ParamSpec>& params = layer.layout().params;
    for (size_t i = 0; i < params.size(); ++i) {
      if (!params[i].decay) continue;
      for (const Range& here : counted) {
        const Range range =
            Intersection(Intersection({params[i].offset, params[i].end()}, layer.owned()), here);
        if (range.size() <= 0) continue;
        exec.Run(LambNorms{Step(layer, call, range, true, 1),
                           sums.Columns(2 * static_cast<int64_t>(i), 2)});
      }
    }
  }

  void Update(Exec& exec, const LayerState& layer, const UpdateCall& call,
              std::span<const double> norms) const override {
    const LayerLayout& layout = layer.layout();
    for (size_t i = 0; i < layout.params.size(); ++i) {
      const ParamSpec& param = layout.params[i];
      const Range range = Intersection({param.offset, param.end()}, layer.owned());
      if (!param.decay || range.size() <= 0) continue;
      exec.Run(Step(layer, call, range, true, TrustRatio(norms[2 * i], norms[2 * i + 1])));
    }
    const Range vectors = Intersection({layout.decay_size, layout.trained_size}, layer.owned());
    if (vectors.size() > 0) exec.Run(Step(layer, call, vectors, false, 1));
  }

 private:
  AdamStep Step(const LayerState& layer, const UpdateCall& call, Range range, bool decay,
                double ratio) const {
    AdamStep step = MakeAdamStep(options_, layer, call, range, ratio * call.learning_rate, decay);
    step.lamb = true;
    return step;
  }

  const OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<UpdateRule> NewLambRule(const OptimizerOptions& options) {
  return std::make_unique<LambRule>(options);
}

}  // namespace atl

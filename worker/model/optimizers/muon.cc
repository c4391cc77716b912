// Muon: of the matrices of blocks, the momentum with all singular values brought near to 1 by five
// Newton-Schulz steps (Jordan et al. 2024), whose coefficients are You Jiacheng's (2025, published
// with modded-nanogpt). Everything else is AdamW's.

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "common/model/optimizer_state.h"
#include "worker/model/update_rule.h"

namespace atl {
namespace {

constexpr double kCoefficients[][3] = {{4.0848, -6.8946, 2.9270},
                                       {3.9505, -6.3029, 2.6377},
                                       {3.7418, -5.5913, 2.3037},
                                       {2.8769, -3.1427, 1.2046},
                                       {2.8366, -3.0525, 1.2012}};

// A matrix's step has about 0.2 to 1 times its width in norm, whatever its gradient; AdamW's
// elements step by the learning rate each. Their usual rates are this far apart.
constexpr float kAdamWRate = 0.1f;

class MuonRule final : public UpdateRule {
 public:
  explicit MuonRule(const OptimizerOptions& options) : options_(options) {}

  void Update(Exec& exec, const LayerState& layer, const UpdateCall& call,
              std::span<const double> /*norms*/) const override {
    const LayerLayout& layout = layer.layout();
    std::vector<const ParamSpec*> matrices;
    for (const ParamSpec& param : layout.params) {
      if (!StepsWhole(InnerOptimizer::kMuon, param)) continue;
      const Range range{param.offset, param.end()};
      const Range owned = Intersection(range, layer.owned());
      if (owned.size() <= 0) continue;
      ATOLL_CHECK(owned == range, layout.name, ": a part of ", param.name, " is owned elsewhere");
      matrices.push_back(&param);
    }
    UpdateMatrices(exec, layer, call, matrices);
    const int64_t rest = SecondSlotBegin(InnerOptimizer::kMuon, layout);
    const float rate = kAdamWRate * call.learning_rate;
    RunAdamW(exec, options_, layer, call, {rest, std::max(rest, layout.decay_size)}, rate, true);
    RunAdamW(exec, options_, layer, call, {std::max(rest, layout.decay_size), layout.trained_size},
             rate, false);
  }

 private:
  // Scratch memory of the largest matrix; matrices take turns.
  struct Scratch {
    Tensor norm, x, y, square, mix;
  };

  void UpdateMatrices(Exec& exec, const LayerState& layer, const UpdateCall& call,
                      const std::vector<const ParamSpec*>& matrices) const {
    if (matrices.empty()) return;
    int64_t most = 0, side = 0;
    for (const ParamSpec* param : matrices) {
      most = std::max(most, param->size);
      side = std::max(side, std::min(CountRows(*param), param->size / CountRows(*param)));
    }
    const DType type = layer.params().dtype;
    const Scratch scratch = {exec.Temporary(type, 1, 1), exec.Temporary(type, 1, most),
                             exec.Temporary(type, 1, most), exec.Temporary(type, 1, side * side),
                             exec.Temporary(type, 1, side * side)};
    for (const ParamSpec* param : matrices) UpdateMatrix(exec, layer, call, *param, scratch);
  }

  void UpdateMatrix(Exec& exec, const LayerState& layer, const UpdateCall& call,
                    const ParamSpec& param, const Scratch& scratch) const {
    const OwnedElements elements = Elements(layer, {param.offset, param.end()});
    const int64_t rows = CountRows(param), cols = param.size / rows;
    exec.Run(MomentumStep{.grad = elements.grad,
                          .m = elements.first,
                          .grad_scale = call.grad_scale,
                          .momentum = options_.momentum,
                          .zero_grad = call.zero_grad});
    Tensor x = Shaped(scratch.x, rows, cols), y = Shaped(scratch.y, rows, cols);
    const int64_t side = std::min(rows, cols);
    exec.Run(SumOfSquares{elements.first, scratch.norm, false});
    exec.Run(Normalize{elements.first, scratch.norm, Shaped(x, 1, x.size())});
    Orthogonalize(exec, Shaped(scratch.square, side, side), Shaped(scratch.mix, side, side), &x,
                  &y);
    const auto step = static_cast<float>(
        call.learning_rate * std::sqrt(static_cast<double>(rows) / static_cast<double>(cols)));
    exec.Run(Scale{elements.param, 1 - call.learning_rate * options_.weight_decay});
    exec.Run(AddScaled{elements.param, Shaped(x, 1, x.size()), elements.param, -step});
    if (elements.copy.rows > 0) exec.Run(Convert{elements.param, elements.copy});
  }

  static Tensor Shaped(const Tensor& x, int64_t rows, int64_t cols) {
    return {x.data, x.dtype, rows, cols};
  }

  // x <- a x + (b A + c A^2) x with A = x x^T; of a tall x with A = x^T x behind it instead. `y` is
  // scratch, which may change places with x.
  static void Orthogonalize(Exec& exec, const Tensor& square, const Tensor& mix, Tensor* x,
                            Tensor* y) {
    const bool tall = x->rows > x->cols;
    for (const auto& [a, b, c] : kCoefficients) {
      if (tall) {
        exec.Zero(square);
        exec.Run(LinearBackwardWeight{.x = *x, .dy = *x, .dw = square});
      } else {
        exec.Run(LinearForward{.x = *x, .w = *x, .y = square});
      }
      exec.Run(LinearForward{.x = square, .w = square, .y = mix});  // A is symmetric
      exec.Run(Scale{mix, static_cast<float>(c)});
      exec.Run(AddScaled{mix, square, mix, static_cast<float>(b)});
      exec.Run(AddScaled{*x, *x, *y, static_cast<float>(a - 1)});
      if (tall) {
        exec.Run(LinearForward{.x = *x, .w = mix, .add = *y, .y = *y});
      } else {
        exec.Run(LinearBackwardInput{.dy = mix, .w = *x, .add = *y, .dx = *y});
      }
      std::swap(*x, *y);
    }
  }

  const OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<UpdateRule> NewMuonRule(const OptimizerOptions& options) {
  return std::make_unique<MuonRule>(options);
}

}  // namespace atl

#include "worker/model/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/check.h"
#include "common/model/tensor_layout.h"

namespace atl {

OptimizerOptions OptimizerOptionsFromSpec(const InnerSpec& spec) {
  return {.kind = spec.optimizer,
          .beta1 = static_cast<float>(spec.beta1),
          .beta2 = static_cast<float>(spec.beta2),
          .epsilon = static_cast<float>(spec.epsilon),
          .weight_decay = static_cast<float>(spec.weight_decay),
          .clip_norm = static_cast<float>(spec.clip_norm),
          .momentum = static_cast<float>(spec.momentum),
          .expert_bias_rate = static_cast<float>(spec.expert_bias_rate)};
}

Range Intersection(const Range& a, const Range& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

OwnedElements Elements(const LayerState& layer, Range range) {
  const Range owned = layer.owned(), second = layer.second_owned();
  OwnedElements elements{layer.params().Columns(range.begin, range.size()),
                         layer.grads().Columns(range.begin, range.size()),
                         layer.first_moment().Columns(range.begin - owned.begin, range.size()),
                         {},
                         {}};
  if (second.begin <= range.begin && range.end <= second.end) {
    elements.second = layer.second_moment().Columns(range.begin - second.begin, range.size());
  }
  const Tensor copy = layer.params_copy();
  if (copy.present()) elements.copy = copy.Columns(range.begin, range.size());
  return elements;
}

std::unique_ptr<UpdateRule> NewUpdateRule(const OptimizerOptions& options) {
  switch (options.kind) {
    case InnerOptimizer::kAdamW:
      return NewAdamWRule(options);
    case InnerOptimizer::kSgd:
    case InnerOptimizer::kRmsProp:
      return NewMomentumRule(options);
    case InnerOptimizer::kLamb:
      return NewLambRule(options);
    case InnerOptimizer::kMuon:
      return NewMuonRule(options);
  }
  ATOLL_CHECK(false, "no optimizer ", static_cast<int>(options.kind));
  __builtin_unreachable();
}

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(Backend& backend, Stream& stream,
                                                             std::vector<LayerState*> layers,
                                                             const OptimizerOptions& options) {
  std::unique_ptr<Optimizer> optimizer(new Optimizer(backend, stream, std::move(layers), options));
  ATOLL_RETURN_IF_ERROR(optimizer->Allocate());
  return optimizer;
}

int64_t Optimizer::norm_count() const {
  int64_t count = 0;
  for (const LayerState* layer : layers_) count += 2 * std::ssize(layer->layout().params);
  return count;
}

absl::Status Optimizer::Allocate() {
  const DType type = layers_.empty() ? DType::kFloat32 : layers_[0]->grads().dtype;
  const int64_t norms = has_norms() ? norm_count() : 0;
  int64_t workspace = 0;
  for (const LayerState* layer : layers_) {
    if (layer->layout().size == 0) continue;
    Exec exec = Exec::Measuring(backend_);
    exec.Run(SumOfSquares{layer->grads(), Tensor(nullptr, type, 1, 1), true});
    const Tensor sums(nullptr, type, 1, 2 * std::ssize(layer->layout().params));
    const Range all[] = {{0, layer->layout().size}};
    if (has_norms()) rule_->Norms(exec, *layer, {}, all, sums);
    const std::vector<double> none(static_cast<size_t>(sums.cols));
    rule_->Update(exec, *layer, {}, none);
    workspace = std::max(workspace, exec.needed_bytes());
  }
  ATOLL_ASSIGN_OR_RETURN(host_sum_, HostReals::Create(backend_, type, 1));
  ATOLL_ASSIGN_OR_RETURN(host_sums_, HostReals::Create(backend_, type, std::ssize(layers_)));
  ATOLL_ASSIGN_OR_RETURN(host_norms_, HostReals::Create(backend_, type, norms));
  const auto carve = [&](Carver carver) {
    sums_ = carver.Take(type, 1, std::ssize(layers_));
    norms_ = carver.Take(type, 1, norms);
    scale_ = carver.Take(type, 1, 1);
    workspace_ = {carver.Bytes(workspace), workspace};
    return carver.bytes();
  };
  ATOLL_ASSIGN_OR_RETURN(scratch_, backend_.Allocate(carve(Carver(nullptr))));
  carve(Carver(scratch_.data()));
  return absl::OkStatus();
}

void Optimizer::EnqueueSumsOfSquares(int rank) {
  backend_.Zero(stream_, sums_);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Tensor sum = sums_.Columns(static_cast<int64_t>(i), 1);
    for (const Range& counted : CountedRanges(layers_[i]->layout(), rank)) {
      const Range range = Intersection(counted, layers_[i]->owned());
      if (range.size() == 0) continue;
      const Tensor part = layers_[i]->grads().Columns(range.begin, range.size());
      backend_.Run(stream_, SumOfSquares{part, sum, true}, workspace_);
    }
  }
  backend_.CopyToHost(stream_, host_sums_.data(), sums_);
}

Tensor Optimizer::ComputeClipScale(double sum_of_squares) {
  if (options_.clip_norm <= 0) return {};
  host_sum_.Set(0, sum_of_squares);
  backend_.CopyToDevice(stream_, scale_, host_sum_.data());
  backend_.Run(stream_, ClipScale{scale_, scale_, options_.clip_norm});
  return scale_;
}

absl::StatusOr<std::vector<double>> Optimizer::Norms(int64_t step, double sum_of_squares,
                                                     int rank) {
  const UpdateCall call{.grad_scale = ComputeClipScale(sum_of_squares), .step = step};
  backend_.Zero(stream_, norms_);
  int64_t at = 0;
  for (const LayerState* layer : layers_) {
    const int64_t count = 2 * std::ssize(layer->layout().params);
    Exec exec(backend_, stream_, workspace_);
    rule_->Norms(exec, *layer, call, CountedRanges(layer->layout(), rank),
                 norms_.Columns(at, count));
    at += count;
  }
  backend_.CopyToHost(stream_, host_norms_.data(), norms_);
  ATOLL_RETURN_IF_ERROR(backend_.Synchronize(stream_));
  return host_norms_.All();
}

namespace {

// Steps what is owned of a layer's statistics, whatever the rule.
void RunStatistics(Exec& exec, const LayerState& layer, const UpdateCall& call,
                   float expert_bias_rate) {
  const LayerLayout& layout = layer.layout();
  const Range range = Intersection({layout.trained_size, layout.size}, layer.owned());
  if (range.size() == 0) return;
  const OwnedElements elements = Elements(layer, range);
  if (layout.Find(Param::kCorrection) != nullptr) {
    return exec.Run(BalanceExperts{.bias = elements.param,
                                   .loads = elements.grad,
                                   .param_copy = elements.copy,
                                   .rate = expert_bias_rate,
                                   .zero_loads = call.zero_grad});
  }
  exec.Run(RunningMean{.running = elements.param,
                       .sums = elements.grad,
                       .param_copy = elements.copy,
                       .samples = static_cast<float>(call.samples),
                       .zero_sums = call.zero_grad});
}

}  // namespace

void Optimizer::Apply(int64_t step, float learning_rate, double sum_of_squares,
                      std::span<const double> norms, bool keep_gradients, int64_t samples) {
  ATOLL_CHECK(std::ssize(norms) == (has_norms() ? norm_count() : 0));
  const UpdateCall call{.grad_scale = ComputeClipScale(sum_of_squares),
                        .step = step,
                        .learning_rate = learning_rate,
                        .zero_grad = !keep_gradients,
                        .samples = std::max<int64_t>(1, samples)};
  for (const LayerState* layer : layers_) {
    const size_t count = norms.empty() ? 0 : 2 * layer->layout().params.size();
    Exec exec(backend_, stream_, workspace_);
    rule_->Update(exec, *layer, call, norms.first(count));
    RunStatistics(exec, *layer, call, options_.expert_bias_rate);
    norms = norms.subspan(count);
  }
}

absl::StatusOr<double> Optimizer::Step(int64_t step, float learning_rate, int64_t samples) {
  EnqueueSumsOfSquares();
  ATOLL_RETURN_IF_ERROR(backend_.Synchronize(stream_));
  const std::vector<double> sums = sums_of_squares();
  const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
  std::vector<double> norms;
  if (has_norms()) {
    ATOLL_ASSIGN_OR_RETURN(norms, Norms(step, sum));
  }
  Apply(step, learning_rate, sum, norms, false, samples);
  ATOLL_RETURN_IF_ERROR(backend_.Synchronize(stream_));
  return std::sqrt(sum);
}

}  // namespace atl

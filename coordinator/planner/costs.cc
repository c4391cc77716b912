#include "coordinator/planner/costs.h"

#include <algorithm>
#include <cmath>

namespace atl::plan {
namespace {

LayerTimes Mix(const LayerTimes& a, double weight_a, const LayerTimes& b, double weight_b) {
  return {a.forward_s * weight_a + b.forward_s * weight_b,
          a.backward_s * weight_a + b.backward_s * weight_b,
          a.weight_s * weight_a + b.weight_s * weight_b,
          // The optimizer does not depend on the micro-batch.
          weight_a > 0 ? a.optimizer_s : b.optimizer_s};
}

}  // namespace

LayerTimes StageCosts::Of(int first, int last) const {
  const LayerTimes& a = sums_[first].times;
  const LayerTimes& b = sums_[last].times;
  return {b.forward_s - a.forward_s, b.backward_s - a.backward_s, b.weight_s - a.weight_s,
          b.optimizer_s - a.optimizer_s};
}

double StageCosts::TotalSeconds(int first, int last) const {
  const LayerTimes times = Of(first, last);
  return times.forward_s + times.backward_s + times.weight_s;
}

int64_t StageCosts::StateBytes(int first, int last) const {
  return static_cast<int64_t>(sums_[last].state_bytes - sums_[first].state_bytes);
}

int64_t StageCosts::StashBytes(int first, int last) const {
  return static_cast<int64_t>(sums_[last].stash_bytes - sums_[first].stash_bytes);
}

StageCosts Costs::For(const DeviceType& type, int tensor_parallel, int micro_batch) const {
  StageCosts costs;
  std::vector<LayerTimes> times = Times(type, tensor_parallel, micro_batch, &costs.source_);
  StageCosts::Sum sum;
  costs.sums_.push_back(sum);
  for (size_t l = 0; l < model_.layers.size(); ++l) {
    const Layer& layer = model_.layers[l];
    if (!options_.split_backward) {
      times[l].backward_s += times[l].weight_s;
      times[l].weight_s = 0;
    }
    sum.times.forward_s += times[l].forward_s;
    sum.times.backward_s += times[l].backward_s;
    sum.times.weight_s += times[l].weight_s;
    sum.times.optimizer_s += times[l].optimizer_s;
    sum.state_bytes += static_cast<double>(layer.parameters) * options_.state_bytes_per_parameter /
                       tensor_parallel;
    sum.state_bytes += static_cast<double>(layer.once_bytes) * micro_batch / tensor_parallel;
    sum.stash_bytes += static_cast<double>(layer.stash_bytes) * micro_batch / tensor_parallel;
    costs.sums_.push_back(sum);
  }
  return costs;
}

std::vector<LayerTimes> Costs::Times(const DeviceType& type, int tp, int micro_batch,
                                     Source* source) const {
  const std::vector<LayerTimes>* below = nullptr;
  const std::vector<LayerTimes>* above = nullptr;
  int below_size = 0;
  int above_size = 0;
  const size_t layers = model_.layers.size();
  // The measured TP size nearest to the one asked for, then the micro-batches around it.
  int measured_tp = 0;
  for (const auto& [key, entry] : profile_) {
    if (std::get<0>(key) != type.name || entry.size() != layers) continue;
    const int size = std::get<1>(key);
    if (measured_tp == 0 ||
        std::abs(std::log(1.0 * size / tp)) < std::abs(std::log(1.0 * measured_tp / tp))) {
      measured_tp = size;
    }
  }
  if (measured_tp == 0) {
    *source = Source::kRoofline;
    return Roofline(type, tp, micro_batch);
  }
  for (const auto& [key, entry] : profile_) {
    if (std::get<0>(key) != type.name || std::get<1>(key) != measured_tp ||
        entry.size() != layers) {
      continue;
    }
    const int size = std::get<2>(key);
    if (size <= micro_batch) {  // keys ascend
      below = &entry;
      below_size = size;
    } else if (above == nullptr) {
      above = &entry;
      above_size = size;
    }
  }
  const bool exact = measured_tp == tp && below != nullptr && below_size == micro_batch;
  *source = exact ? Source::kMeasured : Source::kInterpolated;
  const double scale = static_cast<double>(measured_tp) / tp;
  std::vector<LayerTimes> times(layers);
  for (size_t l = 0; l < layers; ++l) {
    LayerTimes t;
    if (below == nullptr) {
      t = (*above)[l];  // smaller than any measured: no faster than the smallest
    } else if (above == nullptr || below_size == micro_batch) {
      t = Mix((*below)[l], static_cast<double>(micro_batch) / below_size, {}, 0);
    } else {
      const double share =
          static_cast<double>(micro_batch - below_size) / (above_size - below_size);
      t = Mix((*below)[l], 1 - share, (*above)[l], share);
    }
    times[l] = {t.forward_s * scale, t.backward_s * scale, t.weight_s * scale,
                t.optimizer_s * scale};
  }
  return times;
}

std::vector<LayerTimes> Costs::Roofline(const DeviceType& type, int tp, int micro_batch) const {
  std::vector<LayerTimes> times;
  for (const Layer& layer : model_.layers) {
    const double flops = layer.forward_flops * micro_batch / tp;
    const double touched = 2.0 * static_cast<double>(layer.parameters) / tp +
                           2.0 * static_cast<double>(layer.stash_bytes) * micro_batch / tp;
    const double pass =
        std::max(flops / type.flops_per_s, touched / type.memory_bytes_per_s) / options_.efficiency;
    const double reduce = tp == 1 || layer.forward_flops == 0
                              ? 0
                              : 2 * 2.0 * (tp - 1) / tp * static_cast<double>(layer.out_bytes) *
                                    micro_batch / type.link_bytes_per_s;
    // Weights, gradients and state are read and written once.
    const double state =
        static_cast<double>(layer.parameters) / tp * (options_.state_bytes_per_parameter + 14);
    const double backward = layer.forward_flops == 0 ? 0 : pass + reduce;
    times.push_back({layer.forward_flops == 0 ? 0 : pass + reduce, backward,
                     layer.forward_flops == 0 ? 0 : pass, state / type.memory_bytes_per_s});
  }
  return times;
}

}  // namespace atl::plan

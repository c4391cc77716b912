#include "coordinator/planner/cluster/costs.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

namespace atl::plan {
namespace {

LayerTimes Mix(const LayerTimes& a, double weight_a, const LayerTimes& b, double weight_b) {
  return {a.forward_s * weight_a + b.forward_s * weight_b,
          a.backward_s * weight_a + b.backward_s * weight_b,
          a.weight_s * weight_a + b.weight_s * weight_b,
          // The optimizer does not depend on the micro-batch.
          weight_a > 0 ? a.optimizer_s : b.optimizer_s};
}

// None: {}.
RingLink FindRingLink(const DeviceType& type, int tensor_parallel) {
  const auto ring = type.ring_links.find(tensor_parallel);
  return ring == type.ring_links.end() ? RingLink{} : ring->second;
}

// Returns the time of the all-reduces of the activation that a layer hands on, in F and in B each.
double AllReducesSeconds(const DeviceType& type, const Layer& layer, int tp, int micro_batch) {
  if (tp == 1 || layer.forward_flops == 0) return 0;
  return 2 * type.AllReduceSeconds(tp, static_cast<double>(layer.out_bytes) * micro_batch);
}

}  // namespace

double LayerStateBytes(const Layer& layer, const CostOptions& options) {
  return static_cast<double>(layer.parameters) * options.state_bytes_per_parameter +
         static_cast<double>(layer.frozen_bytes);
}

Saving StageCosts::Effective(const Saving& saving, int first, int last) const {
  if (recompute_ != Recompute::kAll) return saving;
  return {true, Recomputable(first, last)};
}

int StageCosts::EndOfRecomputed(int first, int last, int recomputed) const {
  const int until = At(first).recomputable + std::min(recomputed, Recomputable(first, last));
  const auto end =
      std::lower_bound(sums_->begin() + first, sums_->begin() + last, until,
                       [](const Sum& sum, int count) { return sum.recomputable < count; });
  return static_cast<int>(end - sums_->begin());
}

LayerTimes StageCosts::Of(int first, int last, const Saving& requested_saving) const {
  const LayerTimes& a = At(first).times;
  const LayerTimes& b = At(last).times;
  LayerTimes times = {b.forward_s - a.forward_s, b.backward_s - a.backward_s,
                      b.weight_s - a.weight_s, b.optimizer_s - a.optimizer_s};
  const Saving saving = Effective(requested_saving, first, last);
  if (saving.recomputed > 0) {
    const int end = EndOfRecomputed(first, last, saving.recomputed);
    times.backward_s += At(end).again_s - At(first).again_s;
  }
  if (saving.whole_backward) times.backward_s += std::exchange(times.weight_s, 0);
  return times;
}

double StageCosts::TotalSeconds(int first, int last, const Saving& saving) const {
  if (recompute_ != Recompute::kAll && !saving.any()) {
    const LayerTimes& a = At(first).times;
    const LayerTimes& b = At(last).times;
    return (b.forward_s - a.forward_s) + (b.backward_s - a.backward_s) + (b.weight_s - a.weight_s);
  }
  const LayerTimes times = Of(first, last, saving);
  return times.forward_s + times.backward_s + times.weight_s;
}

double StageCosts::MostSeconds() const {
  const int all = layers();
  return recompute_ == Recompute::kNone ? TotalSeconds(0, all)
                                        : TotalSeconds(0, all, {true, Recomputable(0, all)});
}

int64_t StageCosts::StateBytes(int first, int last, const Saving& requested_saving) const {
  if (first == last) return 0;
  const Saving saving = Effective(requested_saving, first, last);
  double bytes = At(last).state_bytes - At(first).state_bytes + workspace_bytes_;
  if (saving.whole_backward) bytes += once_bytes_;
  if (saving.recomputed > 0) bytes += again_once_bytes_;
  return static_cast<int64_t>(bytes);
}

int64_t StageCosts::StashBytes(int first, int last, const Saving& requested_saving) const {
  const Saving saving = Effective(requested_saving, first, last);
  double bytes = At(last).stash_bytes - At(first).stash_bytes;
  if (saving.whole_backward) bytes -= At(last).backward_bytes - At(first).backward_bytes;
  if (saving.recomputed > 0) {
    const int end = EndOfRecomputed(first, last, saving.recomputed);
    bytes -= At(end).again_bytes - At(first).again_bytes;
  }
  return static_cast<int64_t>(std::max(0.0, bytes));
}

std::optional<Saving> StageCosts::LeastSaving(int first, int last, int64_t memory_bytes,
                                              int in_flight) const {
  const auto fits = [&](int level) {
    const Saving saving = SavingFromLevel(level);
    return StateBytes(first, last, saving) + in_flight * StashBytes(first, last, saving) <=
           memory_bytes;
  };
  if (recompute_ != Recompute::kAuto) {
    return fits(0) ? std::optional(Saving{}) : std::nullopt;
  }
  const std::optional<int> level = LeastLevel(Recomputable(first, last), fits);
  return level ? std::optional(SavingFromLevel(*level)) : std::nullopt;
}

void StageCosts::Add(const Layer& layer, const LayerTimes& times, const CostOptions& options,
                     const LayerShares& shares, int micro_batch) {
  Sum sum = sums_->back();
  sum.times.forward_s += times.forward_s;
  sum.times.backward_s += times.backward_s;
  sum.times.weight_s += times.weight_s;
  sum.times.optimizer_s += times.optimizer_s;
  const double taken = options.runtime.allocator_ratio;
  const auto each = [&](int64_t bytes) {
    return static_cast<double>(bytes) * micro_batch * shares.stash * taken;
  };
  sum.state_bytes += LayerStateBytes(layer, options) * shares.state * taken;
  sum.stash_bytes += each(layer.stash_bytes);
  sum.backward_bytes += each(layer.backward_bytes);
  // A backward pass has up to three gradients at stage links, of which one counts with its layer.
  once_bytes_ = std::max(once_bytes_, each(layer.backward_bytes + 2 * layer.out_bytes));
  if (layer.again_bytes > 0) {
    ++sum.recomputable;
    sum.again_bytes += each(layer.again_bytes);
    sum.again_s += times.forward_s;
    again_once_bytes_ = std::max(again_once_bytes_, each(layer.again_bytes));
  }
  sums_->push_back(sum);
}

const Costs& Costs::ForReplicas(size_t replicas) const {
  const double sharded = options_.sharded_bytes_per_parameter;
  const double copies = std::max(1, options_.optimizer_copies);
  if (sharded <= 0 || static_cast<double>(replicas) <= copies) return *this;
  std::shared_ptr<const Costs>& known = by_replicas_[replicas];
  if (known == nullptr) {
    CostOptions options = options_;
    options.state_bytes_per_parameter -= sharded * (1 - copies / static_cast<double>(replicas));
    options.sharded_bytes_per_parameter = 0;
    // Two replicas step each element, unless memory requires one: planned for one, it may be two.
    constexpr double kTypicalCopies = 2;
    options.optimizer_share =
        std::min(1.0, std::max(copies, kTypicalCopies) / static_cast<double>(replicas));
    known = std::make_shared<const Costs>(With(options));
  }
  return *known;
}

double Costs::LargestPart(const Layer& layer, int tensor_parallel) const {
  const double even = 1.0 / tensor_parallel;
  // Things of which each device has whole ones.
  const auto largest = [&](int64_t things) {
    if (things == 0) return even;
    const int64_t most = (things + tensor_parallel - 1) / tensor_parallel;
    return static_cast<double>(most) / static_cast<double>(things);
  };
  return layer.head_share * largest(model_.head_groups) +
         layer.expert_share * largest(model_.experts) +
         (1 - layer.head_share - layer.expert_share) * even;
}

double Costs::LargestWork(const Layer& layer, int tensor_parallel) const {
  const double part = LargestPart(layer, tensor_parallel);
  const auto experts = static_cast<size_t>(model_.experts);
  if (layer.expert_share == 0 || experts == 0 || model_.expert_tokens.size() < experts) return part;
  // A step waits for the busiest device of each mixture, on the mean over them.
  const auto ranks = static_cast<size_t>(tensor_parallel);
  double busiest = 0, all = 0;
  for (size_t first = 0; first + experts <= model_.expert_tokens.size(); first += experts) {
    double most = 0;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const auto at = model_.expert_tokens.begin() + static_cast<std::ptrdiff_t>(first);
      const double here =
          std::accumulate(at + static_cast<std::ptrdiff_t>(rank * experts / ranks),
                          at + static_cast<std::ptrdiff_t>((rank + 1) * experts / ranks), 0.0);
      most = std::max(most, here);
      all += here;
    }
    busiest += most;
  }
  if (all <= 0) return part;
  const int64_t here = (model_.experts + tensor_parallel - 1) / tensor_parallel;
  const double even = static_cast<double>(here) / static_cast<double>(model_.experts);
  return part + layer.expert_share * (busiest / all - even);
}

double Costs::LargestStashPart(const Layer& layer, int tensor_parallel) const {
  const double part = LargestPart(layer, tensor_parallel);
  if (layer.expert_stash_bytes == 0) return part;
  const int64_t here = (model_.experts + tensor_parallel - 1) / tensor_parallel;
  const double rows = static_cast<double>(std::min(here, model_.experts_per_token)) /
                      static_cast<double>(model_.experts_per_token);
  const double share =
      static_cast<double>(layer.expert_stash_bytes) / static_cast<double>(layer.stash_bytes);
  return share * rows + (1 - share) * part;
}

DegreeMemory Costs::EstimateDegreeMemory(int tensor_parallel) const {
  DegreeMemory memory;
  const auto above = memory_.upper_bound(tensor_parallel);
  const int measured = above == memory_.begin() ? 1 : std::prev(above)->first;
  if (above != memory_.begin()) memory = std::prev(above)->second;
  memory.layers.resize(model_.layers.size());
  for (size_t l = 0; l < memory.layers.size(); ++l) {
    const Layer& layer = model_.layers[l];
    memory.layers[l].state *= LargestPart(layer, tensor_parallel) / LargestPart(layer, measured);
    memory.layers[l].stash *=
        LargestStashPart(layer, tensor_parallel) / LargestStashPart(layer, measured);
  }
  return memory;
}

StageCosts Costs::AccumulateTimes(std::vector<LayerTimes> times, int tensor_parallel,
                                  int micro_batch) const {
  StageCosts costs;
  costs.recompute_ = options_.recompute;
  costs.sums_ = std::make_shared<std::vector<StageCosts::Sum>>(1);
  const DegreeMemory memory = EstimateDegreeMemory(tensor_parallel);
  const RuntimeTraits& runtime = options_.runtime;
  costs.workspace_bytes_ =
      memory.workspace_bytes * micro_batch * runtime.allocator_ratio + runtime.context_bytes;
  for (size_t l = 0; l < model_.layers.size(); ++l) {
    if (!options_.split_backward) times[l].backward_s += std::exchange(times[l].weight_s, 0);
    costs.Add(model_.layers[l], times[l], options_, memory.layers[l], micro_batch);
  }
  return costs;
}

StageCosts Costs::For(const DeviceType& type, int tensor_parallel, int micro_batch) const {
  const auto [known, added] = known_.try_emplace(
      CostKey(tensor_parallel, micro_batch, type.flops_per_s, type.memory_bytes_per_s,
              type.link_bytes_per_s, FindRingLink(type, tensor_parallel), type.name));
  if (!added) return known->second;
  Source source;
  std::vector<LayerTimes> times = Times(type, tensor_parallel, micro_batch, &source);
  StageCosts costs = AccumulateTimes(std::move(times), tensor_parallel, micro_batch);
  costs.source_ = source;
  return known->second = std::move(costs);
}

StageCosts Costs::ForSplitRatios(const std::vector<DeviceType>& types,
                                 const std::vector<int>& shares, int micro_batch) const {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  Source worst = Source::kMeasured;
  std::vector<LayerTimes> slowest(model_.layers.size());
  for (size_t rank = 0; rank < types.size(); ++rank) {
    Source source;
    const std::vector<LayerTimes> times =
        RankTimes(types, rank, shares[rank] / sum, micro_batch, &source);
    worst = std::max(worst, source);
    for (size_t l = 0; l < times.size(); ++l) {
      LayerTimes& most = slowest[l];
      most.forward_s = std::max(most.forward_s, times[l].forward_s);
      most.backward_s = std::max(most.backward_s, times[l].backward_s);
      most.weight_s = std::max(most.weight_s, times[l].weight_s);
      most.optimizer_s = std::max(most.optimizer_s, times[l].optimizer_s);
    }
  }
  StageCosts costs =
      AccumulateTimes(std::move(slowest), static_cast<int>(types.size()), micro_batch);
  costs.source_ = worst;
  return costs;
}

double Costs::RankSeconds(const std::vector<DeviceType>& types, size_t rank, double share,
                          int micro_batch) const {
  Source source;
  double seconds = 0;
  for (const LayerTimes& t : RankTimes(types, rank, share, micro_batch, &source)) {
    seconds += t.forward_s + t.backward_s + t.weight_s;
  }
  return seconds;
}

std::vector<LayerTimes> Costs::RankTimes(const std::vector<DeviceType>& types, size_t rank,
                                         double share, int micro_batch, Source* source) const {
  const int ranks = static_cast<int>(types.size());
  const double even = 1.0 / ranks;
  Source other;
  const std::vector<LayerTimes> alone = Times(types[rank], 1, micro_batch, source);
  const std::vector<LayerTimes> shared = Times(types[rank], ranks, micro_batch, &other);
  *source = std::max({*source, other, share == even ? Source::kMeasured : Source::kInterpolated});
  // By layer: what the group's slowest device takes alone, and what it takes evenly shared.
  std::vector<LayerTimes> slow_alone = alone, slow_shared = shared;
  for (const DeviceType& type : types) {
    const std::vector<LayerTimes> a = Times(type, 1, micro_batch, &other);
    const std::vector<LayerTimes> s = Times(type, ranks, micro_batch, &other);
    for (size_t l = 0; l < a.size(); ++l) {
      const auto total = [](const LayerTimes& t) {
        return t.forward_s + t.backward_s + t.weight_s;
      };
      if (total(a[l]) <= total(slow_alone[l])) continue;
      slow_alone[l] = a[l];
      slow_shared[l] = s[l];
    }
  }
  const auto of = [&](double own, double together, double slow, double slow_together) {
    const double waits = std::max(0.0, slow_together - even * slow);
    const double at_even = std::min(together, even * own + waits);
    const double stays = at_even - even * own;
    // Less than in proportion: a smaller part may be quicker for its size than the whole.
    return stays >= 0 ? share * own + stays : at_even * share / even;
  };
  std::vector<LayerTimes> times(alone.size());
  for (size_t l = 0; l < alone.size(); ++l) {
    const LayerTimes &a = alone[l], &s = shared[l], &sa = slow_alone[l], &ss = slow_shared[l];
    times[l] = {of(a.forward_s, s.forward_s, sa.forward_s, ss.forward_s),
                of(a.backward_s, s.backward_s, sa.backward_s, ss.backward_s),
                of(a.weight_s, s.weight_s, sa.weight_s, ss.weight_s), s.optimizer_s * share / even};
  }
  return times;
}

std::vector<LayerTimes> Costs::Times(const DeviceType& type, int tp, int micro_batch,
                                     Source* source) const {
  const std::vector<LayerTimes>* below = nullptr;
  const std::vector<LayerTimes>* above = nullptr;
  int below_size = 0;
  int above_size = 0;
  const size_t layers = model_.layers.size();
  // The measured TP size nearest to the one requested, then the micro-batches around it.
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
  std::vector<LayerTimes> times(layers);
  for (size_t l = 0; l < layers; ++l) {
    const double scale =
        LargestWork(model_.layers[l], tp) / LargestPart(model_.layers[l], measured_tp);
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
    // Times of one device alone have no all-reduce in them.
    const double reduce = measured_tp == 1 && type.ring_links.count(tp) > 0
                              ? AllReducesSeconds(type, model_.layers[l], tp, micro_batch)
                              : 0;
    times[l] = {t.forward_s * scale + reduce, t.backward_s * scale + reduce, t.weight_s * scale,
                t.optimizer_s * scale * options_.optimizer_share};
  }
  return times;
}

std::vector<LayerTimes> Costs::Roofline(const DeviceType& type, int tp, int micro_batch) const {
  std::vector<LayerTimes> times;
  for (const Layer& layer : model_.layers) {
    const double part = LargestPart(layer, tp);
    const double flops = layer.forward_flops * micro_batch * LargestWork(layer, tp);
    const double stash = 2.0 * static_cast<double>(layer.stash_bytes) * micro_batch * part;
    const double trained = 2.0 * static_cast<double>(layer.parameters) * part + stash;
    const double touched = trained + static_cast<double>(layer.frozen_bytes) * part;
    const auto seconds = [&](double operations, double bytes) {
      return std::max(operations / type.flops_per_s, bytes / type.memory_bytes_per_s) /
             options_.efficiency;
    };
    const double pass = seconds(flops, touched);
    const double frozen = layer.frozen_flops * micro_batch * part;
    const double weight = frozen == 0 ? pass : seconds(flops - frozen, trained);
    const double reduce = AllReducesSeconds(type, layer, tp, micro_batch);
    // Weights, gradients and state are read and written once.
    const double state =
        static_cast<double>(layer.parameters) * part * (options_.state_bytes_per_parameter + 14);
    LayerTimes made{pass + reduce, pass + reduce, weight, state / type.memory_bytes_per_s};
    if (layer.forward_flops == 0) made.forward_s = made.backward_s = made.weight_s = 0;
    if (layer.loss) {
      made.forward_s += made.backward_s + made.weight_s;
      made.backward_s = made.weight_s = 0;
    }
    times.push_back(made);
  }
  return times;
}

}  // namespace atl::plan

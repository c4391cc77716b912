// How long a layer takes on a device type: measured where there is a measurement, interpolated
// between measurements, by roofline otherwise. The source is kept, so that a plan can say so.

#ifndef ATOLL_COORDINATOR_PLANNER_CLUSTER_COSTS_H_
#define ATOLL_COORDINATOR_PLANNER_CLUSTER_COSTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/protocol/job_spec.h"
#include "coordinator/planner/cluster/catalogue.h"

namespace atl::plan {

struct CostOptions;

// Returns the bytes of a layer's weights, gradients and optimizer state, of all parts together.
double LayerStateBytes(const Layer& layer, const CostOptions& options);

struct LayerTimes {
  double forward_s = 0;
  double backward_s = 0;  // gradient for the input
  double weight_s = 0;    // gradient for the weights; 0: the backward is not split
  double optimizer_s = 0;
};

enum class Source { kMeasured = 0, kInterpolated = 1, kRoofline = 2 };

// A stage's measures to need less memory. The first costs only what a schedule could have gained by
// W of its own; the second costs F of these layers once more.
struct Saving {
  bool whole_backward = false;  // W directly after its B: what B leaves for W is there once
  // This many layers, the first ones of the stage that can, keep only their input from F to B, and
  // run F again before B. Only with whole_backward: what they make again is there once, too.
  int recomputed = 0;

  bool any() const { return whole_backward; }
  bool operator==(const Saving&) const = default;
};

// Returns the saving of a level, from nothing (0) by whole_backward (1) to ever more layers, each
// saving more than the one before.
inline Saving SavingFromLevel(int level) { return {level > 0, level > 1 ? level - 1 : 0}; }

// The least level, of layers of which so many can be recomputed, that fits; nothing: none does.
template <class Fits>
std::optional<int> LeastLevel(int recomputable, const Fits& fits) {
  for (const int level : {0, 1}) {
    if (fits(level)) return level;
  }
  int low = 2, high = recomputable + 1;
  if (high < low || !fits(high)) return std::nullopt;
  while (low < high) {
    const int middle = (low + high) / 2;
    fits(middle) ? high = middle : low = middle + 1;
  }
  return low;
}

// Traits of the runtime whose steps are predicted. The defaults are ours: messages go while devices
// compute, members of a tensor-parallel group send a part of an activation each, devices report the
// memory that is left to training, and all of it is taken when a plan is set up.
struct RuntimeTraits {
  bool blocking_messages = false;  // a device computes nothing while it sends or receives one
  bool whole_messages = false;     // every member of a group sends all of an activation
  double context_bytes = 0;        // of each device, whatever it holds
  double allocator_ratio = 1;      // bytes taken over bytes needed
  double all_reduce_ratio = 1;     // time of gradients' all-reduces over that of their links
};

struct CostOptions {
  // Share of the datasheet's speed that training reaches. 0.45 is what well-tuned dense
  // transformers report on A100 and H100; a measurement replaces it.
  double efficiency = 0.45;
  // Half-precision weight 2, fp32 gradient 4, master weight 4, two moments 8.
  double state_bytes_per_parameter = 18;
  // The part of these bytes that so many of the replicas keep of each parameter, divided among all
  // of them (the optimizer's state, ZeRO-1). 0: every replica keeps all.
  double sharded_bytes_per_parameter = 0;
  int optimizer_copies = 1;
  double optimizer_share = 1;  // of what the optimizer was measured to take
  double reserve = 0.06;       // of the memory: workspace, fragmentation, buffers for messages
  bool split_backward = true;
  double weight_share = 0.43;  // of the stash, held from B to W (32 of 34 + 5as/h bytes)
  // Memory as our runtime takes it (sim::Problem::fixed_slots), with a weight_share of 1.
  bool fixed_slots = false;
  Recompute recompute = Recompute::kNone;  // kAuto: stages take the least saving that they need
  RuntimeTraits runtime;
};

// Measured times: (type, tensor parallel size, micro-batch) -> one entry per layer.
using ProfileTable = std::map<std::tuple<std::string, int, int>, std::vector<LayerTimes>>;

// Measured memory of one layer on each device of a tensor-parallel group, relative to that of one
// device that has all of it: more than an even part, since some of a layer is on all of them.
struct LayerShares {
  double state = 1;
  double stash = 1;
};
// Memory that was measured for one tensor-parallel degree.
struct DegreeMemory {
  std::vector<LayerShares> layers;
  double workspace_bytes = 0;  // of the operation that needs most, for one sample
};
using MemoryTable = std::map<int, DegreeMemory>;  // by degree

// All layers of a model for one type, TP size and micro-batch, with running sums. With kAll the
// saving is what it is, whatever callers say.
class StageCosts {
 public:
  // Times of layers [first, last) as one stage.
  LayerTimes Of(int first, int last, const Saving& saving = {}) const;
  // F + B + W of one micro-batch.
  double TotalSeconds(int first, int last, const Saving& saving = {}) const;
  // Weights, gradients and optimizer state on each device of the group, and what one micro-batch at
  // a time needs on top of its stash: the workspace of operations, where it was measured, included.
  int64_t StateBytes(int first, int last, const Saving& saving = {}) const;
  // One micro-batch's stash on each device of the group.
  int64_t StashBytes(int first, int last, const Saving& saving = {}) const;

  // Returns how many layers of these can be recomputed.
  int Recomputable(int first, int last) const {
    return At(last).recomputable - At(first).recomputable;
  }
  // The least saving with which state and so many stashes fit; nothing: none is enough.
  std::optional<Saving> LeastSaving(int first, int last, int64_t memory_bytes, int in_flight) const;
  // The most that layers of this model take, F of all that can be recomputed once more.
  double MostSeconds() const;

  Source source() const { return source_; }
  int layers() const { return static_cast<int>(sums_->size()) - 1; }

 private:
  friend class Costs;
  struct Sum {
    LayerTimes times;
    double state_bytes = 0;
    double stash_bytes = 0;
    double backward_bytes = 0;  // of the stash, what a whole backward has once
    // Sums over the layers that can be recomputed.
    int recomputable = 0;
    double again_bytes = 0;  // of the stash, what is not kept
    double again_s = 0;
  };
  Saving Effective(const Saving& saving, int first, int last) const;
  // Returns where the first so many layers that can be recomputed end.
  int EndOfRecomputed(int first, int last, int recomputed) const;
  void Add(const Layer& layer, const LayerTimes& times, const CostOptions& options,
           const LayerShares& shares, int micro_batch);

  const Sum& At(int layer) const { return (*sums_)[layer]; }

  std::shared_ptr<std::vector<Sum>> sums_;  // of the layers before; complete, they do not change
  double once_bytes_ = 0, again_once_bytes_ = 0, workspace_bytes_ = 0;
  Recompute recompute_ = Recompute::kNone;
  Source source_ = Source::kRoofline;
};

// Caches its results: not for several threads at once. Copies may be used by threads of their own.
class Costs {
 public:
  // For degrees that `memory` lacks, a device has an even part of what it has with the next smaller
  // one there, or alone.
  Costs(const Model& model, ProfileTable profile, const CostOptions& options,
        MemoryTable memory = {})
      : model_(model),
        profile_(std::move(profile)),
        options_(options),
        memory_(std::move(memory)) {}
  // The same measurements with other options.
  Costs With(const CostOptions& options) const { return {model_, profile_, options, memory_}; }
  // Returns the costs of layouts of so many replicas, which share the optimizer's state. Valid as
  // long as this object.
  const Costs& ForReplicas(size_t replicas) const;

  // Tensor parallelism adds two all-reduces of the activation to F and to B, over the slowest link
  // of the group where such links are described (DeviceType::ring_links), else over the type's.
  // Interpolation: linear in the micro-batch between the two nearest measured ones (beyond the
  // largest, in proportion); over TP sizes, work scaled by the ratio of what the device has that
  // has most: heads that the size does not divide are cut unevenly.
  StageCosts For(const DeviceType& type, int tensor_parallel, int micro_batch) const;

  // Returns the costs for devices of these types, by rank, that share layers by these split ratios:
  // of every operation what the slowest takes with its share. What a layer takes on one device
  // alone divides by share; what sharing it evenly was measured to cost in addition stays, and is
  // the slowest device's for all, since they were measured together and waited for each other.
  // Bytes are those of an even share.
  StageCosts ForSplitRatios(const std::vector<DeviceType>& types, const std::vector<int>& shares,
                            int micro_batch) const;
  // F + B + W of all layers on rank `rank` of such a group, without waiting for others.
  double RankSeconds(const std::vector<DeviceType>& types, size_t rank, double share,
                     int micro_batch) const;

  const Model& model() const { return model_; }
  const ProfileTable& profile() const { return profile_; }
  const CostOptions& options() const { return options_; }
  int64_t UsableBytes(const DeviceType& type) const {
    return static_cast<int64_t>(static_cast<double>(type.memory_bytes) * (1 - options_.reserve));
  }

 private:
  std::vector<LayerTimes> Times(const DeviceType& type, int tp, int micro_batch,
                                Source* source) const;
  std::vector<LayerTimes> RankTimes(const std::vector<DeviceType>& types, size_t rank, double share,
                                    int micro_batch, Source* source) const;
  StageCosts AccumulateTimes(std::vector<LayerTimes> times, int tensor_parallel,
                             int micro_batch) const;
  DegreeMemory EstimateDegreeMemory(int tensor_parallel) const;
  std::vector<LayerTimes> Roofline(const DeviceType& type, int tp, int micro_batch) const;
  // Returns the part of a layer on the device that has most of it.
  double LargestPart(const Layer& layer, int tensor_parallel) const;
  // The same of its operations, where experts are chosen as often as was measured.
  double LargestWork(const Layer& layer, int tensor_parallel) const;
  // The same of what is kept of it from F to B.
  double LargestStashPart(const Layer& layer, int tensor_parallel) const;

  Model model_;
  ProfileTable profile_;
  CostOptions options_;
  MemoryTable memory_;
  // Keys by degree, micro-batch, and what counts of a type; its name last, which takes longest to
  // compare.
  using CostKey = std::tuple<int, int, double, double, double, RingLink, std::string>;
  mutable std::map<CostKey, StageCosts> known_;
  // By number of replicas; copies begin without.
  struct ByReplicas : std::map<size_t, std::shared_ptr<const Costs>> {
    ByReplicas() = default;
    ByReplicas(const ByReplicas&) : ByReplicas() {}
    ByReplicas& operator=(const ByReplicas&) {
      clear();
      return *this;
    }
  };
  mutable ByReplicas by_replicas_;
};

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_CLUSTER_COSTS_H_

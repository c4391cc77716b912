// How long a layer takes on a device type: measured where there is a measurement, interpolated
// between measurements, by roofline otherwise. The source is kept, so that a plan can say so.

#ifndef ATOLL_COORDINATOR_PLANNER_COSTS_H_
#define ATOLL_COORDINATOR_PLANNER_COSTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "coordinator/planner/catalogue.h"

namespace atl::plan {

struct LayerTimes {
  double forward_s = 0;
  double backward_s = 0;  // gradient for the input
  double weight_s = 0;    // gradient for the weights; 0: the backward is not split
  double optimizer_s = 0;
};

enum class Source { kMeasured = 0, kInterpolated = 1, kRoofline = 2 };

struct CostOptions {
  // Share of the datasheet's speed that training reaches. 0.45 is what well-tuned dense
  // transformers report on A100 and H100; a measurement replaces it.
  double efficiency = 0.45;
  // Half-precision weight 2, fp32 gradient 4, master weight 4, two moments 8.
  double state_bytes_per_parameter = 18;
  double reserve = 0.06;  // of the memory: workspace, fragmentation, buffers for messages
  bool split_backward = true;
  double weight_share = 0.43;  // of the stash, held from B to W (32 of 34 + 5as/h bytes)
  // Memory as our runtime takes it (sim::Problem::fixed_slots), with a weight_share of 1.
  bool fixed_slots = false;
};

// Measured times: (type, tensor parallel size, micro-batch) -> one entry per layer.
using ProfileTable = std::map<std::tuple<std::string, int, int>, std::vector<LayerTimes>>;

// All layers of a model for one type, TP size and micro-batch, with running sums.
class StageCosts {
 public:
  // Times of layers [first, last) as one stage.
  LayerTimes Of(int first, int last) const;
  double TotalSeconds(int first, int last) const;  // F + B + W of one micro-batch
  // Weights, gradients and optimizer state on each device of the group, and what one micro-batch at
  // a time needs on top of its stash.
  int64_t StateBytes(int first, int last) const;
  // One micro-batch's stash on each device of the group.
  int64_t StashBytes(int first, int last) const;
  Source source() const { return source_; }
  int layers() const { return static_cast<int>(sums_.size()) - 1; }

 private:
  friend class Costs;
  struct Sum {
    LayerTimes times;
    double state_bytes = 0;
    double stash_bytes = 0;
  };
  std::vector<Sum> sums_;  // of the layers before
  Source source_ = Source::kRoofline;
};

class Costs {
 public:
  Costs(const Model& model, ProfileTable profile, const CostOptions& options)
      : model_(model), profile_(std::move(profile)), options_(options) {}

  // Tensor parallelism adds two all-reduces of the activation to F and to B, over the type's link.
  // Interpolation: linear in the micro-batch between the two nearest measured ones (beyond the
  // largest, in proportion); over TP sizes, work scaled by the ratio of sizes.
  StageCosts For(const DeviceType& type, int tensor_parallel, int micro_batch) const;
  const Model& model() const { return model_; }
  const CostOptions& options() const { return options_; }
  int64_t UsableBytes(const DeviceType& type) const {
    return static_cast<int64_t>(static_cast<double>(type.memory_bytes) * (1 - options_.reserve));
  }

 private:
  std::vector<LayerTimes> Times(const DeviceType& type, int tp, int micro_batch,
                                Source* source) const;
  std::vector<LayerTimes> Roofline(const DeviceType& type, int tp, int micro_batch) const;

  Model model_;
  ProfileTable profile_;
  CostOptions options_;
};

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_COSTS_H_

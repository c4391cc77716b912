// Cutting a model's layers into shards and placing them on parameter servers with load balancing.
// Pure.

#ifndef ATOLL_COORDINATOR_CORE_SHARDS_PLACEMENT_H_
#define ATOLL_COORDINATOR_CORE_SHARDS_PLACEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/protocol/control.h"
#include "coordinator/core/records.h"

namespace atl {

inline constexpr int64_t kPlacedLayersMax = 1 << 17;
inline constexpr int64_t kPlacedShardsMax = 1 << 17;
inline constexpr int64_t kPlacedElementsMax = int64_t{1} << 42;  // of a model

// Refuses facts that no worker could mean: no or too many layers, empty or huge ones, no data.
absl::Status Validate(const JobFacts& facts);

// "" if equal; else the first fact that differs and both its values, human-readable. `tasks`: whose
// texts are part of the data's digest.
std::string Difference(const JobFacts& ours, const JobFacts& theirs,
                       const std::vector<EvaluationSpec>& tasks = {});

// Shards of at most `max_shard_bytes` of fp32, those of one layer equal to within one element, in
// order of layers; without replicas. `by_expert`: none reaches over the border of an expert, and
// those of what lies around experts, and of each of these, are equal. REQUIRES: valid facts. Error:
// too many shards.
absl::StatusOr<std::vector<ShardDescriptor>> CutShards(const std::vector<LayerSize>& layers,
                                                       int64_t max_shard_bytes,
                                                       bool by_expert = false);

struct PlacementServer {
  NodeId name;
  double cost = 1;         // of an element, relative to a near server (ComputeServerAccessCost)
  int64_t free_bytes = 0;  // besides what it holds
  bool takes = true;       // may get shards
  bool leaves = false;     // is to hold none
  std::string site = {};
};

// Longest processing time first: the largest shard not yet placed goes to the server whose elements
// times their cost are the fewest with it (the first by name among equals) that has memory for it:
// parameters, slots and one staged pseudo-gradient. A second replica (`replicas` is 2) goes to
// another server than the active one, at another site if one has memory for it. Replaces the
// replicas that the shards have. Servers are named, without addresses. Error: they have too little
// memory; says how much is needed.
absl::StatusOr<std::vector<ShardDescriptor>> PlaceShards(
    std::vector<ShardDescriptor> shards, const std::vector<PlacementServer>& servers,
    int64_t bytes_per_element, int64_t replicas = 1);

// Elements of the active replicas of the fullest server over the mean; 1 if nothing is placed.
double MaxOverMean(const std::vector<ShardDescriptor>& shards);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_PLACEMENT_H_

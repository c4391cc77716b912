// The work of one device under a plan, worked out once: its stages with their neighbours, the
// memory for micro-batches in flight, the groups of devices that it is in, and the all-reduces of
// its gradients. Pure.

#ifndef ATOLL_WORKER_PIPELINE_ROLE_H_
#define ATOLL_WORKER_PIPELINE_ROLE_H_

#include <string>
#include <utility>
#include <vector>

#include "common/model/config.h"
#include "common/model/ownership.h"
#include "common/protocol/island_plan.h"

namespace atl::worker {

// Devices that call collectives together, in rank order.
struct DeviceGroup {
  std::string name;
  std::vector<std::string> devices;

  bool operator==(const DeviceGroup&) const = default;
};

// The reduction of a layer's gradients, when they are complete on this device, and the all-gather
// of the parameters that their owners have made of them.
struct SyncTask {
  enum class What : uint8_t {
    kLayer,  // a whole layer, among the replicas
    // The table of a tied head, which has a copy of the embedding's table where it is not in the
    // embedding's stage: the table's gradient, among embeddings and heads of all replicas.
    kTable,
    kRest,  // what the embedding has beyond the table, among the replicas
  };
  What what = What::kLayer;
  int32_t layer = 0;
  std::string group;  // empty: this device alone, which adds its own two gradients of the table
  // The replica whose part each member of the group owns. -1: a table's copy, whose elements are
  // owned with the embeddings, where ownership is sharded.
  std::vector<int32_t> replicas = {};

  bool operator==(const SyncTask&) const = default;
};

struct StageRole {
  int32_t stage = 0;  // of the replica
  PlanStage plan;
  // Devices that activations and gradients come from; empty: there is no such stage.
  std::string before, next;
  // Ranks of these stages that gradients and activations go to, with their devices: none, where
  // such a stage has fewer ranks than this one.
  std::vector<std::pair<int32_t, std::string>> to_before, to_next;
  bool before_is_here = false, next_is_here = false;
  int forward_slots = 0;     // micro-batches between the start of F and the end of W, at most
  int backward_slots = 0;    // and between the start of B and the end of W
  bool fused = false;        // every W follows its B at once
  std::string tensor_group;  // empty: a group of one
};

struct DeviceRole {
  std::string device;
  int32_t replica = 0;
  int32_t rank = 0;
  int32_t ranks = 1;  // of its groups
  Ownership ownership;
  std::vector<StageRole> stages;  // ascending
  PlanProgram program;
  int64_t micro_batch_sequences = 0;
  int32_t micro_batches = 0;
  std::vector<DeviceGroup> groups;  // that it is in; all devices have them in the same order
  std::vector<SyncTask> syncs;      // likewise
  bool table_copy = false;          // holds a tied head apart from its embedding

  bool HoldsLayer(int32_t layer) const;
  StageRole* FindStage(int32_t stage);
};

// How the head and the embedding share a table.
enum class TiedTable : uint8_t {
  kNone,
  kFrozen,   // nothing is summed up; the head has a copy where the embedding is elsewhere
  kTrained,  // likewise, and the gradients of both are summed up
};
inline TiedTable GetTiedTable(const ModelConfig& model) {
  if (!model.tied_head) return TiedTable::kNone;
  return model.adapter.present() ? TiedTable::kFrozen : TiedTable::kTrained;
}

// Groups are named "tensor/N" and "sync/N". REQUIRES: a valid plan that names the device.
DeviceRole MakeDeviceRole(const IslandPlan& plan, const std::string& device, int32_t layers,
                          TiedTable tied);

// All devices of the plan, by replica, stage and rank: those of the exchange that commits a step.
std::vector<std::string> ListDevices(const IslandPlan& plan);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_ROLE_H_

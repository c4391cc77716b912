// State resharding: which layers move from which source to which destination when an island takes
// on a plan. Local memory comes first, then a peer that holds them, else they are lost. Pure.

#ifndef ATOLL_WORKER_STATE_STATE_TRANSFER_H_
#define ATOLL_WORKER_STATE_STATE_TRANSFER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/status.h"
#include "worker/pipeline/engine.h"
#include "worker/state/parts.h"

namespace atl::worker {

// Layers that every member holds once it is set up for the plan: layers of the plan, written or
// not, and surplus ones.
using Holdings = std::map<NodeId, std::vector<HeldLayer>>;

// Checks that every member, when it is set up, lists exactly the layers that the plan gives its
// devices, apart from surplus ones: its list comes from the network. `undivided`: by layer, see
// common/model/optimizer_state.h; empty: nothing is. INTERNAL: the member that does not, and why.
absl::Status CheckHoldings(const IslandPlan& plan, const Holdings& holdings,
                           const std::vector<std::vector<Range>>& undivided = {});

// A state of an island: all layers of it fit together, whichever member holds them.
struct StateName {
  StateStamp parameters_since, moments_since;
  int64_t optimizer_step = 0;
  bool any_parameters = false;  // they are about to be replaced: the moments alone count

  bool Names(const HeldLayer& layer) const {
    return layer.written && layer.optimizer_step == optimizer_step &&
           layer.moments_since == moments_since &&
           (any_parameters || layer.parameters_since == parameters_since);
  }
  bool operator==(const StateName&) const = default;
};

struct StateTransferPlan {
  bool kept = false;
  StateName state;                                         // that is kept
  int64_t optimizer_step = 0;                              // that all layers then have
  std::map<NodeId, std::vector<StateTransfer>> transfers;  // by receiver
  std::string reason;                                      // what is lost, or how much moves
};

// Finds the first of these states of which members hold all layers of the plan completely, and the
// transfers that bring every member to it. Load balancing: sources share the
// load evenly, in the order of names.
StateTransferPlan PlanStateTransfer(const Holdings& holdings, const std::vector<StateName>& states);
// All states of which a member has a layer, the most steps first; then the same, of which the
// moments alone count.
std::vector<StateName> StatesIn(const Holdings& holdings);

// Selects where these parts of a shard are when all that is held is whole; all elements once, the
// receiver's own first. REQUIRES: a member holds the shard.
std::vector<StateSource> SelectSources(const Holdings& holdings, const LayerShard& shard,
                                       int32_t parts, const NodeId& receiver);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_STATE_STATE_TRANSFER_H_

// Checkpoint/restore of an island. A saved state: at one step, every element of every shard, with
// its moments, from one of its owners, and copies of that with other workers. Pure: which member
// saves what, what of it is whole, and how a plan's devices get it back.

#ifndef ATOLL_WORKER_STATE_SAVE_PLAN_H_
#define ATOLL_WORKER_STATE_SAVE_PLAN_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/protocol/saved_state.h"
#include "worker/state/state_transfer.h"

namespace atl::worker {

struct SavePlan {
  std::vector<Unit> units;  // that are all of the state
  std::map<NodeId, SaveOrder> orders;
  bool copied = false;     // a member keeps another's units
  bool by_owners = false;  // no member does, nor has to: every element has several owners
};

// Sites of workers; all workers that are missing share a site.
using Sites = std::map<NodeId, std::string>;

// Plans a save so that every element is with copies + 1 workers, as far as there are so many: its
// owners, and others, those that have least first, of sites that do not have it yet while there are
// any, so that the loss of a site is no more than that of a worker. Without copies each element is
// one owner's. REQUIRES: all that `holdings` has in the plan is whole.
SavePlan PlanSave(const Holdings& holdings, int64_t copies, const Sites& sites);

using HeldSaves = std::map<NodeId, std::vector<HeldSave>>;

// Plans how all members in `holdings` get the state of this save, whatever their devices hold now,
// from the nearest tiers that have it; `kept` is false, with the reason, if some of it is nowhere.
StateTransferPlan PlanRestore(const Holdings& holdings, const HeldSaves& saves, int64_t save);

// Lists all saves that any member keeps, newest first.
std::vector<int64_t> ListSaves(const HeldSaves& saves);

// Describes the save for the coordinator: the holders of units, by the order of `units`.
SavedState DescribeSave(const SavePlan& plan, const LocalCheckpoint& about,
                        const std::vector<IslandMember>& members, const std::vector<Tier>& tiers);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_STATE_SAVE_PLAN_H_

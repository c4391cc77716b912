// Saves as they travel between members.

#ifndef ATOLL_WORKER_ISLAND_SAVE_WIRE_H_
#define ATOLL_WORKER_ISLAND_SAVE_WIRE_H_

#include "proto/group.pb.h"
#include "worker/state/keeper.h"

namespace atl::worker {

// What is no tier is memory: nothing goes to a disk for it.
Tier TierFromWire(int32_t tier);
void ToWire(const KeeperTask& task, v1::SaveCall* out);
KeeperTask KeeperTaskOf(const v1::SaveCall& call);
void ToWire(const HeldSave& save, v1::HeldSave* out);
void ToWire(int64_t save, const absl::Status& status, v1::SaveDone* out);
HeldSave FromWire(const v1::HeldSave& save);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_SAVE_WIRE_H_

// Saves as they travel between members.

#ifndef ATOLL_WORKER_ISLAND_MESSAGES_SAVE_WIRE_H_
#define ATOLL_WORKER_ISLAND_MESSAGES_SAVE_WIRE_H_

#include "proto/group.pb.h"
#include "worker/state/state_saver.h"

namespace atl::worker {

// Of a frame that ParseGroupFrame() took.
Tier TierFromWire(int32_t tier);
void ToWire(const SaveTask& task, v1::SaveCall* out);
SaveTask ParseSaveCall(const v1::SaveCall& call);
void ToWire(const HeldSave& save, v1::HeldSave* out);
v1::SaveDone MakeSaveDone(int64_t save, Tier tier, const absl::Status& status);
HeldSave FromWire(const v1::HeldSave& save);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MESSAGES_SAVE_WIRE_H_

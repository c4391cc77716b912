// Shards that two servers hold (docs/decisions/shard-copies.md).
//
// Of each shard one server is active: islands push to it and pull from it, and it reports the
// statistics. The other has the copy: the active one forwards the pushes to it, and it applies the
// same rounds. A slot is what a server holds: slot i is shard i on its active server, slot n + i
// the copy of it, n being the number of shards.

#ifndef ATOLL_COORDINATOR_CORE_SHARDS_COPIES_H_
#define ATOLL_COORDINATOR_CORE_SHARDS_COPIES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/core/records.h"

namespace atl::coord {

struct State;
struct Job;

inline SlotId CountShards(const JobRecord& record) {
  return static_cast<SlotId>(record.shards.size());
}
inline bool IsCopy(const JobRecord& record, SlotId slot) { return slot >= CountShards(record); }
// Returns the placement of a slot in a JobRecord, const or not.
template <typename Record>
auto& GetPlacement(Record& record, SlotId slot) {
  return IsCopy(record, slot) ? record.copies[static_cast<size_t>(slot - CountShards(record))]
                              : record.shards[static_cast<size_t>(slot)];
}

// Calls f(slot, placement) for every slot that a server fills.
template <typename F>
void ForEachSlot(const JobRecord& record, const F& f) {
  SlotId slot = 0;
  for (const ShardPlacement& shard : record.shards) f(slot++, shard);
  for (const ShardPlacement& copy : record.copies) {
    if (!copy.server.empty()) f(slot, copy);
    ++slot;
  }
}
// Calls f for the slots of one server.
template <typename F>
void ForEachSlotOn(const JobRecord& record, const NodeId& server, const F& f) {
  ForEachSlot(record, [&](SlotId slot, const ShardPlacement& placement) {
    if (placement.server == server) f(slot, placement);
  });
}

// The slot in which the server holds the shard.
std::optional<SlotId> SlotOn(const JobRecord& record, const NodeId& server, ShardId shard);
bool HoldsShards(const JobRecord& record, const NodeId& server);
bool IsActive(const JobRecord& record, const NodeId& server);     // of some shard
bool IsReleasing(const JobRecord& record, const NodeId& server);  // it is to delete its part
// Returns whether the contribution has the shard: it is of its fragment, or of all layers.
bool IsPushed(const Job& job, const ContributionId& id, const ShardPlacement& shard);
// The slots that are filled of its shards.
int64_t PushedSlots(const Job& job, const ContributionId& id);
int64_t ShardsWithoutCopy(const JobRecord& record);

inline SlotId GetCounterpartSlot(const JobRecord& record, SlotId slot) {
  const SlotId n = CountShards(record);
  return slot < n ? slot + n : slot - n;
}

// Drops servers that are lost or have been unavailable for long as holders, where other servers
// hold the same shards. True if that changed something.
bool DropLostHolders(State& s, Job& job);
// Drops this server now, whatever the grace. A user requests it.
void DropHolder(State& s, Job& job, const NodeId& server);
// A server that has copies of this server's shards and is not attached; "": there is none.
NodeId FindUnavailableCounterpart(const State& s, const Job& job, const NodeId& server);
// Neither this server nor those with the copies of its shards have them, when DropHolder has been
// called: one of each stays, to be filled.
void ForgetServerCopies(State& s, Job& job, const NodeId& server);
// Returns when DropLostHolders is to be called again.
Instant NextCopyDeadline(const State& s, const Job& job);

// "" or which shards have one copy only.
std::string CopiesText(const Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_COPIES_H_

#include "coordinator/core/shards/move_texts.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"
#include "common/protocol/outer_optimizer.h"
#include "coordinator/core/islands/grouping.h"
#include "coordinator/core/shards/copies.h"
#include "coordinator/core/shards/placement.h"
#include "coordinator/core/shards/servers.h"

namespace atl::coord {

std::string MovesText(const Job& job) {
  std::string text;
  if (!job.record.moves.empty()) {
    int64_t bytes = 0;
    std::set<NodeId> to;
    bool fill = false;
    for (const ShardMove& move : job.record.moves) {
      bytes +=
          GetPlacement(job.record, move.shard).elements * ServerBytesPerElement(job.spec().outer);
      to.insert(move.to);
      fill = fill || move.fill;
    }
    absl::StrAppend(&text, job.record.moves.size(), fill ? " lost" : "", " shards (",
                    BytesText(bytes), ") ", fill ? "are filled on" : "move to");
    for (const NodeId& server : to) absl::StrAppend(&text, " ", server);
    if (!job.record.moves_reason.empty()) absl::StrAppend(&text, ": ", job.record.moves_reason);
  }
  if (const std::string copies = CopiesText(job); !copies.empty()) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", copies);
  }
  for (const ReleasedServer& released : job.record.releasing) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", released.server,
                    " has yet to delete its part");
  }
  if (!job.record.refilled.empty()) {
    const RefilledShard& newest = job.record.refilled.back();
    absl::StrAppend(&text, text.empty() ? "" : "; ", job.record.refilled.size(),
                    " shards were lost and filled from an island",
                    GetOuterOptimizer(job.spec().outer).slots.empty()
                        ? ""
                        : ", their outer momentum began at zero",
                    ", the newest at version ", newest.version);
    const auto older = std::count_if(job.record.refilled.begin(), job.record.refilled.end(),
                                     [](const RefilledShard& shard) { return shard.age > 0; });
    if (!job.record.lost_update.empty()) {
      absl::StrAppend(&text, ", ", older, " of them without their update of ",
                      job.record.lost_update);
    }
  }
  if (!job.moving.trouble.empty()) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", job.moving.trouble);
  }
  return text;
}

std::string PlacementText(const State& s, const Job& job) {
  struct Held {
    int64_t shards = 0, copies = 0, bytes = 0;
  };
  std::map<NodeId, Held> held;
  ForEachSlot(job.record, [&](SlotId slot, const ShardPlacement& shard) {
    Held& what = held[shard.server];
    ++(IsCopy(job.record, slot) ? what.copies : what.shards);
    what.bytes += shard.elements * ServerBytesPerElement(job.spec().outer);
  });
  const std::vector<const Member*> leaders = ListIslandLeaders(s, job);
  std::string text;
  for (const auto& [server, what] : held) {
    const Member* member = s.FindMember(MemberKind::kServer, server);
    const std::string site = member == nullptr ? "" : GetServerSite(s, *member);
    absl::StrAppend(&text, text.empty() ? "" : "; ", server, site.empty() ? "" : " at ", site, ": ",
                    what.shards, what.shards == 1 ? " shard, " : " shards, ",
                    what.copies == 0 ? "" : absl::StrCat("copies of ", what.copies, ", "),
                    BytesText(what.bytes), " (",
                    member == nullptr ? "" : ComputeAccessCostFromLeaders(s, *member, leaders).why,
                    ")");
  }
  return text;
}

}  // namespace atl::coord

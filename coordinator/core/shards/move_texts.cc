// Human-readable texts about shards that move and where they are.

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"
#include "common/protocol/outer_optimizer.h"
#include "coordinator/core/islands/grouping.h"
#include "coordinator/core/shards/failover.h"
#include "coordinator/core/shards/moves.h"

namespace atl::coord {

std::string MovesText(const Job& job) {
  std::string text;
  const ReplicaIndex& replicas = job.replicas();
  if (!replicas.joining.empty()) {
    absl::StrAppend(&text, replicas.joining.size(), replicas.fills ? " lost" : "", " shards (",
                    BytesText(CountBytes(job, replicas.joining)), ") ",
                    replicas.fills ? "are filled on" : "move to");
    for (const NodeId& server : replicas.targets) absl::StrAppend(&text, " ", server);
    if (!job.record.moves_reason.empty()) absl::StrAppend(&text, ": ", job.record.moves_reason);
  }
  if (const std::string standbys = StandbysText(job); !standbys.empty()) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", standbys);
  }
  for (const auto& [server, since] : replicas.leaving) {
    if (!IsReleasing(job, server)) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", server, " has yet to delete its part");
  }
  int64_t filled = 0, older = 0;
  Version newest = kNoVersion;
  for (const ShardDescriptor& shard : job.record.shards) {
    if (shard.filled_at == kNoVersion) continue;
    ++filled;
    older += shard.filled_age > 0 ? 1 : 0;
    newest = std::max(newest, shard.filled_at);
  }
  if (filled > 0) {
    absl::StrAppend(
        &text, text.empty() ? "" : "; ", filled, " shards were lost and filled from an island",
        GetOuterOptimizer(job.spec().outer).slots.empty() ? ""
                                                          : ", their outer momentum began at zero",
        ", the newest at version ", newest);
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
  ForEachHolder(job.record.shards, [&](const ShardDescriptor& shard, const ShardReplica& replica) {
    Held& what = held[replica.server];
    ++(replica.role == ReplicaRole::kActive ? what.shards : what.copies);
    what.bytes += shard.elements * ServerBytesPerElement(job.spec());
  });
  const std::vector<const Worker*> leaders = ListIslandLeaders(s, job);
  std::string text;
  for (const auto& [server, what] : held) {
    const Server* member = s.FindServer(server);
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

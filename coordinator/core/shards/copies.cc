#include "coordinator/core/shards/copies.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/fragments.h"
#include "coordinator/core/rounds/rounds.h"
#include "coordinator/core/shards/moves.h"
#include "coordinator/core/shards/server_holdings.h"
#include "coordinator/core/state.h"

namespace atl::coord {
namespace {

constexpr int kNamedMost = 8;  // shards, in human-readable text

// The server is there and has the shard at the newest decided version, though it may lack others.
bool Has(const State& s, const Job& job, const NodeId& server, ShardId shard) {
  const auto found = job.rounds.links.find(server);
  if (found == job.rounds.links.end()) return false;
  const ServerLink& link = found->second;
  if (link.known) return true;
  const Member* member = s.FindMember(MemberKind::kServer, server);
  return member != nullptr && member->attached && !link.ahead && !link.lacking.empty() &&
         !link.lacking.contains(shard) && link.version == job.rounds.decided_version();
}

// Slots of the server whose shard another one has.
std::vector<SlotId> ListRedundantSlots(const State& s, const Job& job, const NodeId& server) {
  std::vector<SlotId> redundant;
  if (job.record.copies.empty()) return redundant;
  ForEachSlotOn(job.record, server, [&](SlotId slot, const ShardPlacement&) {
    const SlotId counterpart = GetCounterpartSlot(job.record, slot);
    if (Has(s, job, GetPlacement(job.record, counterpart).server,
            counterpart % CountShards(job.record))) {
      redundant.push_back(slot);
    }
  });
  return redundant;
}

void Swap(Job& job, ShardId shard) {
  JobRecord& record = job.EditRecord();
  std::swap(record.shards[static_cast<size_t>(shard)], record.copies[static_cast<size_t>(shard)]);
  ++job.placement_revision;
}

bool IsLost(const State& s, const NodeId& server, const ServerLink& link) {
  if (link.known || link.ahead) return false;
  const Member* member = s.FindMember(MemberKind::kServer, server);
  if (member == nullptr) return false;
  if (member->attached) return !link.problem.empty();
  return s.now - member->detached_at >= s.options.copy_grace;
}

// No server has the second copy of the shard any more.
void ForgetCopy(Job& job, ShardId shard) {
  ShardPlacement& copy = job.EditRecord().copies[static_cast<size_t>(shard)];
  copy.server.clear();
  copy.endpoint.clear();
  copy.public_key.clear();
  for (auto& [id, staged] : job.rounds.staged) staged.Forget(shard + CountShards(job.record));
}

// After copies were forgotten: less is to be staged, and a new window will open.
void NoteAllStaged(Job& job) {
  job.rounds.collecting.reset();
  for (const auto& [id, contribution] : job.rounds.contributions) {
    if (!contribution.dropped) NoteStaged(job, job.rounds, id);
  }
}

void Drop(State& s, Job& job, const NodeId& server, const std::vector<SlotId>& slots,
          const std::string& why) {
  const SlotId n = CountShards(job.record);
  std::set<SlotId> changed;
  for (const SlotId slot : slots) {
    const ShardId shard = slot % n;
    changed.insert({shard, shard + n});
    if (!IsCopy(job.record, slot)) {
      Swap(job, shard);
      for (auto& [id, staged] : job.rounds.staged) staged.Rename(shard + n, shard);
    }
    ForgetCopy(job, shard);
  }
  ++job.EditRecord().placement;
  s.Log(job.id(), Severity::kWarning,
        absl::StrCat("failover from parameter server ", server, " (", why, "): copies on other ",
                     "servers take over its ", slots.size(), " shards, which have one copy until ",
                     "new ones are made"));
  OnSlotsDropped(s, job, server, changed);
  NoteAllStaged(job);
}

int64_t CountPushedSlots(const Job& job, const ContributionId& id) {
  int64_t slots = 0;
  for (const std::vector<ShardPlacement>* list : {&job.record.shards, &job.record.copies}) {
    for (const ShardPlacement& slot : *list) {
      slots += !slot.server.empty() && IsPushed(job, id, slot) ? 1 : 0;
    }
  }
  return slots;
}

}  // namespace

std::optional<SlotId> SlotOn(const JobRecord& record, const NodeId& server, ShardId shard) {
  const auto index = static_cast<size_t>(shard);
  if (shard < 0 || index >= record.shards.size()) return std::nullopt;
  if (record.shards[index].server == server) return shard;
  if (index < record.copies.size() && record.copies[index].server == server) {
    return shard + CountShards(record);
  }
  return std::nullopt;
}

bool HoldsShards(const JobRecord& record, const NodeId& server) {
  const auto its = [&](const ShardPlacement& shard) { return shard.server == server; };
  return std::any_of(record.shards.begin(), record.shards.end(), its) ||
         std::any_of(record.copies.begin(), record.copies.end(), its);
}

bool IsActive(const JobRecord& record, const NodeId& server) {
  return std::any_of(record.shards.begin(), record.shards.end(),
                     [&](const ShardPlacement& shard) { return shard.server == server; });
}

bool IsReleasing(const JobRecord& record, const NodeId& server) {
  return std::any_of(record.releasing.begin(), record.releasing.end(),
                     [&](const ReleasedServer& r) { return r.server == server; });
}

bool IsPushed(const Job& job, const ContributionId& id, const ShardPlacement& shard) {
  return IsInTurn(id.base_version + 1, shard.layer, job.spec().outer.fragments);
}

int64_t PushedSlots(const Job& job, const ContributionId& id) {
  if (job.dirty.record) return CountPushedSlots(job, id);
  const Version version = id.base_version + 1;
  const int64_t fragment =
      version <= 0 ? -1 : FragmentFromVersion(version, job.spec().outer.fragments);
  const auto [known, is_new] = job.counts.pushed_slots.try_emplace(fragment, 0);
  if (is_new) known->second = CountPushedSlots(job, id);
  return known->second;
}

int64_t ShardsWithoutCopy(const JobRecord& record) {
  return std::count_if(record.copies.begin(), record.copies.end(),
                       [](const ShardPlacement& copy) { return copy.server.empty(); });
}

bool DropLostHolders(State& s, Job& job) {
  if (job.record.copies.empty()) return false;
  for (const auto& [server, link] : job.rounds.links) {
    if (!IsLost(s, server, link)) continue;
    const std::vector<SlotId> slots = ListRedundantSlots(s, job, server);
    if (job.active() && !slots.empty()) {
      const std::string why =
          link.problem.empty() ? s.FindMember(MemberKind::kServer, server)->reason : link.problem;
      Drop(s, job, NodeId(server), slots, why);
      return true;
    }
    // A job that has ended loses no copy: only the server that sends it changes.
    bool swapped = false;
    for (const SlotId slot : slots) {
      if (IsCopy(job.record, slot)) continue;
      Swap(job, slot);
      swapped = true;
    }
    if (swapped) return true;
  }
  return false;
}

void DropHolder(State& s, Job& job, const NodeId& server) {
  const std::vector<SlotId> slots = ListRedundantSlots(s, job, server);
  if (!slots.empty()) Drop(s, job, server, slots, "a user says that it has lost its shards");
}

NodeId FindUnavailableCounterpart(const State& s, const Job& job, const NodeId& server) {
  NodeId unavailable;
  if (job.record.copies.empty()) return unavailable;
  ForEachSlotOn(job.record, server, [&](SlotId slot, const ShardPlacement&) {
    const NodeId& counterpart =
        GetPlacement(job.record, GetCounterpartSlot(job.record, slot)).server;
    const Member* member = s.FindMember(MemberKind::kServer, counterpart);
    if (!counterpart.empty() && member != nullptr && !member->attached) unavailable = counterpart;
  });
  return unavailable;
}

void ForgetServerCopies(State& s, Job& job, const NodeId& server) {
  if (job.record.copies.empty()) return;
  std::map<NodeId, std::set<SlotId>> lost;
  ForEachSlotOn(job.record, server, [&](SlotId slot, const ShardPlacement&) {
    const SlotId copy = std::max(slot, GetCounterpartSlot(job.record, slot));
    const NodeId& holder = GetPlacement(job.record, copy).server;
    if (!holder.empty()) lost[holder].insert(copy);
  });
  for (const auto& [holder, slots] : lost) {
    for (const SlotId slot : slots) ForgetCopy(job, slot - CountShards(job.record));
    ++job.EditRecord().placement;
    OnSlotsDropped(s, job, holder, slots);
    OnLackedShardsForgotten(s, job, holder);
  }
  if (!lost.empty()) NoteAllStaged(job);
}

Instant NextCopyDeadline(const State& s, const Job& job) {
  Instant next = kNever;
  if (job.record.copies.empty()) return next;
  for (const auto& [server, link] : job.rounds.links) {
    const Member* member = s.FindMember(MemberKind::kServer, server);
    if (link.known || member == nullptr || member->attached) continue;
    const Instant lost_at = member->detached_at + s.options.copy_grace;
    if (lost_at > s.now) next = std::min(next, lost_at);
  }
  return next;
}

std::string CopiesText(const Job& job) {
  const int64_t without = ShardsWithoutCopy(job.record);
  if (without == 0) return "";
  std::string text = without == 1 ? "shard " : "shards ";
  int named = 0;
  for (const ShardPlacement& copy : job.record.copies) {
    if (!copy.server.empty()) continue;
    if (named == kNamedMost) {
      absl::StrAppend(&text, " and ", without - named, " more");
      break;
    }
    absl::StrAppend(&text, named++ == 0 ? "" : ", ", copy.shard);
  }
  return absl::StrCat(text, without == 1 ? " has" : " have", " one copy");
}

}  // namespace atl::coord

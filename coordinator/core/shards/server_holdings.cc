#include "coordinator/core/shards/server_holdings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/adoption.h"
#include "coordinator/core/rounds/rounds.h"
#include "coordinator/core/shards/copies.h"
#include "coordinator/core/shards/moves.h"
#include "coordinator/core/shards/servers.h"
#include "coordinator/core/stalls.h"

namespace atl::coord {
namespace {

// Returns whether the push is of one of the job's shards on this server, and lies within it.
bool IsOn(const Job& job, const NodeId& server, const PushId& push) {
  return SlotOn(job.record, server, push.shard).has_value();
}

// Notes a push that is staged on this server. REQUIRES: IsOn.
void AddStaged(const Job& job, const NodeId& server, const PushId& push, StagedShards& staged) {
  const int64_t elements = job.record.shards[static_cast<size_t>(push.shard)].elements;
  staged.Add(*SlotOn(job.record, server, push.shard), push.RangeIn(elements), elements);
}

// Returns what the server reports to have staged of the job's shards on it.
std::map<ContributionId, StagedShards> StagedOn(const Job& job, const NodeId& server,
                                                const HeldJob* held) {
  std::map<ContributionId, StagedShards> staged;
  if (held == nullptr) return staged;
  const std::vector<ShardPlacement>& shards = job.record.shards;
  for (const PushId& push : held->staged) {
    if (IsOn(job, server, push))
      staged[ToContributionId(push)].Add(push, shards[push.shard].elements);
  }
  return staged;
}

// The server holds what was decided or ordered after the store was written.
bool IsAhead(const Job& job, const HeldJob* held) {
  return held != nullptr && (held->version > job.rounds.decided_version() ||
                             held->generation > job.progress.plan_generation ||
                             held->placement > job.record.placement);
}

// Shards of its own that the server does not have: it was being filled when it died. What was
// filled for good is stored.
std::set<ShardId> LackedBy(const Job& job, const NodeId& server, const HeldJob& held) {
  std::set<ShardId> lacking;
  if (held.version == kNoVersion) return lacking;  // shards are assigned with version 0
  const auto has = [](const std::vector<ShardId>& shards, ShardId shard) {
    return std::find(shards.begin(), shards.end(), shard) != shards.end();
  };
  ForEachSlotOn(job.record, server, [&](SlotId, const ShardPlacement& shard) {
    if (has(held.shards, shard.shard)) return;
    const bool filled = std::any_of(job.record.refilled.begin(), job.record.refilled.end(),
                                    [&](const RefilledShard& r) {
                                      return r.shard == shard.shard && r.version == held.version;
                                    });
    if (!filled || !has(held.filled, shard.shard)) lacking.insert(shard.shard);
  });
  return lacking;
}

// Can the server be brought from its version to the newest decided one? "" or why not.
std::string WhyNotCatchUp(const Job& job, const NodeId& server, Version version,
                          const HeldJob* held) {
  const Version decided = job.rounds.decided_version();
  if (held == nullptr && decided != kNoVersion) {
    return "it came back without the job: its --state-dir is empty, or another one";
  }
  if (const auto& lacking = job.rounds.links.at(server).lacking; !lacking.empty()) {
    return absl::StrCat("it came back without shard ", *lacking.begin(),
                        ", which has to be filled: atoll refill ", job.id(), " ", server);
  }
  std::map<ContributionId, StagedShards> staged = StagedOn(job, server, held);
  for (Version v = version + 1; v <= decided; ++v) {
    const DecisionRecord* decision = job.rounds.FindDecision(v);
    if (decision == nullptr) {
      return absl::StrCat("it is at version ", version, " and the decision of version ", v,
                          " is not kept any more");
    }
    for (const DecisionParticipant& p : decision->participants) {
      if (!p.accepted) continue;
      std::optional<ShardId> lost;
      ForEachSlotOn(job.record, server, [&](SlotId, const ShardPlacement& shard) {
        if (!IsPushed(job, p.contribution, shard)) return;
        if (!staged[p.contribution].Holds(shard.shard)) lost = shard.shard;
      });
      if (!lost) continue;
      return absl::StrCat("it has lost island ", p.contribution.island, "'s push of shard ", *lost,
                          ", which version ", v, " is made of");
    }
  }
  return "";
}

// Takes over what the server says that it has staged. `fresh`: and nothing else.
void TakeStaged(Job& job, const NodeId& server, const HeldJob* held, bool fresh) {
  for (const auto& [id, record] : job.rounds.contributions) {
    if (record.dropped) continue;
    StagedShards& staged = job.rounds.staged[id];
    ForEachSlotOn(job.record, server, [&](SlotId slot, const ShardPlacement&) {
      if (fresh) staged.Forget(slot);
    });
    if (held == nullptr) {
      NoteStaged(job, job.rounds, id);
      continue;
    }
    for (const PushId& push : held->staged) {
      if (ToContributionId(push) == id && IsOn(job, server, push)) {
        AddStaged(job, server, push, staged);
      }
    }
    NoteStaged(job, job.rounds, id);
  }
  if (held == nullptr) return;
  for (const PushId& push : held->staged) {
    if (!MayCount(job.rounds, ToContributionId(push))) {
      job.rounds.links.at(server).unknown.insert(ToContributionId(push));
    }
  }
}

constexpr char kStoreIsOlder[] =
    "it holds more than this coordinator's store knows, which is older; when all of the job's "
    "servers are attached the job is rebuilt from them";

// Also of a job that has ended: it can be exported.
void TakeEndpoint(Job& job, const Member& server) {
  for (std::vector<ShardPlacement>* shards : {&job.record.shards, &job.record.copies}) {
    for (ShardPlacement& shard : *shards) {
      if (shard.server != server.record.name) continue;
      if (shard.endpoint == server.endpoint && shard.public_key == server.public_key) continue;
      SetHolder(server, shard);
      job.dirty.record = true;
      ++job.placement_revision;
    }
  }
}

// Servers that forward to it get its new address, and that it may lack what it had.
void ResendForwarderAssignments(State& s, Job& job, const NodeId& server) {
  if (job.record.removed) return;  // its shards are those that are still to be deleted
  for (const ShardPlacement& copy : job.record.copies) {
    if (copy.server != server) continue;
    const auto link =
        job.rounds.links.find(job.record.shards[static_cast<size_t>(copy.shard)].server);
    if (link == job.rounds.links.end()) continue;
    link->second.assigned = false;
    link->second.again_at = s.now;
  }
}

void TakeHeld(State& s, Job& job, Member& server, const HeldJob* held, bool fresh) {
  const NodeId& name = server.record.name;
  ServerLink& link = job.rounds.links.at(name);
  const Version version = held == nullptr ? kNoVersion : held->version;
  const Version snapshot = held == nullptr ? kNoVersion : held->snapshot_version;
  TakeEndpoint(job, server);
  ResendForwarderAssignments(s, job, name);
  link.assigned = false;
  link.end_sent = false;
  link.unknown.clear();
  link.again_at = link.exchange_again_at = s.now;
  link.base_fetched = kNoVersion;
  // The hello before may have been an older one, sent again: what followed it shows the problem
  // solved.
  const bool newer = fresh || (!link.problem.empty() && held != nullptr && version >= link.version);
  link.version = fresh ? version : std::max(link.version, version);
  link.snapshot_version = fresh ? snapshot : std::max(link.snapshot_version, snapshot);
  if (newer) {
    link.described.reset();
    link.trouble.clear();
    link.ahead = IsAhead(job, held) && !job.record.removed;
    link.empty = held == nullptr;
    link.lacking.clear();
    if (held != nullptr) link.lacking = LackedBy(job, name, *held);
    link.held = link.lacking.empty() ? HeldJob() : *held;
    SetProblem(s, job, name, link.ahead ? kStoreIsOlder : WhyNotCatchUp(job, name, version, held));
  }
  link.known = link.problem.empty();
  if (!link.known || job.ended()) return;
  TakeStaged(job, name, held, fresh);
  AnswerEarlyPushes(s, job, job.rounds);
}

}  // namespace

void SetProblem(State& s, Job& job, const NodeId& server, std::string problem) {
  ServerLink& link = job.rounds.links.at(server);
  if (job.record.removed) problem.clear();
  if (link.problem == problem) return;
  link.problem = std::move(problem);
  if (link.problem.empty()) return;
  s.Log(job.id(), Severity::kError,
        absl::StrCat("parameter server ", server, ": ", link.problem,
                     job.ended() ? "" : "; the job is waiting"));
}

void NoteAhead(State& s, Job& job, const NodeId& server) {
  ServerLink& link = job.rounds.links.at(server);
  link.ahead = true;
  link.known = false;
  link.again_at = s.now;
  SetProblem(s, job, server, kStoreIsOlder);
}

void DropUnknown(State& s, Job& job) {
  if (!AllServersKnown(job)) return;
  for (auto& [server, link] : job.rounds.links) {
    std::erase_if(link.unknown, [&](const ContributionId& id) { return MayCount(job.rounds, id); });
    if (link.unknown.empty()) continue;
    s.SendToServer(server, DropContributions{job.id(),
                                             {link.unknown.begin(), link.unknown.end()},
                                             "no round will use them"});
    link.unknown.clear();
  }
}

void OnLackedShardsForgotten(State& s, Job& job, const NodeId& server) {
  const auto link = job.rounds.links.find(server);
  Member* member = s.FindMember(MemberKind::kServer, server);
  const bool attached = member != nullptr && member->attached;
  if (link == job.rounds.links.end() || link->second.lacking.empty() || !attached) return;
  const HeldJob held = link->second.held;
  TakeHeld(s, job, *member, &held, /*fresh=*/true);
}

void OnServerHello(State& s, Member& server, const ServerHello& message, bool fresh) {
  server.endpoint = CleanText(message.endpoint, 256);
  server.public_key = CleanText(message.public_key, 64);
  server.memory_bytes = message.memory_bytes;
  server.server_site = CleanText(message.site, 64);
  s.server_sites.clear();
  server.site_only = message.site_only;
  for (auto& [number, job] : s.jobs) {
    if (!job.rounds.links.contains(server.record.name)) continue;
    const auto held = std::find_if(message.jobs.begin(), message.jobs.end(),
                                   [&](const HeldJob& h) { return h.job == job.id(); });
    TakeHeld(s, job, server, held == message.jobs.end() ? nullptr : &*held, fresh);
  }
  ForgetHeld(s, server.record.name);
  OnReceiverHello(s, server.record.name);
  for (const HeldJob& held : message.jobs) {
    const Job* job = s.FindJob(held.job);
    // A server with a newer placement than the store has may hold what has moved since.
    const bool moves = job != nullptr && held.placement <= job->record.placement &&
                       TakesPartInMoves(*job, server.record.name);
    if (moves || (job != nullptr && job->rounds.links.contains(server.record.name))) continue;
    if (s.removed.contains(held.job)) {
      s.SendToServer(server.record.name, RemoveJob{held.job});
    } else {
      NoteHeld(s, server.record.name, held);
    }
  }
}

// Decisions wait for whole contributions: what completes none touches nothing. Of a round of
// islands of a hundred workers each server says this tens of thousands of times.
void OnPushStaged(State& s, Member& server, const PushStaged& message) {
  Job* job = s.FindJob(message.push.job);
  if (job == nullptr) return;
  const auto link = job->rounds.links.find(server.record.name);
  if (link == job->rounds.links.end() || !link->second.known) return;
  if (!IsOn(*job, server.record.name, message.push)) return;
  const ContributionId id = ToContributionId(message.push);
  auto it = job->rounds.contributions.find(id);
  link->second.trouble.clear();  // its log takes writes
  if (it != job->rounds.contributions.end() && !it->second.dropped) {
    const size_t complete = job->rounds.complete.size();
    AddStaged(*job, server.record.name, message.push, job->rounds.staged[id]);
    NoteStaged(*job, job->rounds, id);
    NotePush(s, *job, id.island);
    if (job->rounds.complete.size() != complete) s.Touch(*job);
  } else if (!MayCount(job->rounds, id)) {
    link->second.unknown.insert(id);
    s.Touch(*job);
  }
}

}  // namespace atl::coord

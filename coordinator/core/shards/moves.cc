#include "coordinator/core/shards/moves.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"
#include "common/plural.h"
#include "common/protocol/outer_optimizer.h"
#include "coordinator/core/adoption.h"
#include "coordinator/core/islands/grouping.h"
#include "coordinator/core/rounds/round_decision.h"
#include "coordinator/core/rounds/rounds.h"
#include "coordinator/core/shards/copies.h"
#include "coordinator/core/shards/move_plan.h"
#include "coordinator/core/shards/placement.h"
#include "coordinator/core/shards/refill.h"
#include "coordinator/core/shards/servers.h"

namespace atl::coord {
namespace {

constexpr int64_t kBatchBytesMost = int64_t{1} << 30;
constexpr Duration kBetweenBalances = std::chrono::hours(1);
constexpr Duration kHoldFirst = std::chrono::seconds(5);
constexpr Duration kPlanLater = std::chrono::minutes(10);
constexpr Duration kHoldMost = std::chrono::seconds(60);
constexpr Duration kFillRetry = std::chrono::seconds(10);
constexpr int kDecisionsReported = 64;

// Returns the placement of the slot that moves; a copy that does not exist yet has no server.
const ShardPlacement& MovedSlot(const Job& job, const ShardMove& move) {
  return GetPlacement(job.record, move.shard);
}

// Who has what is to move: a copy comes from the shard's active server, like the shard itself.
const ShardPlacement& GetSourcePlacement(const Job& job, const ShardMove& move) {
  return job.record.shards[static_cast<size_t>(move.shard % CountShards(job.record))];
}

bool IsTarget(const Job& job, const NodeId& server) {
  return std::any_of(job.record.moves.begin(), job.record.moves.end(),
                     [&](const ShardMove& move) { return move.to == server; });
}

// An earlier folder of it has come back: it holds shards that have been filled elsewhere since.
// They are kept, and would conflict with others.
bool HoldsOldShards(const State& s, const Job& job, const NodeId& server) {
  const auto held = s.held.find(job.id());
  return held != s.held.end() && held->second.contains(server) &&
         !job.rounds.links.contains(server);
}

// The first ones, of so many bytes.
std::vector<ShardMove> Batch(const Job& job) {
  std::vector<ShardMove> batch;
  int64_t bytes = 0;
  for (const ShardMove& move : job.record.moves) {
    bytes += MovedSlot(job, move).elements * ServerBytesPerElement(job.spec().outer);
    if (!batch.empty() && bytes > job.moving.batch_bytes) break;
    batch.push_back(move);
  }
  return batch;
}

bool IsReceived(const Job& job, const ShardMove& move) {
  const auto found = job.moving.received.find(move.shard);
  return found != job.moving.received.end() &&
         found->second == std::pair(move.to, job.rounds.progress.version);
}

void ForgetReceived(Job& job, const NodeId& server) {
  std::erase_if(job.moving.received,
                [&](const auto& received) { return received.second.first == server; });
}

// It holds nothing of the job, or is not to.
void Release(Job& job, const NodeId& server) {
  ForgetReceived(job, server);
  if (IsReleasing(job.record, server)) return;
  JobRecord& record = job.EditRecord();
  record.releasing.push_back({server, ++record.placement});
}

// Takes these moves off; servers that were to get shards, and hold none, delete what has arrived.
// True if there were any.
bool DropMoves(Job& job, const std::function<bool(const ShardMove&)>& which) {
  std::set<NodeId> left;
  for (const ShardMove& move : job.record.moves) {
    if (which(move)) left.insert(move.to);
  }
  if (left.empty()) return false;
  std::erase_if(job.EditRecord().moves, which);
  for (const NodeId& server : left) {
    if (!HoldsShards(job.record, server) && !IsTarget(job, server)) Release(job, server);
  }
  return true;
}

// Moves that make no sense any more. True if there were any.
bool ForgetMoves(State& s, Job& job) {
  // Before that nothing shows that the store has not missed a switch.
  const bool known = AllServersKnown(job);
  const auto moot = [&](const ShardMove& move) {
    const NodeId& holder = MovedSlot(job, move).server;
    const Member* to = s.FindMember(MemberKind::kServer, move.to);
    const auto link = job.rounds.links.find(holder);
    const bool back = move.fill && link != job.rounds.links.end() && link->second.known;
    // A lost shard stays one: its move waits for the server, or for a user to say it again.
    if (move.fill) return back;
    return known && !(to != nullptr && to->attached && !to->record.draining);
  };
  if (!DropMoves(job, moot)) return false;
  job.moving.batch.clear();  // its requests are not repeated any more
  job.moving.held_since.reset();
  return true;
}

std::vector<PlacementServer> ServersFor(const State& s, const Job& job) {
  std::vector<PlacementServer> servers =
      ListServers(s, ListIslandLeaders(s, job), [](const Member& m) { return !m.site_only; });
  for (PlacementServer& server : servers) {
    const Member& member = *s.FindMember(MemberKind::kServer, server.name);
    const auto link = job.rounds.links.find(server.name);
    server.leaves = member.record.draining;
    server.takes = member.attached && !member.record.draining &&
                   !IsReleasing(job.record, server.name) &&
                   s.now - member.attached_at >= s.options.rebalance_after &&
                   (link == job.rounds.links.end() || link->second.known) &&
                   !HoldsOldShards(s, job, server.name);
  }
  std::erase_if(servers, [&](const PlacementServer& server) {
    return !server.takes && !job.rounds.links.contains(server.name);
  });
  return servers;
}

// Returns whether a server has attached since, which is to get its share.
bool HasAttachedSince(const State& s, Instant since) {
  bool has = false;
  s.ForEachServer([&](const Member& m) { has = has || (m.attached && m.attached_at > since); });
  return has;
}

bool PlanMoves(State& s, Job& job) {
  if (job.progress.state != JobState::kRunning && job.progress.state != JobState::kPaused) {
    return false;
  }
  if (!AllServersKnown(job) || s.now < job.moving.plan_again_at) return false;
  job.moving.plan_again_at = s.now + kRetryInterval;
  const std::optional<Instant>& balanced_at = job.moving.balanced_at;
  const bool balanced =
      balanced_at && s.now - *balanced_at < kBetweenBalances && !HasAttachedSince(s, *balanced_at);
  MovePlan plan = PlanShardMoves(job.record.shards, job.record.copies, ServersFor(s, job),
                                 ServerPeakBytesPerElement(job.spec().outer), balanced);
  job.moving.trouble = plan.trouble;
  if (plan.moves.empty()) return false;
  if (plan.balances) job.moving.balanced_at = s.now;
  JobRecord& record = job.EditRecord();
  record.moves = std::move(plan.moves);
  record.moves_reason = plan.reason;
  s.Log(job.id(), Severity::kInfo,
        absl::StrCat(record.moves.size(), " shards are to move: ", plan.reason));
  return true;
}

// A shard that did not arrive while a round was held as long as any is: rounds go on without it.
bool GivesUp(const Job& job) {
  const Moving& moving = job.moving;
  return moving.version != job.rounds.progress.version && moving.version != kNoVersion &&
         moving.batch.size() == 1 && !moving.batch[0].fill && moving.hold == kHoldMost;
}

void GiveUpMoves(State& s, Job& job) {
  const ShardMove stuck = job.moving.batch[0];
  DropMoves(job, [](const ShardMove& move) { return !move.fill; });
  job.moving =
      Moving{.givers = std::move(job.moving.givers), .balanced_at = job.moving.balanced_at};
  job.moving.plan_again_at = s.now + kPlanLater;
  s.Log(job.id(), Severity::kWarning,
        absl::StrCat("shard ", stuck.shard, " does not arrive at parameter server ", stuck.to,
                     ": it stays where it is; moves are planned again in ", Seconds(kPlanLater),
                     " s"));
}

// The batch is as large as fits between two rounds.
void AdaptBatch(Job& job) {
  Moving& moving = job.moving;
  if (moving.version == job.rounds.progress.version) return;
  const bool missed = moving.version != kNoVersion && !moving.batch.empty();
  if (missed && moving.batch.size() == 1) {
    moving.hold = std::min(2 * moving.hold, kHoldMost);
  } else if (missed) {
    int64_t bytes = 0;
    for (const ShardMove& move : moving.batch) {
      bytes += MovedSlot(job, move).elements * ServerBytesPerElement(job.spec().outer);
    }
    moving.batch_bytes = bytes / 2;
  }
  moving.version = job.rounds.progress.version;
  moving.batch.clear();
}

bool MaySwitch(const Job& job, const std::vector<ShardMove>& batch) {
  if (job.rounds.collecting || job.rounds.decided_version() != job.rounds.progress.version)
    return false;
  if (std::all_of(batch.begin(), batch.end(), [](const ShardMove& m) { return m.fill; })) {
    return true;
  }
  // The staged part of a shard that moves is pushed again: its island must be there.
  return std::all_of(job.rounds.complete.begin(), job.rounds.complete.end(),
                     [&](const ContributionId& id) {
                       const IslandRecord& island = job.islands.at(id.island);
                       return island.generation == id.generation && island.incarnation != 0;
                     });
}

void ForgetStaged(Job& job, const std::vector<SlotId>& slots) {
  for (auto& [id, staged] : job.rounds.staged) {
    for (const SlotId slot : slots) staged.Forget(slot);
  }
  for (const auto& [id, contribution] : job.rounds.contributions) {
    if (!contribution.dropped) NoteStaged(job, job.rounds, id);
  }
}

// The newest placement names the holders of second copies; all servers get it then.
void ResendAssignments(State& s, Job& job) {
  if (job.record.copies.empty()) return;
  for (auto& [server, link] : job.rounds.links) {
    link.assigned = false;
    link.again_at = s.now;
  }
}

// After the placement has changed: links are those of servers that hold shards.
void RefreshLinks(State& s, Job& job, const std::set<NodeId>& changed) {
  ResendAssignments(s, job);
  for (const NodeId& server : changed) {
    if (!HoldsShards(job.record, server)) {
      job.rounds.links.erase(server);
      if (!IsTarget(job, server)) Release(job, server);
      continue;
    }
    const Member* member = s.FindMember(MemberKind::kServer, server);
    ServerLink& link = job.rounds.links[server];
    const bool lacks = std::any_of(
        job.record.moves.begin(), job.record.moves.end(),
        [&](const ShardMove& move) { return move.fill && MovedSlot(job, move).server == server; });
    link.assigned = false;
    link.again_at = s.now;
    if (!member->attached || lacks) continue;
    link.known = true;
    link.ahead = false;
    link.problem.clear();
    link.trouble.clear();
    link.version = std::max(link.version, job.rounds.progress.version);
  }
}

// The slot that the receiver takes. A shard that has a copy goes on where the copy is, which has
// all that is staged; the server that receives it becomes its copy.
SlotId TakenSlot(Job& job, const ShardMove& move) {
  JobRecord& record = job.EditRecord();
  const SlotId n = CountShards(record);
  const bool has_copy = move.shard < n && !record.copies.empty() &&
                        !record.copies[static_cast<size_t>(move.shard)].server.empty();
  if (!has_copy) return move.shard;
  const SlotId copy = move.shard + n;
  std::swap(GetPlacement(record, move.shard), GetPlacement(record, copy));
  for (auto& [id, staged] : job.rounds.staged) staged.Rename(copy, move.shard);
  return copy;
}

// Describes what becomes of shards that are filled, and what they lack.
std::string FilledText(const Job& job, Version base, const std::string& lost_update) {
  const bool has_state = !GetOuterOptimizer(job.spec().outer).slots.empty();
  return absl::StrCat(
      "are filled from theta_base of an island: their parameters are those of version ", base,
      base == job.rounds.progress.version
          ? ""
          : absl::StrCat(", as version ", job.rounds.progress.version),
      has_state ? ", their outer momentum is lost and begins at zero" : "",
      lost_update.empty() ? "" : absl::StrCat("; their update of ", lost_update, " is lost"));
}

void SwitchShards(State& s, Job& job, const std::vector<ShardMove>& batch) {
  std::set<NodeId> changed;
  int64_t bytes = 0;
  std::vector<ShardPlacement> filled;
  const Version base = GetFillBase(job);
  JobRecord& record = job.EditRecord();
  std::vector<SlotId> taken;
  for (const ShardMove& move : batch) {
    taken.push_back(TakenSlot(job, move));
    ShardPlacement& shard = GetPlacement(record, taken.back());
    const Member* to = s.FindMember(MemberKind::kServer, move.to);
    changed.insert(move.to);
    if (!shard.server.empty()) {
      changed.insert(shard.server);
      job.moving.givers.insert(shard.server);
    }
    SetHolder(*to, shard);
    bytes += shard.elements * ServerBytesPerElement(job.spec().outer);
    if (move.fill) {
      filled.push_back(shard);
      std::erase_if(record.refilled, [&](const RefilledShard& r) { return r.shard == move.shard; });
      record.refilled.push_back(
          {move.shard, job.rounds.progress.version, job.rounds.progress.version - base});
    }
    std::erase(record.moves, move);
  }
  ++record.placement;
  ++job.placement_revision;
  ForgetStaged(job, taken);
  job.rounds.transfer_plans.clear();
  job.rounds.push_plan = PushPlan();
  RefreshLinks(s, job, changed);
  job.moving.received.clear();
  job.moving.batch.clear();
  job.moving.held_since.reset();
  job.moving.hold = kHoldFirst;
  job.moving.batch_bytes = std::min(2 * job.moving.batch_bytes, kBatchBytesMost);
  job.moving.again_at = s.now;
  if (filled.empty()) {
    s.Log(job.id(), Severity::kInfo,
          absl::StrCat(batch.size(), " shards, ", BytesText(bytes), ", have moved at version ",
                       job.rounds.progress.version));
    return;
  }
  const std::string lost_update = LostUpdates(job, filled, base);
  if (!lost_update.empty()) record.lost_update = lost_update;
  s.Log(job.id(), Severity::kWarning,
        absl::StrCat(batch.size(), " lost shards, ", BytesText(bytes), ", ",
                     FilledText(job, base, lost_update)));
}

// Lists the shards that move. A shard that another server had received whole before is not lost: it
// takes over with the rest.
std::set<ShardId> MovedShards(const State& s, const Job& job) {
  std::set<ShardId> moved;
  for (const ShardMove& move : job.record.moves) {
    const Member* to = s.FindMember(MemberKind::kServer, move.to);
    if (!move.fill && IsReceived(job, move) && to->attached && !to->record.draining) {
      moved.insert(move.shard);
    }
  }
  return moved;
}

std::vector<ShardPlacement> LostShards(const Job& job, const NodeId& server,
                                       const std::set<ShardId>& moved) {
  const std::set<ShardId>& lacking = job.rounds.links.at(server).lacking;
  std::vector<ShardPlacement> lost;
  for (const ShardPlacement& shard : job.record.shards) {
    if (shard.server != server || moved.contains(shard.shard)) continue;
    if (lacking.empty() || lacking.contains(shard.shard)) lost.push_back(shard);
  }
  return lost;
}

// Servers that may be filled with them; the one that has lost them has their memory free again.
std::vector<PlacementServer> FillTargets(const State& s, const Job& job, const NodeId& server,
                                         const std::vector<ShardPlacement>& lost) {
  const ServerLink& loser = job.rounds.links.at(server);
  const bool lacks = loser.empty || !loser.lacking.empty();
  const auto takes = [&](const Member& member) {
    const NodeId& name = member.record.name;
    const auto link = job.rounds.links.find(name);
    const bool has_own = link == job.rounds.links.end() || link->second.known;
    return member.attached && !member.record.draining && !member.site_only &&
           !IsReleasing(job.record, name) && !HoldsOldShards(s, job, name) &&
           (has_own || (name == server && lacks));
  };
  std::vector<PlacementServer> servers = ListServers(s, ListIslandLeaders(s, job), takes);
  for (PlacementServer& target : servers) {
    if (target.name != server) continue;
    for (const ShardPlacement& shard : lost) {
      target.free_bytes += shard.elements * ServerBytesPerElement(job.spec().outer);
    }
  }
  return servers;
}

// The server has shards besides those that are lost.
bool HoldsOthers(const Job& job, const NodeId& server, const std::vector<ShardPlacement>& lost) {
  return std::any_of(
      job.record.shards.begin(), job.record.shards.end(), [&](const ShardPlacement& shard) {
        return shard.server == server && std::find(lost.begin(), lost.end(), shard) == lost.end();
      });
}

// Describes what the moves that fill do, and which update is lost by it.
std::string WhyFilled(const Job& job, const NodeId& server) {
  const JobRecord& record = job.record;
  std::string why = absl::StrCat("a user says that server ", server, " has lost them");
  if (record.fill_version == 0) return why;
  std::vector<ShardPlacement> filled;
  for (const ShardMove& move : record.moves) {
    if (move.fill) filled.push_back(MovedSlot(job, move));
  }
  const std::string lost = LostUpdates(job, filled, record.fill_base);
  absl::StrAppend(&why, "; no island has version ", job.rounds.decided_version(),
                  ": theta_base of version ", record.fill_base, " fills ", filled.size(),
                  " shards, as version ", record.fill_version);
  if (!lost.empty()) absl::StrAppend(&why, "; their update of ", lost, " is lost");
  return why;
}

// Returns whether all of them are being filled so already, on servers that are there.
bool GoesOn(const State& s, const Job& job, const Fill& fill,
            const std::vector<ShardPlacement>& lost) {
  const JobRecord& record = job.record;
  if (fill.version != record.fill_version || fill.base != record.fill_base) return false;
  return std::all_of(lost.begin(), lost.end(), [&](const ShardPlacement& shard) {
    return std::any_of(record.moves.begin(), record.moves.end(), [&](const ShardMove& move) {
      const Member* to = s.FindMember(MemberKind::kServer, move.to);
      return move.fill && move.shard == shard.shard && to->attached && !to->record.draining;
    });
  });
}

// Describes what makes up `version`, for a server that has nothing of the job.
void DescribeVersion(const Job& job, ReceiveShards& message) {
  message.newest = {job.id(), message.version, {}, {}};
  message.slots = static_cast<int32_t>(ListServerSlots(job.spec().outer).size());
  int reported = 0;
  for (auto d = job.rounds.decisions.rbegin();
       d != job.rounds.decisions.rend() && reported < kDecisionsReported; ++d, ++reported) {
    for (const DecisionParticipant& p : d->second.participants) {
      message.decided.push_back(p.contribution);
    }
    message.decided.insert(message.decided.end(), d->second.dropped.begin(),
                           d->second.dropped.end());
    if (d->second.version != message.version) continue;
    for (const DecisionParticipant& p : d->second.participants) {
      if (p.accepted) message.newest.terms.push_back({p.contribution, p.weight});
    }
    message.newest.dropped = d->second.dropped;
    message.newest.image = BuildJobImage(job, d->second);
  }
  std::reverse(message.decided.begin(), message.decided.end());  // oldest first
}

// It holds shards that cannot be used, and no user has said that they are lost: what comes to be
// filled would replace them.
bool IsDamagedHolder(const Job& job, const NodeId& server) {
  const auto link = job.rounds.links.find(server);
  if (link == job.rounds.links.end() || link->second.known) return false;
  return std::none_of(job.record.moves.begin(), job.record.moves.end(), [&](const ShardMove& move) {
    return move.fill && MovedSlot(job, move).server == server;
  });
}

void SendReceive(State& s, Job& job) {
  std::map<NodeId, ReceiveShards> messages;
  for (const ShardMove& move : job.moving.batch) {
    if (IsReceived(job, move)) continue;
    const Member* to = s.FindMember(MemberKind::kServer, move.to);
    if (to == nullptr || !to->attached) continue;
    const ShardPlacement& shard = GetSourcePlacement(job, move);
    if (IsDamagedHolder(job, move.to)) continue;
    const auto link = job.rounds.links.find(shard.server);
    if (!move.fill && (link == job.rounds.links.end() || !link->second.known)) continue;
    ReceiveShards& message = messages[move.to];
    message.sources.push_back({{shard.shard, shard.layer, shard.elements, shard.begin},
                               move.fill ? "" : shard.endpoint,
                               move.fill ? "" : shard.public_key,
                               move.fill});
  }
  for (auto& [server, message] : messages) {
    message.job = job.id();
    message.placement = job.record.placement;
    message.version = job.rounds.progress.version;
    message.fill_age = job.rounds.progress.version - GetFillBase(job);
    DescribeVersion(job, message);
    s.SendToServer(server, std::move(message));
  }
}

// An island that has the parameters, another one each time.
void SendFill(State& s, Job& job) {
  FillShards fill{job.id(), -1, 0, GetFillBase(job), {}};
  for (const ShardMove& move : job.moving.batch) {
    if (!move.fill || IsReceived(job, move)) continue;
    const Member* to = s.FindMember(MemberKind::kServer, move.to);
    if (to == nullptr || !to->attached) continue;
    ShardPlacement shard = MovedSlot(job, move);
    SetHolder(*to, shard);
    fill.shards.push_back(std::move(shard));
  }
  if (fill.shards.empty()) return;
  const auto sources = FindFillSources(s, job);
  const auto able = sources.find(fill.version);
  job.moving.trouble =
      able != sources.end()
          ? ""
          : absl::StrCat("no island holds theta_base of version ", fill.version,
                         " any more: repeat atoll refill, which fills from what islands hold now");
  if (able == sources.end()) return;
  const auto& [leader, island] =
      able->second[static_cast<size_t>(job.moving.fills++) % able->second.size()];
  fill.island = island->island;
  fill.generation = island->generation;
  s.Send(*leader, std::move(fill));
  job.moving.fill_again_at = s.now + kFillRetry;
}

// Returns a later time for what is due and waits for something else.
Instant Later(const State& s, Instant at) { return at > s.now ? at : s.now + kRetryInterval; }

}  // namespace

void OnSlotsDropped(State& s, Job& job, const NodeId& server, const std::set<SlotId>& slots) {
  std::set<NodeId> left = {server};
  std::erase_if(job.EditRecord().moves, [&](const ShardMove& move) {
    if (!slots.contains(move.shard)) return false;
    left.insert(move.to);
    return true;
  });
  for (const SlotId slot : slots) job.moving.received.erase(slot);
  job.moving.batch.clear();
  job.moving.held_since.reset();
  job.moving.plan_again_at = s.now;
  for (const NodeId& name : left) {
    if (HoldsShards(job.record, name)) continue;
    job.rounds.links.erase(name);
    job.moving.givers.erase(name);
    if (!IsTarget(job, name)) Release(job, name);
  }
  ++job.placement_revision;
  job.rounds.transfer_plans.clear();
  job.rounds.push_plan = PushPlan();
  ResendAssignments(s, job);
}

absl::Status RefillShards(State& s, Job& job, const NodeId& server) {
  const auto link = job.rounds.links.find(server);
  const auto refuse = [&](auto... args) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.id(), " cannot be refilled: ", args...));
  };
  if (link == job.rounds.links.end()) return refuse("server ", server, " holds no shard of it");
  if (!job.active() || job.stale() || job.rounds.progress.version == kNoVersion) {
    return refuse("it does not run, or has no committed version yet");
  }
  if (link->second.known) return refuse("server ", server, " has its shards: nothing is lost");
  DropHolder(s, job, server);  // what others hold is not lost
  if (!HoldsShards(job.record, server)) return absl::OkStatus();
  if (const NodeId counterpart = FindUnavailableCounterpart(s, job, server); !counterpart.empty()) {
    return refuse("server ", counterpart,
                  " has copies of its shards, and is unavailable: start it; if they are ",
                  "lost, too, start it with an empty folder");
  }
  const auto sources = FindFillSources(s, job);
  if (sources.empty()) {
    return refuse("no island that is attached and ready has parameters (theta_base) to fill them ",
                  "from: wait for one and try again, or start server ", server,
                  " with the folder that it had, or with a copy of that; if there is none, atoll ",
                  "recover writes the newest whole version of what is left");
  }
  const bool exact = sources.contains(job.rounds.decided_version());
  // Chunks that have arrived elsewhere are of no use for another version.
  const std::set<ShardId> moved = exact ? MovedShards(s, job) : std::set<ShardId>();
  const std::vector<ShardPlacement> lost = LostShards(job, server, moved);
  const Fill fill = ChooseFill(job, sources, lost);
  if (!exact && !link->second.lacking.empty() && HoldsOthers(job, server, lost)) {
    return refuse("no island has version ", job.rounds.decided_version(), ", and server ", server,
                  " still has other shards: start it with an empty folder (keep this one), and ",
                  "all of them are filled");
  }
  auto placed = PlaceShards(lost, FillTargets(s, job, server, lost),
                            ServerPeakBytesPerElement(job.spec().outer));
  if (!placed.ok()) {
    return refuse(placed.status().message(), "; start server ", server,
                  " with an empty folder, or another one");
  }
  ForgetServerCopies(s, job, server);  // only now: what is refused changes nothing
  if (!HoldsShards(job.record, server)) return absl::OkStatus();
  if (GoesOn(s, job, fill, lost)) return absl::OkStatus();
  std::set<NodeId> targets;
  for (const ShardMove& move : job.record.moves) targets.insert(move.to);
  JobRecord& record = job.EditRecord();
  std::erase_if(record.moves, [&](const ShardMove& move) {
    return !moved.contains(move.shard) &&
           (!move.fill || record.shards[move.shard].server == server);
  });
  for (const ShardPlacement& shard : placed->shards) {
    record.moves.push_back({shard.shard, shard.server, /*fill=*/true});
  }
  record.fill_version = fill.version;
  record.fill_base = fill.base;
  record.moves_reason = WhyFilled(job, server);
  for (const NodeId& target : targets) {
    if (!HoldsShards(job.record, target) && !IsTarget(job, target)) Release(job, target);
  }
  job.rounds.collecting.reset();  // a new window will open
  job.moving = Moving{.received = std::move(job.moving.received),
                      .givers = std::move(job.moving.givers),
                      .balanced_at = job.moving.balanced_at};
  s.Log(job.id(), Severity::kWarning,
        absl::StrCat(CountText(std::ssize(lost), "shard"), " of parameter server ", server,
                     " to be filled from an island: ", record.moves_reason));
  return absl::OkStatus();
}

void OnShardsReceived(State& s, Member& server, const ShardsReceived& message) {
  Job* job = s.FindJob(message.job);
  if (job == nullptr || message.version != job->rounds.progress.version) return;
  s.Touch(*job);
  for (const ShardMove& move : job->record.moves) {
    if (move.to != server.record.name || std::count(message.shards.begin(), message.shards.end(),
                                                    move.shard % CountShards(job->record)) == 0) {
      continue;
    }
    job->moving.received[move.shard] = {move.to, message.version};
  }
}

void OnReceiverHello(State& s, const NodeId& server) {
  for (auto& [number, job] : s.jobs) ForgetReceived(job, server);
}

bool TakesPartInMoves(const Job& job, const NodeId& server) {
  return IsReleasing(job.record, server) || IsTarget(job, server);
}

void OnReleased(Job& job, const NodeId& server, int64_t placement) {
  const auto is_it = [&](const ReleasedServer& r) {
    return r.server == server && placement >= r.placement;
  };
  if (std::any_of(job.record.releasing.begin(), job.record.releasing.end(), is_it)) {
    std::erase_if(job.EditRecord().releasing, is_it);
  }
}

bool AdvanceMoves(State& s, Job& job) {
  if (job.rounds.progress.version == kNoVersion || job.record.site) return false;
  if (GivesUp(job)) {
    GiveUpMoves(s, job);
    return true;
  }
  AdaptBatch(job);
  if (!job.record.moves.empty() && ForgetMoves(s, job)) return true;
  if (IsBeforeFill(job)) {
    PassRound(s, job, job.rounds, /*opened_by=*/-1, job.record.moves_reason);
    return true;
  }
  if (HasExactSource(s, job)) {
    job.EditRecord().fill_version = 0;
    job.moving.again_at = job.moving.fill_again_at = s.now;
  }
  if (job.record.moves.empty()) return PlanMoves(s, job);
  const std::vector<ShardMove> batch = Batch(job);
  if (job.moving.batch != batch) {
    job.moving.batch = batch;
    job.moving.held_since.reset();
    job.moving.again_at = s.now;
  }
  const bool received = std::all_of(batch.begin(), batch.end(),
                                    [&](const ShardMove& move) { return IsReceived(job, move); });
  if (!received || !MaySwitch(job, batch)) return false;
  SwitchShards(s, job, batch);
  return true;
}

bool HoldsForMoves(const State& s, const Job& job) {
  if (job.moving.batch.empty() || job.moving.version != job.rounds.progress.version) return false;
  // Only what is under way.
  for (const ShardMove& move : job.moving.batch) {
    const Member* to = s.FindMember(MemberKind::kServer, move.to);
    const Member* from = s.FindMember(MemberKind::kServer, GetSourcePlacement(job, move).server);
    if (to == nullptr || !to->attached || from == nullptr || !from->attached) return false;
  }
  if (!MaySwitch(job, job.moving.batch)) return false;
  return !job.moving.held_since || s.now - *job.moving.held_since < job.moving.hold;
}

bool TakenOver(const Job& job) {
  return std::all_of(job.rounds.links.begin(), job.rounds.links.end(), [&](const auto& entry) {
    return entry.second.assigned || job.moving.givers.contains(entry.first);
  });
}

void PumpMoves(State& s, Job& job) {
  for (const ReleasedServer& released : job.record.releasing) {
    if (job.active() && !TakenOver(job)) break;  // theirs is the only copy that is durably assigned
    const Member* server = s.FindMember(MemberKind::kServer, released.server);
    Instant& again_at = job.moving.release_again_at[released.server];
    if (server == nullptr || !server->attached || s.now < again_at) continue;
    again_at = s.now + kRetryInterval;
    s.SendToServer(released.server, RemoveJob{job.id(), released.placement});
  }
  const bool applied = job.rounds.decided_version() == job.rounds.progress.version;
  if (!job.active() || job.moving.batch.empty() || !applied) return;
  if (s.now >= job.moving.again_at) {
    job.moving.again_at = s.now + kRetryInterval;
    SendReceive(s, job);
  }
  // A moment after the servers have got their orders.
  if (s.now >= job.moving.fill_again_at) SendFill(s, job);
}

Instant NextMoveDeadline(const State& s, const Job& job) {
  Instant next = kNever;
  for (const ReleasedServer& released : job.record.releasing) {
    const Member* server = s.FindMember(MemberKind::kServer, released.server);
    const auto again = job.moving.release_again_at.find(released.server);
    if (server == nullptr || !server->attached) continue;
    const bool sent_before = again != job.moving.release_again_at.end();
    next = std::min(next, Later(s, sent_before ? again->second : s.now));
  }
  if (!job.active() || job.rounds.progress.version == kNoVersion) return next;
  if (job.moving.held_since) {
    next = std::min(next, Later(s, *job.moving.held_since + job.moving.hold));
  }
  if (!job.record.moves.empty()) return std::min(next, Later(s, job.moving.again_at));
  // A server that may take shards later, or one that still has to give some.
  s.ForEachServer([&](const Member& member) {
    if (!member.attached) return;
    const bool gives = member.record.draining && HoldsShards(job.record, member.record.name);
    const Instant takes = member.attached_at + s.options.rebalance_after;
    if (gives) next = std::min(next, Later(s, job.moving.plan_again_at));
    if (s.now < takes) next = std::min(next, takes);
  });
  return next;
}

}  // namespace atl::coord

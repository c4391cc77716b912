#include "coordinator/core/rounds/rounds.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/protocol/fragments.h"
#include "common/protocol/round_limit.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/rounds/expert_tokens.h"
#include "coordinator/core/rounds/round_decision.h"
#include "coordinator/core/rounds/round_steps.h"
#include "coordinator/core/rounds/signed_rounds.h"
#include "coordinator/core/rounds/site_exchange.h"
#include "coordinator/core/rounds/validation.h"
#include "coordinator/core/shards/failover.h"
#include "coordinator/core/shards/moves.h"
#include "coordinator/core/shards/refill.h"
#include "coordinator/core/shards/servers.h"
#include "coordinator/core/stalls.h"

namespace atl::coord {
namespace {

constexpr size_t kMaxRangesOfPush = 65536;

// Returns whether each begins where or after the one before ends, and none is reversed.
bool AreInOrder(const std::vector<PositionRange>& ranges) {
  int64_t end = 0;
  for (const PositionRange& range : ranges) {
    if (range.begin < end || range.end < range.begin) return false;
    end = range.end;
  }
  return true;
}

// Checks what a push claims, and takes its data from the leased into the pushed.
absl::Status Admit(Job& job, const IslandRecord& island, const PushRequest& message) {
  const ContributionId& id = message.contribution;
  if (job.progress.version == kNoVersion && job.decided_version() == kNoVersion) {
    if (id.base_version != kNoVersion || job.progress.initializer != island.island) {
      return absl::InvalidArgumentError("there is no version to push against yet");
    }
    if (message.tokens != 0 || !message.consumed.empty() || !message.expert_tokens.empty()) {
      return absl::InvalidArgumentError("initial weights are made of no data");
    }
    return absl::OkStatus();
  }
  if (id.base_version < 0 || id.base_version > job.decided_version()) {
    return absl::InvalidArgumentError(absl::StrCat("base version ", id.base_version,
                                                   " is not one of 0 to ", job.decided_version()));
  }
  if (message.consumed.empty() || message.consumed.size() > kMaxRangesOfPush) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a push names 1 to ", kMaxRangesOfPush, " ranges of data, not ", message.consumed.size()));
  }
  int64_t sequences = 0;
  for (const PositionRange& range : message.consumed) {
    if (!job.ledger->IsRange(range)) {
      return absl::InvalidArgumentError(
          absl::StrCat("positions ", range.begin, " to ", range.end, " are no range of the job's"));
    }
    sequences += range.size();
    if (sequences > job.ledger->budget()) break;
  }
  if (!message.skipped.empty() &&
      (!AreInOrder(message.skipped) || !Contains(message.consumed, message.skipped))) {
    return absl::InvalidArgumentError("it has skipped what it has not consumed, or some twice");
  }
  if (message.masked_tokens > message.tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("it claims ", message.masked_tokens, " masked tokens of ", message.tokens));
  }
  const int64_t length = job.spec().data.sequence_length;
  if (message.tokens != sequences * length) {
    return absl::InvalidArgumentError(absl::StrCat("it claims ", message.tokens, " tokens for ",
                                                   sequences, " sequences of ", length));
  }
  ATOLL_RETURN_IF_ERROR(CheckExpertTokens(job, message));
  return job.ledger->Push(id, message.consumed);
}

void Grant(State& s, Job& job, Rounds& rounds, const Worker& worker, const ContributionId& id) {
  StagedByServer& staged = rounds.staged[id];
  PushGrant grant{job.id(), id, {}};
  for (const GrantedPush& push : GetPushOrder(job, id.island)) {
    const ShardDescriptor& shard = job.record.shards[push.shard];
    if (!IsPushed(job, id, shard, rounds.contributions.at(id).expert_tokens)) continue;
    const int64_t size = shard.elements;
    const ElementRange range = push.elements == 0
                                   ? ElementRange{0, size}
                                   : ElementRange{push.begin, push.begin + push.elements};
    const StagedShards& active = staged[GetActiveServer(shard)];
    for (const ElementRange& missing : active.Missing(push.shard, range)) {
      if (missing == range) {
        grant.order.push_back(push);
      } else {
        grant.order.push_back({push.shard, missing.begin, missing.size(), push.sender});
      }
    }
  }
  if (!grant.order.empty()) s.Send(worker, std::move(grant));
}

// The same island's earlier contribution of this generation that is not decided yet.
const ContributionRecord* Earlier(const Rounds& rounds, const ContributionId& id) {
  for (const auto& [other, record] : rounds.contributions) {
    if (other.island == id.island && other.generation == id.generation && other != id &&
        !record.dropped) {
      return &record;
    }
  }
  return nullptr;
}

bool IsComplete(const Rounds& rounds, const ContributionId& id) {
  return std::find(rounds.complete.begin(), rounds.complete.end(), id) != rounds.complete.end();
}

bool Contributes(const Rounds& rounds, const IslandRecord& island) {
  return std::any_of(rounds.complete.begin(), rounds.complete.end(), [&](const ContributionId& id) {
    return id.island == island.island && id.generation == island.generation;
  });
}

std::vector<IslandId> MissingIslands(const Job& job, const Rounds& rounds) {
  std::set<std::pair<IslandId, Generation>> in;
  for (const ContributionId& id : rounds.complete) in.emplace(id.island, id.generation);
  std::vector<IslandId> missing;
  for (const auto& [id, island] : job.islands) {
    if (!in.contains({id, island.generation}) && IsActive(job, island) && !IsStalled(job, id)) {
      missing.push_back(id);
    }
  }
  return missing;
}

// Why the window is to be closed now; "" if it is not.
std::string WhyClose(const State& s, const Job& job, const Rounds& rounds) {
  if (HoldsForExchange(job)) return "";
  if (HasSinglePushRounds(job.spec().outer)) return "each push makes a round";
  const std::vector<IslandId> missing = MissingIslands(job, rounds);
  if (missing.empty()) {
    const auto stalled =
        std::count_if(job.islands.begin(), job.islands.end(), [&](const auto& entry) {
          return IsActive(job, entry.second) && IsStalled(job, entry.first) &&
                 !Contributes(rounds, entry.second);
        });
    const std::string without =
        stalled == 0 ? "" : absl::StrCat(" but ", stalled, " without progress");
    return absl::StrCat("all ", ActiveIslands(job), " active islands", without, " are in");
  }
  const bool no_room = std::all_of(missing.begin(), missing.end(),
                                   [&](IslandId id) { return rounds.waits_for_room.contains(id); });
  if (no_room) return "the servers have no room for the other islands' pushes";
  if (!job.spec().outer.wait_for_all && s.now - rounds.window->opened_at >= rounds.window->grace) {
    return absl::StrCat("the grace time of ", Seconds(rounds.window->grace),
                        " s is over without island ", absl::StrJoin(missing, ", "));
  }
  return "";
}

size_t MostContributions(const OuterSpec& outer) {
  if (HasSinglePushRounds(outer)) return 1;
  return MergesByLayer(outer) ? kMaxContributionsByLayer : kMaxContributions;
}

// Selects the complete contributions whose fragment the next round concerns.
std::vector<ContributionId> InTurn(const Job& job, const Rounds& rounds) {
  std::vector<ContributionId> in_turn;
  const Fragments fragments = FragmentsFrom(job.spec().outer);
  const Version next = job.progress.version + 1;
  for (const ContributionId& id : rounds.complete) {
    if (fragments.count() == 1 || FragmentFromVersion(id.base_version + 1, fragments) ==
                                      FragmentFromVersion(next, fragments)) {
      in_turn.push_back(id);
    }
  }
  return in_turn;
}

bool AdvanceWindow(State& s, Job& job, Rounds& rounds) {
  if (rounds.complete.empty()) {
    const bool was_open = rounds.window.has_value();
    rounds.window.reset();
    return was_open;
  }
  if (job.progress.version == kNoVersion) {
    DecideInitial(s, job, rounds, rounds.complete.front());
    return true;
  }
  bool opened = false;
  if (!rounds.window) {
    const IslandId first = rounds.complete.front().island;
    rounds.window = Window{first, s.now, GraceFor(s, job, first)};
    opened = true;
  }
  const std::string why = WhyClose(s, job, rounds);
  const bool stalls = AdvanceStalls(s, job);  // that the next windows are not open for
  if (why.empty()) return opened || stalls;
  if (HoldsForMoves(s, job)) {
    if (!job.moving.held_since) job.moving.held_since = s.now;
    return opened || stalls;
  }
  Collecting collecting;
  collecting.version = job.progress.version + 1;
  collecting.contributions = InTurn(job, rounds);
  if (collecting.contributions.empty()) {
    // Without statistics nothing else waits for servers that are about to take shards over; what
    // they receive is of this version.
    if (!TakenOver(job)) return opened || stalls;
    PassTurn(s, job, rounds, why);  // the window stays open: what is complete comes later
    return true;
  }
  // The earliest; the others are in the next round.
  const size_t most = MostContributions(job.spec().outer);
  if (collecting.contributions.size() > most) collecting.contributions.resize(most);
  std::sort(collecting.contributions.begin(), collecting.contributions.end());
  collecting.opened_by = rounds.window->opened_by;
  collecting.closed_because = why;
  rounds.collecting = std::move(collecting);
  rounds.window.reset();
  rounds.round_closed_at = s.now;
  RetryServersNow(s, job);
  return true;
}

// ", no answer yet from island 0 (worker a)", of the island that makes them.
std::string DescribeInitializer(const Job& job) {
  const auto island = job.islands.find(job.progress.initializer);
  if (island == job.islands.end()) return "";
  return absl::StrCat(", no answer yet from island ", island->first, " (worker ",
                      island->second.worker, ")");
}

// "training; next push in about 12 s", by what the islands' leaders have reported.
std::string DescribeTraining(const State& s, const Job& job) {
  std::optional<double> soonest_s;
  for (const auto& [id, island] : job.islands) {
    const Worker* leader = s.FindWorker(island.worker);
    if (!IsActive(job, island) || leader == nullptr || !leader->progress) continue;
    const IslandProgress& progress = *leader->progress;
    const double step_s = std::max(progress.step_seconds_idle_link, progress.step_seconds_overlap);
    if (progress.generation != island.generation || !progress.ready || !(step_s > 0)) continue;
    const int64_t steps = std::max<int64_t>(0, island.steps_this_round - progress.unpushed_steps);
    const double left_s = std::max(
        0.0, static_cast<double>(steps) * step_s - Seconds(s.now - leader->last_heartbeat));
    soonest_s = std::min(soonest_s.value_or(left_s), left_s);
  }
  if (!soonest_s || !(*soonest_s < 1e6)) return "training";
  const auto whole_s = static_cast<int64_t>(std::ceil(*soonest_s));
  return whole_s < 1 ? "training; a push is due"
                     : absl::StrCat("training; next push in about ", whole_s, " s");
}

// "waiting for island 2 (18 s, grace 30 s)".
std::string DescribeWindow(const State& s, const Job& job, const Rounds& rounds) {
  const auto whole = [](Duration time) { return static_cast<int64_t>(Seconds(time)); };
  return absl::StrCat("waiting for island ", absl::StrJoin(MissingIslands(job, rounds), ", "), " (",
                      whole(s.now - rounds.window->opened_at), " s",
                      job.spec().outer.wait_for_all
                          ? ""
                          : absl::StrCat(", grace ", whole(rounds.window->grace), " s"),
                      ")");
}

}  // namespace

absl::Status TakeContribution(Job& job, const PushRequest& message) {
  Rounds& rounds = job.rounds;
  const ContributionId& id = message.contribution;
  const absl::Status status = Admit(job, job.islands.at(id.island), message);
  if (!status.ok()) return status;
  rounds.waits_for_room.erase(id.island);
  IslandRecord& island = job.EditIsland(id.island);
  island.last_push_base = std::max(island.last_push_base, id.base_version);
  ContributionRecord& record = rounds.EditContribution(id);
  record.job = job.id();
  record.contribution = id;
  record.inner_steps = message.inner_steps;
  record.tokens = message.tokens;
  record.masked_tokens = message.masked_tokens;
  const auto known = [](double value) { return IsLoss(value) ? value : 0; };
  record.train_loss = known(message.train_loss);
  record.learning_rate = known(message.learning_rate);
  record.gradient_norm = known(message.gradient_norm);
  record.consumed = message.consumed;
  record.skipped = message.skipped;
  record.moments = message.moments;
  record.expert_tokens = message.expert_tokens;
  return absl::OkStatus();
}

void OnPushRequest(State& s, Worker& worker, const PushRequest& message) {
  const ContributionId& id = message.contribution;
  IslandRecord* found = CurrentIsland(s, worker, message.job, id.island, id.generation);
  if (found == nullptr || id.incarnation != found->author) return;
  Job& job = *s.FindJob(message.job);
  Rounds& rounds = job.rounds;
  s.Touch(job);
  if (auto it = rounds.contributions.find(id); it != rounds.contributions.end()) {
    if (it->second.dropped) return;
    const bool withdrawn =
        message.inner_steps == 0 && message.consumed.empty() && !it->second.consumed.empty();
    if (!withdrawn) return Grant(s, job, rounds, worker, id);
    if (IsComplete(rounds, id)) return;  // it counts all the same
    return RenewIsland(s, job, id.island, "it has lost a part of what it was pushing",
                       StartFrom::kSaved);
  }
  const std::optional<ContributionOutcome>& outcome = found->outcome;
  if (outcome && outcome->contribution == id) return ResendOrder(s, job, id.island);
  if (const ContributionRecord* earlier = Earlier(rounds, id); earlier != nullptr) {
    if (id.base_version < earlier->contribution.base_version) return;  // it is outdated
    if (IsComplete(rounds, earlier->contribution)) return;  // decided first; it repeats its request
    const ContributionId old = earlier->contribution;
    DropContribution(s, job, old, "its island requests to push a later one");
  }
  if (!HasRoom(s, job)) {
    // Servers that are not back since a restart have not said how much they have.
    if (AllServersKnown(job)) {
      rounds.waits_for_room.insert(id.island);
    } else {
      rounds.early_requests[id.island] = message;
    }
    return;  // it repeats its request
  }
  absl::Status status = CheckSigned(job, worker, message);
  if (status.ok()) status = TakeContribution(job, message);
  if (!status.ok()) {
    return RenewIsland(s, job, id.island, absl::StrCat("its push is refused: ", status.message()));
  }
  KeepSigned(job, worker, message);
  NotePush(s, job, id.island);
  Grant(s, job, rounds, worker, id);
}

void AnswerEarlyPushes(State& s, Job& job, Rounds& rounds) {
  if (rounds.early_requests.empty() || !AllServersKnown(job)) return;
  for (const auto& [island, requested] : std::exchange(rounds.early_requests, {})) {
    const auto found = job.islands.find(island);
    if (found == job.islands.end()) continue;
    Worker* worker = s.FindWorker(found->second.worker);
    if (worker != nullptr && worker->attached) OnPushRequest(s, *worker, requested);
  }
}

void NoteStaged(const Job& job, Rounds& rounds, const ContributionId& id) {
  const bool whole = CountStaged(rounds.staged[id]) == CountPushed(job, id);
  if (whole == IsComplete(rounds, id)) return;
  if (whole) {
    rounds.complete.push_back(id);
    return;
  }
  std::erase(rounds.complete, id);
  const bool collected =
      rounds.collecting && std::count(rounds.collecting->contributions.begin(),
                                      rounds.collecting->contributions.end(), id) > 0;
  if (collected) rounds.collecting.reset();  // a new window will open
}

bool MayCount(const Rounds& rounds, const ContributionId& id) {
  auto it = rounds.contributions.find(id);
  if (it != rounds.contributions.end()) return !it->second.dropped;
  for (auto d = rounds.decisions.rbegin(); d != rounds.decisions.rend(); ++d) {
    for (const DecisionParticipant& p : d->second.participants) {
      if (p.contribution == id) return p.accepted;
    }
  }
  return false;
}

int64_t StagedContributions(const Job& job) {
  const Rounds& rounds = job.rounds;
  int64_t count = std::count_if(rounds.contributions.begin(), rounds.contributions.end(),
                                [](const auto& entry) { return !entry.second.dropped; });
  for (auto it = rounds.decisions.rbegin(); it != rounds.decisions.rend(); ++it) {
    if (it->second.version == kNoVersion) continue;
    if (it->second.version <= job.progress.version) break;
    count += static_cast<int64_t>(it->second.participants.size());
  }
  return count;
}

// -------------------------------------------------------------------------- phases of a round ----

// Contributions of evicted or renewed islands count only if they are complete, which is certain
// only while every server has said what it holds.
bool DropIncomplete(State& s, Job& job, Rounds& rounds) {
  if (!AllServersKnown(job)) return false;
  std::vector<ContributionId> lost;
  for (const auto& [id, record] : rounds.contributions) {
    if (record.dropped || IsComplete(rounds, id)) continue;
    if (job.islands.at(id.island).generation != id.generation) lost.push_back(id);
  }
  for (const ContributionId& id : lost) {
    DropContribution(s, job, id,
                     absl::StrCat("its island failed after ", CountStaged(rounds.staged[id]),
                                  " of ", CountPushed(job, id), " shards"));
  }
  return !lost.empty();
}

bool AdvanceRound(State& s, Job& job, Rounds& rounds) {
  // A decision is carried out, whatever becomes of the job meanwhile.
  if ((!job.active() && !job.ended()) || rounds.links.empty() || job.record.removed ||
      job.stale()) {
    return false;
  }
  if (DropLostHolders(s, job)) return true;
  if (job.active() && DropIncomplete(s, job, rounds)) return true;
  if (job.decided_version() > job.progress.version) {
    const bool applied =
        std::all_of(rounds.links.begin(), rounds.links.end(), [&](const auto& entry) {
          return entry.second.version >= job.decided_version() || IsBeingFilled(job, entry.first);
        });
    if (applied) FinishRound(s, job, rounds);
    return applied;
  }
  if (job.ended()) return false;
  if (AdvanceMoves(s, job)) return true;
  const bool exchanges = job.record.site || IsBranching(job);
  if (exchanges && !rounds.collecting && AdvanceExchange(s, job)) return true;
  if (!rounds.collecting) return AdvanceWindow(s, job, rounds);
  if (std::size(rounds.collecting->grams) < job.replicas().active.size()) return false;
  DecideRound(s, job, rounds);
  return true;
}

Instant WindowDeadline(const Job& job, const Rounds& rounds) {
  if (!rounds.window || job.spec().outer.wait_for_all || HoldsForExchange(job)) return kNever;
  if (job.decided_version() > job.progress.version) return kNever;  // after a turn that was passed
  return rounds.window->opened_at + rounds.window->grace;
}

RoundPhase GetRoundPhase(const Job& job) {
  if (job.decided_version() > job.progress.version) return RoundPhase::kCommitting;
  if (job.rounds.collecting) return RoundPhase::kCollecting;
  return job.rounds.window ? RoundPhase::kWindowOpen : RoundPhase::kIdle;
}

const char* Name(RoundPhase phase) {
  static constexpr const char* kNames[] = {"idle", "window open", "collecting", "committing"};
  return kNames[static_cast<size_t>(phase)];
}

std::string RoundReason(const State& s, const Job& job, const Rounds& rounds) {
  std::vector<std::string> behind;
  switch (GetRoundPhase(job)) {
    case RoundPhase::kIdle:
      if (job.record.site && job.progress.version == kNoVersion) {
        return "waiting for the parameters of the job above";
      }
      if (IsBranching(job)) {
        return absl::StrCat("waiting for the parameters of ", job.spec().model.initial_job);
      }
      return job.progress.version == kNoVersion
                 ? absl::StrCat("waiting for the initial weights", DescribeInitializer(job))
                 : DescribeTraining(s, job);
    case RoundPhase::kWindowOpen:
      if (HoldsForExchange(job)) return "waiting for a version of the job above";
      return DescribeWindow(s, job, rounds);
    case RoundPhase::kCollecting:
      for (const NodeId& server : job.replicas().active) {
        if (!rounds.collecting->grams.contains(server)) behind.push_back(server);
      }
      return absl::StrCat("waiting for statistics of ", absl::StrJoin(behind, ", "));
    case RoundPhase::kCommitting:
      for (const auto& [server, link] : rounds.links) {
        const Server* member = s.FindServer(server);
        if (link.version >= job.decided_version()) continue;
        behind.push_back(link.known || member == nullptr
                             ? server
                             : absl::StrCat(server, " (", member->reason, ")"));
      }
      return absl::StrCat("waiting for ", absl::StrJoin(behind, ", "), " to apply version ",
                          job.decided_version());
  }
  return "";
}

}  // namespace atl::coord

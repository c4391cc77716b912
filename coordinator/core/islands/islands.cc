#include "coordinator/core/islands/islands.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/element_ranges.h"
#include "common/protocol/limits.h"
#include "coordinator/core/drain.h"
#include "coordinator/core/islands/island_members.h"
#include "coordinator/core/islands/plans.h"
#include "coordinator/core/members.h"
#include "coordinator/core/relays.h"
#include "coordinator/core/rounds/round_length.h"
#include "coordinator/core/rounds/rounds.h"
#include "coordinator/core/rounds/site_data.h"
#include "coordinator/core/rounds/site_jobs.h"
#include "coordinator/core/sharing/spares.h"
#include "coordinator/core/stalls.h"
#include "coordinator/core/view_makers.h"

namespace atl::coord {
namespace {

IslandId ChooseIsland(State& s, Job& job, const NodeId& worker) {
  IslandId longest_vacant = -1;
  for (const auto& [id, island] : job.islands) {
    if (island.incarnation != 0 || !island.site.empty()) continue;
    if (island.worker == worker) return id;
    if (longest_vacant < 0 || job.vacant_since[id] < job.vacant_since[longest_vacant]) {
      longest_vacant = id;
    }
  }
  // Where workers share islands there is little that only the one before could go on from.
  const bool full = static_cast<int64_t>(job.islands.size()) >= job.spec().outer.max_islands ||
                    job.spec().layout.island != IslandScope::kWorker;
  if (longest_vacant >= 0 &&
      (full || s.now - job.vacant_since[longest_vacant] >= s.options.vacant_island_grace)) {
    return longest_vacant;
  }
  return NextIslandId(s, job);
}

bool Has(const SavedHolder& holder, size_t unit) {
  return unit / 64 < holder.units.size() && ((holder.units[unit / 64] >> (unit % 64)) & 1) != 0;
}

bool IsMember(const IslandRecord& island, const NodeId& worker) {
  return worker == island.worker ||
         std::any_of(island.followers.begin(), island.followers.end(),
                     [&](const IslandMember& f) { return f.worker == worker; });
}

// Returns whether what it holds can be fetched now.
bool IsThere(const State& s, const IslandRecord& island, const SavedHolder& holder) {
  if (holder.tier == Tier::kRemote) return true;
  const Worker* member = s.FindWorker(holder.worker);
  if (member == nullptr || !member->attached) return false;
  const bool same = member->record.incarnation == holder.incarnation;
  return (holder.tier == Tier::kDisk || same) && IsMember(island, holder.worker);
}

// The first unit that none of these holders has; none: the state is whole.
std::optional<SavedUnit> Missing(const SavedState& state,
                                 const std::function<bool(const SavedHolder&)>& counts) {
  std::vector<const SavedHolder*> there;
  for (const SavedHolder& holder : state.holders) {
    if (counts(holder)) there.push_back(&holder);
  }
  for (size_t unit = 0; unit < state.units.size(); ++unit) {
    const bool held = std::any_of(there.begin(), there.end(),
                                  [&](const SavedHolder* holder) { return Has(*holder, unit); });
    if (!held) return state.units[unit];
  }
  return std::nullopt;
}

// Returns whether steps from this base may have been pushed: a contribution that is not certain to
// be dropped.
bool MayBePushed(const Job& job, const IslandRecord& island, Version base) {
  return job.rounds.HasContribution(
      island.island, [&](const ContributionId& id) { return id.base_version >= base; });
}

// Returns what the island may have trained on since its save, so that devices that are further than
// that can stay where they are.
std::vector<PositionRange> FurtherData(const Job& job, const IslandRecord& island,
                                       const LocalCheckpoint& about) {
  ElementRanges saved, further;
  for (const PositionRange& range : about.consumed) saved.Add({range.begin, range.end});
  const auto add = [&](const std::vector<PositionRange>& ranges) {
    for (const PositionRange& range : ranges) {
      for (const ElementRange& part : saved.Missing({range.begin, range.end})) further.Add(part);
    }
  };
  const auto before = job.leased_before.find(island.island);
  if (before != job.leased_before.end()) add(before->second);
  for (const auto& [id, contribution] : job.rounds.contributions) {
    const bool own = id.island == island.island && id.base_version == about.base_version;
    if (own && contribution.dropped) add(contribution.consumed);
  }
  std::vector<PositionRange> ranges;
  for (const ElementRange& range : further.ranges()) ranges.push_back({range.begin, range.end});
  return ranges;
}

// The save's data, and the further data if no other island has it by now.
bool LeaseToResume(Job& job, const IslandRecord& island, LocalCheckpoint* about) {
  about->leased = FurtherData(job, island, *about);
  std::vector<PositionRange> all = about->consumed;
  all.insert(all.end(), about->leased.begin(), about->leased.end());
  if (job.ledger->LeaseExactly(island.island, all)) return true;
  about->leased.clear();
  return job.ledger->LeaseExactly(island.island, about->consumed);
}

// The part of a heartbeat that decisions depend on; the rest is only shown.
auto GetDecisiveFields(const std::optional<IslandProgress>& progress) {
  static const IslandProgress kNone;
  const IslandProgress& p = progress ? *progress : kNone;
  return std::pair(progress.has_value(),
                   std::tie(p.job, p.island, p.generation, p.seen_sequence, p.base_version, p.ready,
                            p.plan_number, p.setting_up, p.plan_wanted));
}
auto GetDecisiveFields(const std::optional<MemberProgress>& progress) {
  static const MemberProgress kNone;
  const MemberProgress& p = progress ? *progress : kNone;
  return std::pair(progress.has_value(), std::tie(p.job, p.island, p.generation, p.plan_number,
                                                  p.seen_sequence, p.holds_layers));
}

void TouchIsland(State& s, const JobId& id, IslandId island) {
  Job* job = s.FindJob(id);
  if (job != nullptr) s.Touch(*job, island);
}

// Touches what waits for what this heartbeat reports.
void TouchAffectedByHeartbeat(State& s, const Worker& before, const WorkerHeartbeat& message) {
  const auto at = std::as_const(s).FindAssignment(before);
  const bool leaves =
      before.record.draining || (at.job != nullptr && at.job->called.contains(at.island));
  const bool same = before.has_beaten && !leaves &&
                    GetDecisiveFields(before.progress) == GetDecisiveFields(message.progress) &&
                    GetDecisiveFields(before.following) == GetDecisiveFields(message.member) &&
                    (before.candidate_for.empty() || before.measuring == message.measuring);
  if (same) return;
  if (Job* job = s.FindJob(before.candidate_for); job != nullptr) s.Touch(*job);
  for (const auto& progress : {before.progress, message.progress}) {
    if (progress) TouchIsland(s, progress->job, progress->island);
  }
  for (const auto& progress : {before.following, message.member}) {
    if (progress) TouchIsland(s, progress->job, progress->island);
  }
  const State::Assignment assignment = s.FindAssignment(before);
  if (assignment.job != nullptr) s.Touch(*assignment.job, assignment.island);
}

bool IsHandoverPending(const Job* job, const IslandProgress& progress, const NodeId& worker) {
  if (job == nullptr || !job->active()) return false;
  auto island = job->islands.find(progress.island);
  return island != job->islands.end() && island->second.takes_over_from == worker;
}

constexpr size_t kPullRatesMost = 4096;  // of one worker

// Notes pull rates. They stay known when the worker starts again, or has nothing more to pull from
// there.
void NotePullRates(Worker& worker, const std::vector<ServerRate>& rates) {
  for (const ServerRate& rate : rates) {
    if (!std::isfinite(rate.bytes_per_s) || rate.bytes_per_s <= 0) continue;
    if (worker.pull_rates.size() >= kPullRatesMost) worker.pull_rates.clear();
    worker.pull_rates[rate.endpoint].Add(rate.bytes_per_s);
  }
}

}  // namespace

void NewGeneration(Job& job, IslandRecord& island) {
  island.generation = ++job.EditProgress().plan_generation;
  island.ready = false;
  island.resume.reset();
  island.lease_request = -1;
  island.lease_ranges.clear();
  island.author = island.incarnation;
  island.takes_over_from.clear();
  // A leader that had no lease yet may have been about to go on from its predecessor's.
  std::vector<PositionRange> leased = job.ledger->LeasedRanges(island.island);
  if (!leased.empty()) job.leased_before[island.island] = std::move(leased);
  job.ledger->Release(island.island);
  job.rounds.waits_for_room.erase(island.island);
  job.orders.erase(island.island);
  job.exchanges.erase(island.island);
  job.rounds.transfer_plans.clear();
  job.rounds.push_plan = PushPlan();
  job.rounds.fences_changed = true;
}

void NoteSavedStates(Job& job, const IslandRecord& island, const IslandProgress& progress) {
  std::vector<SavedState> saved;
  for (const SavedState& state : progress.saved) {
    if (state.about.job != job.id() || state.about.island != island.island) continue;
    if (state.about.save > 0 && !state.units.empty()) saved.push_back(state);
  }
  if (saved.empty()) return;
  // State in other tiers, by an earlier leader, is still there.
  const auto tier_of = [](const SavedState& state) {
    return state.holders.empty() ? Tier::kMemory : state.holders.front().tier;
  };
  for (const SavedState& known : island.saved) {
    const bool replaced = tier_of(known) == Tier::kMemory ||
                          std::any_of(saved.begin(), saved.end(), [&](const SavedState& state) {
                            return tier_of(state) == tier_of(known);
                          });
    if (!replaced) saved.push_back(known);
  }
  if (saved == island.saved) return;
  if (saved.size() > kSavedStatesMax) saved.resize(kSavedStatesMax);
  job.EditIsland(island.island).saved = std::move(saved);
}

std::string ResumeSaved(State& s, Job& job, IslandRecord& island) {
  if (island.saved.empty()) return "";
  (void)DropIncomplete(s, job, job.rounds);  // a contribution that was partly pushed is dropped
  std::string why_not;
  for (const SavedState& state : island.saved) {
    LocalCheckpoint about = state.about;
    if (about.base_version != job.progress.version || job.progress.version == kNoVersion) {
      why_not = absl::StrCat("its saved state is of version ", about.base_version,
                             ", committed is ", job.progress.version);
    } else if (MayBePushed(job, island, about.base_version)) {
      why_not = "its saved state holds steps that it had requested to push";
    } else if (const std::optional<SavedUnit> missing =
                   Missing(state, [&](const SavedHolder& h) { return IsThere(s, island, h); })) {
      why_not = absl::StrCat("no attached worker holds layer ", missing->layer,
                             " as it was at inner step ", about.inner_step);
    } else if (!LeaseToResume(job, island, &about)) {
      why_not = "the data of its saved state is leased to others by now";
    } else {
      island.resume = about;
      return absl::StrCat("; goes on from the state saved at inner step ", about.inner_step);
    }
  }
  return absl::StrCat("; pulls the committed version: ", why_not);
}

NodeId AwaitedHolder(State& s, const Job& job, const IslandRecord& island) {
  const auto there = [&](const SavedHolder& holder) { return IsThere(s, island, holder); };
  const auto may_come = [&](const SavedHolder& holder) {
    if (there(holder)) return true;
    return holder.tier == Tier::kDisk && !IsMember(island, holder.worker) &&
           s.FindWorker(holder.worker) != nullptr && s.FindAssignment(holder.worker).job == nullptr;
  };
  NodeId awaited;
  for (const SavedState& state : island.saved) {
    if (state.about.base_version != job.progress.version) continue;
    if (!Missing(state, there)) return "";
    if (!awaited.empty() || Missing(state, may_come)) continue;
    for (const SavedHolder& holder : state.holders) {
      if (!there(holder) && may_come(holder)) awaited = holder.worker;
    }
  }
  return awaited;
}

void AssignIsland(State& s, Job& job, Worker& worker) {
  const IslandId id = ChooseIsland(s, job, worker.record.name);
  IslandRecord& island = job.EditIsland(id);
  island.job = job.id();
  island.island = id;
  island.worker = worker.record.name;
  island.incarnation = worker.record.incarnation;
  island.steps_this_round = GetStepsBetweenPushes(job);
  job.vacant_since.erase(id);
  NewGeneration(job, island);
  s.SetCandidate(worker, "");
  worker.progress.reset();
  island.reason =
      absl::StrCat("worker ", worker.record.name, " joined in generation ", island.generation);
  // With a plan, when it is made: others of the island may have parts of what is saved.
  std::string start;
  if (job.progress.version != kNoVersion && !NeedsPlan(s, job, island)) {
    start = island.saved.empty() ? absl::StrCat("; pulls version ", job.progress.version,
                                                ": no state of it is saved")
                                 : ResumeSaved(s, job, island);
  }
  s.Log(job.id(), Severity::kInfo, absl::StrCat("island ", id, ": ", island.reason, start));
}

void NoteSteps(const State& s, IslandRecord& island, bool lost) {
  const Worker* leader = s.FindWorker(island.worker);
  if (leader == nullptr || !leader->progress) return;
  const IslandProgress& last = *leader->progress;
  if (last.job != island.job || last.island != island.island) return;
  island.steps_redone =
      AddCounts(island.steps_redone, AddCounts(last.steps_redone, lost ? last.unpushed_steps : 0));
  island.steps_interrupted = AddCounts(island.steps_interrupted, last.steps_interrupted);
  island.pushed_bytes = AddCounts(island.pushed_bytes, last.pushed_bytes);
  island.pulled_bytes = AddCounts(island.pulled_bytes, last.pulled_bytes);
}

void EvictIsland(State& s, Job& job, IslandId id, const Loss& loss) {
  IslandRecord& island = job.EditIsland(id);
  s.Log(job.id(), loss.left ? Severity::kInfo : Severity::kWarning,
        absl::StrCat("island ", id, ": worker ", island.worker, " ", loss.left ? "" : "is ",
                     DescribeLoss(loss)));
  NoteSteps(s, island, /*lost=*/true);
  island.incarnation = 0;
  island.followers.clear();
  job.ErasePlan(id);
  if (!loss.left) island.evictions++;
  island.reason = DescribeLoss(loss);
  NewGeneration(job, island);
  job.vacant_since[id] = s.now;
  ProgressRecord& progress = job.EditProgress();
  if (progress.initializer == id) progress.initializer = -1;
  std::erase(progress.validators, id);
}

void RenewIsland(State& s, Job& job, IslandId id, const std::string& reason, StartFrom start) {
  IslandRecord& island = job.EditIsland(id);
  NewGeneration(job, island);
  RenumberPlan(job, island);
  island.reason = reason;
  s.Log(job.id(), Severity::kWarning,
        absl::StrCat("island ", id, " begins anew in generation ", island.generation, ": ", reason,
                     start == StartFrom::kSaved ? ResumeSaved(s, job, island) : ""));
}

void DropContribution(State& s, Job& job, const ContributionId& id, const std::string& reason) {
  ContributionRecord& record = job.rounds.EditContribution(id);
  record.dropped = true;
  record.reason = reason;
  IslandRecord& island = job.EditIsland(id.island);
  island.steps_redone = AddCounts(island.steps_redone, record.inner_steps);
  job.ledger->Return(id);
  job.rounds.staged.erase(id);
  std::erase(job.rounds.complete, id);
  for (const auto& [server, link] : job.rounds.links) {
    s.SendToServer(server, DropContributions{job.id(), {id}, reason});
  }
  s.Log(job.id(), Severity::kWarning,
        absl::StrCat("island ", id.island, ": contribution from version ", id.base_version, " (",
                     record.tokens, " ", TokenUnit(job), ") is dropped: ", reason));
}

IslandRecord* CurrentIsland(State& s, const Worker& worker, const JobId& job_id, IslandId id,
                            Generation generation) {
  Job* job = s.FindJob(job_id);
  if (job == nullptr || !job->active() || job->stale()) return nullptr;
  auto it = job->islands.find(id);
  if (it == job->islands.end() || it->second.worker != worker.record.name ||
      it->second.incarnation != worker.record.incarnation || it->second.generation != generation) {
    return nullptr;
  }
  return &it->second;
}

std::string WhyStopped(const Job* job) {
  return job == nullptr ? "the coordinator does not know this job"
                        : absl::StrCat(Name(job->progress.state), ": ", job->progress.reason);
}

void OnHeartbeat(State& s, Worker& worker, const WorkerHeartbeat& message) {
  const std::optional<IslandProgress>& progress = message.progress;
  TouchAffectedByHeartbeat(s, worker, message);
  worker.has_beaten = true;
  worker.progress = progress;
  s.SetFollowing(worker, message.member);
  worker.measuring = CleanText(message.measuring, 200);
  worker.utilisation = message.utilisation;
  NotePullRates(worker, message.pull_rates);
  NoteUnreached(s, worker, message.unreached);
  OnMemberProgress(s, worker);
  // Most heartbeats change nothing that is stored, and open no job.
  const State::Assignment assignment = s.PeekAssignment(worker);
  const bool reports_assigned_job =
      progress && assignment.job != nullptr && progress->job == assignment.job->id();
  if (progress && !reports_assigned_job) {
    // It still runs a job that has ended, or that it is no part of any more.
    Job* job = s.FindJob(progress->job);
    // About to join it again: what it holds of the job will be of use. Or about to hand over.
    const bool hands_over = IsHandoverPending(job, *progress, worker.record.name);
    // One that this coordinator does not know, or not as it is now, is another coordinator's to
    // end, until the worker is needed here.
    const bool needed = !worker.candidate_for.empty() || assignment.job != nullptr;
    const bool known = job != nullptr && !job->stale();
    const bool mute = worker.candidate_for == progress->job || worker.spare_for == progress->job ||
                      hands_over || (!known && !needed) ||
                      (known && !job->ended() && !job->active());
    if (hands_over) ResendMemberOrder(s, *job, worker.record.name);
    if (!mute) {
      const bool ended = job == nullptr || job->ended();
      StopReported<IslandOrder>(
          s, worker, *progress,
          ended ? WhyStopped(job) : "this worker is not one of the job's islands");
    }
  }
  if (Job* job = worker.spare_for.empty() ? nullptr : s.FindJob(worker.spare_for)) {
    if (job->spare) OnSpareHeartbeat(s, *job, worker);
  }
  if (assignment.job == nullptr) return;
  if (!assignment.leads) return ResendMemberOrder(s, *assignment.job, worker.record.name);
  IslandRecord& island = assignment.job->islands.at(assignment.island);
  const bool current = reports_assigned_job && progress->island == assignment.island &&
                       progress->generation == island.generation;
  auto sent = assignment.job->orders.find(assignment.island);
  const bool behind = !current || (sent != assignment.job->orders.end() &&
                                   progress->seen_sequence < sent->second.sequence);
  if (behind && !assignment.job->stale()) ResendOrder(s, *assignment.job, assignment.island);
  if (!current) return;
  DismissOutsiders(s, *assignment.job, assignment.island);
  NoteExchange(s.now, *assignment.job, assignment.island, *progress);
  NoteProgress(s, *assignment.job, island, *progress);
  const bool becomes_ready = progress->ready && !island.ready;
  if (!becomes_ready && progress->saved.empty()) return;
  Job& job = *s.jobs.Find(assignment.job->record.number);
  NoteSavedStates(job, island, *progress);
  if (becomes_ready) {
    job.EditIsland(assignment.island).ready = true;
    s.Log(job.id(), Severity::kInfo,
          absl::StrCat("island ", assignment.island, " is ready at version ",
                       progress->base_version));
  }
}

void OnLeaseRequest(State& s, Worker& worker, const LeaseRequest& message) {
  IslandRecord* current = CurrentIsland(s, worker, message.job, message.island, message.generation);
  if (current == nullptr || message.request < current->lease_request) return;
  Job& job = *s.FindJob(message.job);
  s.Touch(job);
  const bool repeated = message.request == current->lease_request;
  const bool runs_out = IsRunningOut(s, job, *current);  // it pushes what it has trained, and ends
  LeaseGrant grant{message.job, message.island, message.generation, message.request, {}, false};
  if (repeated && !current->lease_ranges.empty()) {
    grant.ranges = current->lease_ranges;
  } else {
    if (job.progress.version == kNoVersion) return;
    if (job.progress.state != JobState::kRunning && job.progress.state != JobState::kFinishing) {
      return;
    }
    const int64_t axis = FindDataAxis(job.spec(), worker);
    if (axis < 0) return;
    const int64_t steps = std::max(GetStepsPerRound(job), current->steps_this_round);
    const int64_t most = 8 * steps * job.spec().inner.batch_sequences;
    const int64_t wanted = std::min(message.wanted, most - job.ledger->Leased(message.island));
    IslandRecord& island = job.EditIsland(message.island);
    island.lease_request = message.request;
    island.lease_ranges.clear();
    if (!runs_out) {
      island.lease_ranges = job.ledger->Lease(message.island, wanted, kLeaseRangesMax, axis);
    }
    grant.ranges = island.lease_ranges;
  }
  grant.exhausted = runs_out || job.ledger->free() == 0;
  s.Send(worker, std::move(grant));
}

void SendFencesTo(State& s, Job& job, const NodeId& server) {
  FenceIslands fences{job.id(), {}};
  for (const auto& [id, island] : job.islands) {
    fences.islands.push_back({id, island.generation, island.author});
  }
  if (!fences.islands.empty()) s.SendToServer(server, std::move(fences));
}

bool IsActive(const Job& job, const IslandRecord& island) {
  if (island.incarnation == 0 || !island.ready) return false;
  if (job.ledger->free() > 0 || job.ledger->Leased(island.island) > 0) return true;
  return job.rounds.HasContribution(
      island.island, [&](const ContributionId& id) { return id.generation == island.generation; });
}

int64_t ActiveIslands(const Job& job) {
  return std::count_if(job.islands.begin(), job.islands.end(),
                       [&](const auto& entry) { return IsActive(job, entry.second); });
}

}  // namespace atl::coord

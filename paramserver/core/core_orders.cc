// What the coordinator says, and what the server does about it.

#include <algorithm>
#include <limits>
#include <utility>

#include "common/protocol/mark_file.h"
#include "common/protocol/outer_optimizer.h"
#include "paramserver/core/core.h"
#include "paramserver/core/turn.h"

namespace atl::ps {
namespace {

bool SameAssignment(const AssignShards& a, const AssignShards& b) {
  return a.shards == b.shards && a.outer_learning_rate == b.outer_learning_rate &&
         a.outer_momentum == b.outer_momentum &&
         a.snapshot_every_rounds == b.snapshot_every_rounds && a.definition == b.definition;
}

bool HasTerm(const CommittedRecord& commit, const ContributionId& contribution) {
  return std::any_of(commit.terms.begin(), commit.terms.end(),
                     [&](const RoundTerm& term) { return term.contribution == contribution; });
}

std::vector<ContributionId> ListContributions(const std::vector<RoundTerm>& terms) {
  std::vector<ContributionId> contributions;
  for (const RoundTerm& term : terms) contributions.push_back(term.contribution);
  return contributions;
}

}  // namespace

void ServerCore::On(const FromCoordinator& event, Turn& turn) {
  const ToServer& to = event.message;
  if (to.server != options_.name || to.incarnation != options_.incarnation ||
      !IsForThisServer(to, turn)) {
    return;
  }
  std::visit([&](const auto& message) { Execute(message, turn); }, to.message);
}

// Whether the coordinator is the one that this server follows; its first Welcome makes it so.
bool ServerCore::IsForThisServer(const ToServer& to, Turn& turn) {
  if (!mark_.cluster.empty() && to.cluster != mark_.cluster) {
    const std::string text = ForeignClusterText(mark_.cluster, to.cluster);
    if (!welcomed_ && std::exchange(refused_, text) != text) turn.actions.notes.push_back(text);
    return false;
  }
  if (to.epoch < mark_.epoch) return false;
  if (std::holds_alternative<Refused>(to.message)) return true;  // no order
  mark_.epoch = to.epoch;
  mark_.sequence = std::max(mark_.sequence, to.sequence);
  if (std::holds_alternative<Welcome>(to.message)) {
    refused_.clear();
    mark_.cluster = to.cluster;
    remember_at_ = turn.now;
  } else if (remember_at_ == kNever && mark_ != remembered_ && !mark_.cluster.empty()) {
    remember_at_ = turn.now + kRememberInterval;
  }
  return true;
}

void ServerCore::Execute(const Welcome& message, Turn& turn) {
  if (!connected_ || welcomed_) return;
  welcomed_ = true;
  next_hello_ = kNever;
  heartbeat_interval_ = std::clamp<Duration>(
      message.heartbeat_interval, std::chrono::milliseconds(10), std::chrono::minutes(1));
  next_heartbeat_ = turn.now + heartbeat_interval_;
}

void ServerCore::Execute(const Refused& message, Turn& turn) {
  if (message.final) turn.actions.stop = message.reason;
  turn.actions.notes.push_back(absl::StrCat("the coordinator refuses: ", message.reason));
  // It has given us up (a silence, a restart) though the stream still stands: begin anew.
  if (!message.final && connected_ && welcomed_) SendHello(turn);
}

absl::Status ServerCore::RoomFor(const AssignShards& assignment) const {
  int64_t others = 0;
  size_t count = 0;
  std::string names;
  for (const auto& [id, job] : jobs_) {
    if (job.state == nullptr || id == assignment.job) continue;
    others += job.state->parameter_bytes();
    if (++count <= 8) absl::StrAppend(&names, names.empty() ? "" : ", ", id);
  }
  const int64_t parameters = JobState::ParameterBytes(assignment);
  const OuterSpec& outer = assignment.definition.spec.outer;
  const int64_t elements = parameters / ServerBytesPerElement(outer);
  const int64_t staged = elements * ServerPeakBytesPerElement(outer) - parameters;
  if (parameters <= options_.memory_bytes - others - staged) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("server ", options_.name, " has no room for the job: ", parameters,
                   " bytes of parameters and outer optimizer state and ", staged,
                   " for what a round stages are needed, ", options_.memory_bytes - others,
                   " of --memory-bytes ", options_.memory_bytes, " are free",
                   names.empty() ? "" : "; jobs held: ", names));
}

void ServerCore::Execute(const AssignShards& message, Turn& turn) {
  if (HasLeft(message.job, message.definition.placement)) return;
  if (const auto found = jobs_.find(message.job);
      found != jobs_.end() && found->second.state == nullptr) {
    return Fault(message.job, found->second.removing ? "it is being removed" : found->second.damage,
                 turn);
  }
  absl::Status status = JobState::Check(message);
  if (status.ok()) status = RoomFor(message);
  const bool known = jobs_.contains(message.job);
  if (status.ok() && !known && jobs_.size() >= kMaxJobs) {
    status = absl::ResourceExhaustedError(
        absl::StrCat("server ", options_.name, " holds ", kMaxJobs, " jobs already"));
  }
  // A late one: the shards have moved since.
  if (known && message.definition.placement < jobs_[message.job].state->placement()) return;
  if (status.ok() && known) {
    status = jobs_[message.job].state->Check(LogRecord(AssignedRecord{mark_.epoch, message}));
  }
  if (!status.ok()) return Fault(message.job, std::string(status.message()), turn);

  Job& job = jobs_[message.job];
  if (!known) job.state = std::make_unique<JobState>(message.job, pool_);
  JobState& state = *job.state;
  const bool changed = !state.assigned() || !SameAssignment(state.assignment(), message);
  // New rates must not get before a round that was logged under the old ones; it comes again.
  if (changed && job.committing) return;
  if (!state.ended() && (changed || state.epoch() < mark_.epoch)) {
    AssignedRecord record{mark_.epoch, message};
    record.assignment.forwards.clear();
    const LogSequence sequence = Append(message.job, job, record, turn);
    state.Apply(sequence, record);
    // The staged pushes of shards that have left are lost, even if the shards come back.
    std::erase_if(job.announced,
                  [&](const auto& entry) { return !state.HasShard(entry.first.shard); });
    job.statistics.reset();
    job.gathering.reset();
    gate_->SetLedger(message.job, state.ledger());
    UpdateRoom();
    MaybeSnapshot(job, turn);
  }
  SetForwards(message, job, turn);
  Say(ShardsAssigned{message.job, message.definition.placement}, turn);
}

void ServerCore::Execute(const FenceIslands& message, Turn& turn) {
  Job* job = Usable(message.job);
  if (job == nullptr) return;
  FencedRecord record{message.islands};
  if (const absl::Status status = job->state->Check(LogRecord(record)); !status.ok()) {
    return Fault(message.job, std::string(status.message()), turn);
  }
  const auto fences_before = job->state->ledger()->Fences();
  job->state->Apply(0, record);
  const auto same = [](const IslandFence& a, const IslandFence& b) {
    return a.island == b.island && a.generation == b.generation && a.incarnation == b.incarnation;
  };
  const auto fences = job->state->ledger()->Fences();
  if (!std::equal(fences.begin(), fences.end(), fences_before.begin(), fences_before.end(), same)) {
    Append(message.job, *job, std::move(record), turn);
  }
}

void ServerCore::Execute(const CollectStatistics& message, Turn& turn) {
  Job* job = Usable(message.job);
  if (job == nullptr || job->state->ended() || message.version != job->state->version() + 1) return;
  Known(message.contributions, *job);
  // A request from before the coordinator dropped one of them.
  const PushLedger& ledger = *job->state->ledger();
  if (std::any_of(message.contributions.begin(), message.contributions.end(),
                  [&](const ContributionId& id) { return ledger.IsDecided(id); })) {
    return;
  }
  const auto same = [&](Version version, const auto& contributions, const auto& shards) {
    return version == message.version && contributions == message.contributions &&
           shards == message.shards;
  };
  const std::optional<Statistics>& made = job->statistics;
  if (made && same(made->version, made->contributions, made->shards)) return Say(*made, turn);
  const std::optional<Gathering>& making = job->gathering;
  if (making && same(making->version, making->sum.contributions, making->sum.shards)) return;
  job->statistics.reset();
  job->gathering = {message.version, {message.version, message.contributions, message.shards}};
}

void ServerCore::Execute(const CommitRound& message, Turn& turn) {
  Job* job = Usable(message.job);
  if (job == nullptr) return;
  const Version current = job->state->version();
  if (message.version >= 0 && message.version <= current) {
    return Say(RoundApplied{message.job, message.version}, turn);
  }
  // A gap: the coordinator sees our version in heartbeats and sends what is missing first.
  if (message.version != current + 1) return;
  if (job->committing) {
    if (job->committing->terms != message.terms || job->committing->step != message.step) {
      Fault(message.job,
            absl::StrCat("two different decisions for round ", message.version, " have arrived"),
            turn);
    }
    return;
  }
  Known(ListContributions(message.terms), *job);
  CommittedRecord record{message.version, message.terms, message.dropped, message.image,
                         message.step};
  std::erase_if(record.dropped, [&](const auto& id) { return HasTerm(record, id); });
  if (const absl::Status status = job->state->Check(LogRecord(record)); !status.ok()) {
    return Fault(message.job, std::string(status.message()), turn);
  }
  job->gathering.reset();
  job->committing_sequence = Append(message.job, *job, record, turn);
  job->committing = std::move(record);
  PushContributionParts(message.job, *job, turn);  // they may be over
}

void ServerCore::Execute(const DropContributions& message, Turn& turn) {
  Job* job = Usable(message.job);
  if (job == nullptr || job->state->ended()) return;
  DroppedRecord record{message.contributions};
  std::erase_if(record.contributions, [&](const ContributionId& id) {
    return job->state->ledger()->IsDecided(id) ||
           (job->committing && HasTerm(*job->committing, id));
  });
  if (record.contributions.empty()) return;
  const LogSequence sequence = Append(message.job, *job, record, turn);
  job->state->Apply(sequence, record);
  job->gathering.reset();  // requested again without them
  Known(record.contributions, *job);
  UpdateRoom();
  turn.actions.notes.push_back(absl::StrCat("job ", message.job, ": ", record.contributions.size(),
                                            " contributions dropped: ", message.reason));
}

void ServerCore::Execute(const EndJob& message, Turn& turn) {
  Job* job = Usable(message.job);
  if (job == nullptr || job->state->ended()) return;
  if (job->committing) {
    job->end_after_commit = true;
    return;
  }
  End(message.job, *job, turn);
  MaybeSnapshot(*job, turn);
}

// Readers that are being served keep what they read until they have it.
bool ServerCore::HasLeft(const JobId& job, int64_t placement) const {
  const auto left = left_.find(job);
  return left != left_.end() && placement < left->second;
}

void ServerCore::Leave(const JobId& job, int64_t placement) {
  if (!left_.contains(job)) left_order_.push_back(job);
  int64_t& newest = left_[job];
  newest = std::max(newest, placement > 0 ? placement : std::numeric_limits<int64_t>::max());
  if (left_order_.size() <= kLeftMax) return;
  left_.erase(left_order_.front());
  left_order_.pop_front();
}

void ServerCore::Execute(const RemoveJob& message, Turn& turn) {
  const auto found = jobs_.find(message.job);
  if (found == jobs_.end()) {
    Leave(message.job, message.placement);
    return Say(JobRemoved{message.job, message.placement}, turn);
  }
  if (found->second.removing) return;
  const bool again = message.placement > 0 && found->second.state != nullptr &&
                     found->second.state->placement() >= message.placement;
  if (again) return;  // a late one: it has a part in the job again
  for (const auto& [sequence, push] : found->second.pending) {
    Acknowledge(push.waiting, PushStatus::kRefused, "the job is removed", turn);
  }
  const bool damaged = found->second.state == nullptr;
  if (message.placement > 0 && damaged) return;  // the job goes on without it: it is kept
  Leave(message.job, message.placement);
  gate_->RemoveLedger(message.job);
  found->second = Job();
  found->second.removing = true;
  found->second.removed_at = message.placement;
  UpdateRoom();
  turn.actions.erasures.push_back({message.job});
  turn.actions.notes.push_back(absl::StrCat("job ", message.job, ": removed"));
}

void ServerCore::Execute(const DescribeJob& message, Turn& turn) {
  const Job* job = Usable(message.job);
  if (job == nullptr) return;
  const CommittedRecord& newest = job->state->newest();
  Say(JobDescribed{Held(message.job, *job),
                   job->state->assignment(),
                   {message.job, newest.version, newest.terms, newest.dropped, newest.image,
                    newest.step}},
      turn);
}

void ServerCore::On(const JobErased& event, Turn& turn) {
  const auto found = jobs_.find(event.job);
  if (found == jobs_.end() || !found->second.removing) return;
  const int64_t placement = found->second.removed_at;
  const bool begins_anew = found->second.put_aside;
  jobs_.erase(found);
  if (begins_anew) return;
  Say(JobRemoved{event.job, placement}, turn);
}

void ServerCore::On(const EraseFailed& event, Turn& turn) {
  const std::string reason = absl::StrCat("cannot be removed yet: ", event.reason);
  turn.actions.notes.push_back(absl::StrCat("job ", event.job, ": ", reason));
  Say(ServerFault{event.job, reason, /*passing=*/true}, turn);
}

void ServerCore::End(const JobId& id, Job& job, Turn& turn) {
  job.gathering.reset();
  const LogSequence sequence = Append(id, job, EndedRecord{}, turn);
  job.state->Apply(sequence, EndedRecord{});
  job.announced.clear();
  job.next_announcement = kNever;
  UpdateRoom();
  turn.actions.notes.push_back(
      absl::StrCat("job ", id, ": ended at version ", job.state->version()));
}

// The coordinator knows these contributions; their staging is not announced again.
void ServerCore::Known(const std::vector<ContributionId>& contributions, Job& job) {
  std::erase_if(job.announced, [&](const auto& entry) {
    return std::find(contributions.begin(), contributions.end(), ToContributionId(entry.first)) !=
           contributions.end();
  });
  if (job.announced.empty()) job.next_announcement = kNever;
}

}  // namespace atl::ps

#include "paramserver/core/job_driver.h"

#include <algorithm>
#include <utility>

#include "kernels/deltas.h"

namespace atl::ps {
namespace {

// A push is announced to the coordinator again after these pauses, doubling.
constexpr Duration kAnnounceFirst = kRetryInterval;
constexpr Duration kAnnounceLast = 16 * kRetryInterval;

constexpr size_t kMaxWaiting = 16;  // requests that wait for the same push to be durable

std::shared_ptr<SharedTensor> GetPullTensor(const JobState& state, const PullArrived& event) {
  if (event.slot > 0) return state.Slot(event.shard, static_cast<size_t>(event.slot - 1));
  if (event.slot == kPullAverage) return state.Average(event.shard);
  return event.slot == kPullTheta ? state.Theta(event.shard) : state.Served(event.shard);
}

}  // namespace

bool Retry::Fail(Instant now, const std::string& why) {
  at = now + kRetryInterval;
  return std::exchange(trouble, why) != why;
}

JobDriver* Server::Find(const JobId& job) const {
  const auto found = jobs.find(job);
  return found == jobs.end() ? nullptr : found->second.get();
}

Token Server::Begin(Transfer transfer) {
  transfers[next_transfer] = std::move(transfer);
  return next_transfer++;
}

int64_t Server::HeldBytes() const {
  int64_t bytes = 0;
  for (const auto& [id, job] : jobs) {
    bytes += job->state().parameter_bytes() + job->state().staged_bytes();
  }
  return bytes;
}

absl::Status Server::CheckFree(int64_t needed, absl::string_view what) const {
  const int64_t free = options.memory_bytes - HeldBytes();
  if (needed <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "server ", options.name, " has no room for ", what, ": ", needed, " bytes are needed, ", free,
      " of --memory-bytes ", options.memory_bytes, " are free"));
}

JobDriver::JobDriver(Server* server, RecoveredJob recovered)
    : server_(server),
      is_published_(recovered.state != nullptr),
      state_(recovered.state != nullptr ? std::move(recovered.state)
                                        : std::make_unique<JobState>(recovered.job, server->pool)),
      next_sequence_(recovered.next_sequence),
      synced_(recovered.next_sequence - 1),
      snapshot_version_(recovered.snapshot_version),
      snapshot_replay_from_(recovered.snapshot_replay_from),
      snapshot_ended_(recovered.snapshot_ended) {}

HeldJob JobDriver::Describe() const {
  HeldJob held{id(), state_->version(), snapshot_version_, {}};
  held.ended = state_->ended();
  held.placement = state_->placement();
  held.shards = state_->ShardsHere(/*filled=*/false);
  held.filled = state_->ShardsHere(/*filled=*/true);
  for (const IslandFence& fence : state_->ledger().Fences()) {
    held.generation = std::max(held.generation, fence.generation);
  }
  for (const PushId& push : state_->Staged()) {
    const bool pending = std::any_of(pending_.begin(), pending_.end(),
                                     [&](const auto& entry) { return entry.second.id == push; });
    if (!pending) held.staged.push_back(push);
  }
  return held;
}

void JobDriver::PublishLedger(Turn& turn) {
  std::vector<LedgerChange> changes = state_->TakeLedgerChanges();
  if (changes.empty()) return;
  if (!std::exchange(is_published_, true)) {
    turn.actions.gate.push_back({id(), state_->ledger()});
    return;
  }
  for (LedgerChange& change : changes) turn.actions.gate.push_back({id(), std::move(change)});
}

void JobDriver::OnHello(Turn& turn) {
  if (!log_full_.empty()) next_fault_ = turn.now;
}

void JobDriver::DoDue(Turn& turn) {
  const Instant now = turn.now;
  if (turn.connected && now >= next_fault_) {
    turn.Say(ServerFault{id(), log_full_, /*passing=*/true});
    next_fault_ = now + kRetryInterval;
  }
  if (turn.connected && now >= next_announcement_) {
    next_announcement_ = kNever;
    for (auto& [push, announced] : announced_) {
      if (now >= announced.next_send) {
        turn.Say(PushStaged{push});
        announced.next_send = now + announced.interval;
        announced.interval = std::min(2 * announced.interval, kAnnounceLast);
      }
      next_announcement_ = std::min(next_announcement_, announced.next_send);
    }
  }
  if (now >= next_snapshot_try_) MaybeSnapshot(turn);
  if (now >= receive_retry_.at) Receive(turn);
  if (now >= forward_retry_.at) ForwardStaged(turn);
  if (now >= base_retry_.at) FetchBaseParts(turn);
  if (contributing_ && now >= contributing_->retry.at) PushContributionParts(turn);
}

Instant JobDriver::NextDeadline(bool connected) const {
  Instant next =
      std::min({next_snapshot_try_, receive_retry_.at, forward_retry_.at, base_retry_.at});
  if (connected) next = std::min({next, next_fault_, next_announcement_});
  return contributing_ ? std::min(next, contributing_->retry.at) : next;
}

void JobDriver::RefusePending(Turn& turn) {
  for (const auto& [sequence, push] : pending_) {
    Acknowledge(push.waiting, PushStatus::kRefused, "the job is removed", turn);
  }
}

// ------------------------------------------------------------------------------ the storage ----

LogSequence JobDriver::Append(LogRecord record, Turn& turn) {
  const LogSequence sequence = next_sequence_++;
  if (const auto* push = std::get_if<PushedRecord>(&record)) {
    log_bytes_ += static_cast<int64_t>(push->payload.bytes.size());
  } else if (const auto* part = std::get_if<ReceivedRecord>(&record);
             part != nullptr && part->part == ReceivedPart::kAdopted) {
    log_bytes_ += static_cast<int64_t>(part->payload.bytes.size());
  }
  turn.actions.log.push_back({id(), sequence, std::move(record)});
  return sequence;
}

LogSequence JobDriver::Take(const LogRecord& record, Turn& turn) {
  const LogSequence sequence = Append(record, turn);
  state_->Apply(sequence, record);
  return sequence;
}

void JobDriver::On(const LogSynced& event, Turn& turn) {
  if (!log_full_.empty()) {
    turn.Note(id(), "its log is written again");
    log_full_.clear();
    next_fault_ = kNever;
  }
  while (!pending_.empty() && pending_.begin()->first <= event.sequence) {
    const Pending push = std::move(pending_.extract(pending_.begin()).mapped());
    if (!state_->HasShard(push.id.shard)) {
      Acknowledge(push.waiting, PushStatus::kRefused, "the shard has moved", turn);
      continue;
    }
    state_->MarkDurable(push.id);
    if (state_->ledger().IsDecided(ToContributionId(push.id))) {
      Acknowledge(push.waiting, PushStatus::kDuplicate, "", turn);
      continue;
    }
    Acknowledge(push.waiting, PushStatus::kStaged, "", turn);
    Announce(push.id, turn);
    if (forwards_.contains(push.id.shard)) to_forward_.insert(push.id);
  }
  synced_ = std::max(synced_, event.sequence);
  while (!fills_.empty() && fills_.begin()->first <= event.sequence) {
    Acknowledge(fills_.begin()->second, PushStatus::kStaged, "", turn);
    fills_.erase(fills_.begin());
  }
  if (committing_ && committing_sequence_ <= event.sequence) applying_ = true;
  ForwardStaged(turn);
  Receive(turn);
  FetchBaseParts(turn);
}

void JobDriver::On(const LogFailed& event, Turn& turn) {
  if (log_full_.empty()) {
    turn.Note(id(), event.reason);
    next_fault_ = turn.now;
  }
  log_full_ = event.reason;
}

// Returns whether the log since the newest snapshot, with another round like the last one, would
// have more than half of the state's bytes: it is kept from the snapshot before on, and two
// snapshots besides it (docs/decisions/parameter-server-storage.md).
bool JobDriver::IsLogLong() {
  const JobState& state = *state_;
  if (state.version() != measured_version_) {
    measured_version_ = state.version();
    round_bytes_ = log_bytes_ - std::exchange(measured_bytes_, log_bytes_);
  }
  return log_bytes_ > server_->options.log_bytes_free &&
         log_bytes_ + round_bytes_ > state.parameter_bytes() / 2;
}

void JobDriver::MaybeSnapshot(Turn& turn) {
  next_snapshot_try_ = kNever;
  // While a commit is on its way to the disk the state lags behind the log.
  if (snapshot_running_ != nullptr || committing_) return;
  const JobState& state = *state_;
  if (!state.assigned() || state.version() == kNoVersion) return;
  const int64_t every = state.assignment().snapshot_every_rounds;
  const Version rounds = state.version() - snapshot_version_;
  const bool due = state.ended() ? !snapshot_ended_
                                 : (every > 0 && rounds >= every) || (rounds > 0 && IsLogLong());
  if (!due) return;
  snapshot_running_ = state.TakeSnapshot(next_sequence_ - 1);
  snapshot_log_bytes_ = std::exchange(log_bytes_, 0);
  measured_bytes_ -= snapshot_log_bytes_;
  // The newest snapshot and its log stay while this one is written, the one before it does not:
  // three would be on the disk.
  turn.actions.truncations.push_back({snapshot_running_->job, snapshot_replay_from_});
  turn.actions.snapshots.push_back({snapshot_running_});
}

void JobDriver::On(const SnapshotDone& event, Turn& turn) {
  if (snapshot_running_ == nullptr || snapshot_running_->version != event.version) return;
  const auto written = std::exchange(snapshot_running_, nullptr);
  if (!event.status.ok()) {
    const std::string reason =
        absl::StrCat("snapshot of version ", event.version, ": ", event.status.message());
    turn.Fault(id(), reason, /*passing=*/true);
    log_bytes_ += snapshot_log_bytes_;
    measured_bytes_ += snapshot_log_bytes_;
    next_snapshot_try_ = turn.now + kSnapshotRetry;
    return;
  }
  snapshot_version_ = event.version;
  snapshot_replay_from_ = written->replay_from;
  snapshot_ended_ = written->ended;
  MaybeSnapshot(turn);
}

// --------------------------------------------------------------------------- pushes and pulls ----

void JobDriver::On(const PushArrived& event, Turn& turn) {
  const auto refuse = [&](std::string reason) { turn.Refuse(event.token, std::move(reason)); };
  if (IsFill(event.id.base_version)) return TakeFill(event, turn);
  if (!state_->assigned()) return refuse(NotAssigned(id()));
  const int64_t bytes = static_cast<int64_t>(event.payload.bytes.size());
  if (!IsEncoding(static_cast<int>(event.encoding))) return refuse("unknown encoding");
  const Verdict verdict = state_->ledger().Judge(event.id, event.elements);
  switch (verdict.kind) {
    case Verdict::kRefuse:
      return refuse(verdict.reason);
    case Verdict::kDuplicate:
      turn.actions.pushes.push_back({event.token, PushStatus::kDuplicate, ""});
      return;
    case Verdict::kPending:
      for (auto& [sequence, push] : pending_) {
        if (push.id != event.id) continue;
        if (push.waiting.size() >= kMaxWaiting) return refuse("this push is being written");
        push.waiting.push_back(event.token);
      }
      return;
    case Verdict::kTake:
      break;
  }
  if (bytes != EncodedBytes(event.encoding, event.elements)) {
    return refuse(absl::StrCat(event.elements, " elements are not ", bytes, " bytes so encoded"));
  }
  const DeltaView view{event.payload.bytes.data(), event.encoding, event.elements};
  if (const absl::Status numbers = CheckDelta(view); !numbers.ok()) {
    return refuse(std::string(numbers.message()));
  }
  const LogRecord record = PushedRecord{event.id, event.encoding, event.payload};
  if (const absl::Status fits = state_->Check(record); !fits.ok()) {
    return refuse(std::string(fits.message()));
  }
  if (!log_full_.empty()) return refuse(log_full_);
  const int64_t needed = state_->BytesToStage(event.id, event.encoding);
  if (const absl::Status room = server_->room.Check(needed); !room.ok()) {
    return refuse(std::string(room.message()));
  }
  pending_[Take(record, turn)] = {event.id, {event.token}};
}

void JobDriver::Announce(const PushId& push, Turn& turn) {
  if (!state_->HasShard(push.shard)) return;  // it has left while the record was written
  announced_[push] = {turn.now + kAnnounceFirst, 2 * kAnnounceFirst};
  next_announcement_ = std::min(next_announcement_, turn.now + kAnnounceFirst);
  turn.Say(PushStaged{push});
}

void JobDriver::Acknowledge(const std::vector<Token>& tokens, PushStatus status,
                            const std::string& reason, Turn& turn) {
  for (const Token token : tokens) turn.actions.pushes.push_back({token, status, reason});
}

void JobDriver::On(const PullArrived& event, Turn& turn) const {
  const auto refuse = [&](PullRefusal refusal, Version current, std::string reason) {
    turn.actions.refusals.push_back({event.token, refusal, current, std::move(reason)});
  };
  if (!state_->HasShard(event.shard)) {
    return refuse(
        PullRefusal::kUnknown, kNoVersion,
        absl::StrCat("shard ", event.shard, " of job ", event.job, " is not on this server"));
  }
  const JobState& state = *state_;
  const Version current = state.version();
  if (current == kNoVersion || event.version > current) {
    return refuse(PullRefusal::kNotYet, current,
                  absl::StrCat("version ", event.version, " is not there yet"));
  }
  if (event.version != kNoVersion && event.version < current) {
    return refuse(PullRefusal::kSuperseded, current,
                  absl::StrCat("version ", event.version, " was replaced by ", current));
  }
  if (state.stale_bytes() > state.parameter_bytes()) {
    return refuse(PullRefusal::kNotYet, current,
                  "too many older versions are still being sent; retry later");
  }
  if (state.IsStepped(event.shard)) {
    return refuse(PullRefusal::kNotYet, current,
                  absl::StrCat("version ", current + 1, " is being made"));
  }
  std::span<const float> values;
  std::shared_ptr<const void> owner;
  if (event.slot == kPullStep || event.slot == kPullMoments) {
    const auto step = event.slot == kPullStep ? state.EncodedStep(event.shard)
                                              : state.EncodedMoments(event.shard);
    if (step != nullptr) values = *step;
    owner = step;
  } else if (const auto tensor = GetPullTensor(state, event); tensor != nullptr) {
    const auto lease = std::make_shared<const TensorLease>(tensor);
    values = lease->values();
    owner = lease;
  }
  if (owner == nullptr) {
    return refuse(PullRefusal::kUnknown, current,
                  absl::StrCat("job ", event.job, " has ended, or nothing is kept as slot ",
                               event.slot, " of its shards"));
  }
  if (event.elements > 0) {
    const auto size = static_cast<int64_t>(values.size());
    if (event.begin < 0 || event.elements > size || event.begin > size - event.elements) {
      return refuse(
          PullRefusal::kUnknown, current,
          absl::StrCat("shard ", event.shard, " of job ", event.job, " has ", size,
                       " elements, not ", event.begin, " to ", event.begin + event.elements));
    }
    values = values.subspan(static_cast<size_t>(event.begin), static_cast<size_t>(event.elements));
  }
  turn.actions.replies.push_back({event.token, current, values, std::move(owner)});
}

// ------------------------------------------------------------------------------- arithmetic ----

// A part in each Step without an event: a server of billions of parameters sends its heartbeats and
// takes pushes meanwhile. Nothing of it is seen before all is done.
void JobDriver::Work(Turn& turn) {
  if (applying_) {
    if (state_->ApplyPart(*committing_, server_->options.work_elements)) FinishCommit(turn);
    return;
  }
  Gathering& gathering = *gathering_;
  const absl::StatusOr<bool> done =
      state_->AddToGram(gathering.sum, server_->options.work_elements);
  if (done.ok() && !*done) return;
  if (done.ok()) {
    Statistics& made = statistics_.emplace();
    made = {id(),
            gathering.version,
            std::move(gathering.sum.contributions),
            {},
            std::move(gathering.sum.shards),
            {gathering.sum.unfit.begin(), gathering.sum.unfit.end()}};
    for (auto& [layer, values] : gathering.sum.by_layer) {
      made.layers.push_back({layer, std::move(values)});
    }
    turn.Say(made);
  } else {
    turn.Fault(id(), absl::StrCat("statistics of round ", gathering.version, ": ",
                                  done.status().message()));
  }
  gathering_.reset();
}

void JobDriver::FinishCommit(Turn& turn) {
  const CommittedRecord commit = *std::exchange(committing_, std::nullopt);
  applying_ = false;
  statistics_.reset();
  Known(commit.dropped);
  turn.Say(RoundApplied{id(), commit.version});
  FetchBaseParts(turn);
  if (std::exchange(end_after_commit_, false)) End(turn);
  MaybeSnapshot(turn);
}

}  // namespace atl::ps

#include "paramserver/core/core.h"

#include <algorithm>
#include <utility>

#include "kernels/deltas.h"
#include "paramserver/core/turn.h"

namespace atl::ps {
namespace {

// A push is announced to the coordinator again after these pauses, doubling.
constexpr Duration kAnnounceFirst = kRetryInterval;
constexpr Duration kAnnounceLast = 16 * kRetryInterval;

constexpr size_t kMaxWaiting = 16;  // requests that wait for the same push to be durable

}  // namespace

ServerCore::ServerCore(ServerOptions options, std::vector<RecoveredJob> recovered, ThreadPool* pool)
    : options_(std::move(options)),
      pool_(pool),
      gate_(std::make_shared<PushGate>()),
      mark_(options_.mark),
      remembered_(options_.mark) {
  for (RecoveredJob& from : recovered) {
    Job& job = jobs_[from.job];
    job.damage = std::move(from.damage);
    job.next_sequence = from.next_sequence;
    job.snapshot_version = from.snapshot_version;
    job.snapshot_replay_from = from.snapshot_replay_from;
    job.snapshot_ended = from.snapshot_ended;
    job.synced = from.next_sequence - 1;
    job.state = std::move(from.state);
    if (job.state == nullptr) continue;
    mark_.epoch = std::max(mark_.epoch, job.state->epoch());
    gate_->SetLedger(from.job, job.state->ledger());
  }
  UpdateRoom();
}

Actions ServerCore::Step(Instant now, const Event& event) {
  Turn turn{now, {}};
  std::visit([&](const auto& e) { On(e, turn); }, event);
  if (turn.now >= remember_at_) {
    remember_at_ = kNever;
    if (mark_ != remembered_) turn.actions.remember = remembered_ = mark_;
  }
  SendDue(turn);
  turn.actions.next_deadline = HasWork() ? now : NextDeadline();
  return std::move(turn.actions);
}

// ------------------------------------------------------------------------------- the stream ----

void ServerCore::On(const ConnectionUp&, Turn& turn) {
  connected_ = true;
  SendHello(turn);
}

void ServerCore::On(const ConnectionDown&, Turn&) {
  connected_ = welcomed_ = false;
  next_hello_ = next_heartbeat_ = kNever;
}

void ServerCore::On(const Tick& event, Turn& turn) {
  counters_ = event;
  Work(turn);
}

void ServerCore::SendHello(Turn& turn) {
  ServerHello hello{options_.software_version,
                    options_.endpoint,
                    options_.memory_bytes,
                    {},
                    options_.public_key,
                    mark_,
                    options_.site,
                    options_.site_only};
  for (const auto& [id, job] : jobs_) {
    if (job.state != nullptr) hello.jobs.push_back(Held(id, job));
  }
  Say(std::move(hello), turn);
  for (auto& [id, job] : jobs_) {
    if (!job.damage.empty() || !job.log_full.empty()) job.next_fault = turn.now;
  }
  welcomed_ = false;
  next_heartbeat_ = kNever;
  next_hello_ = turn.now + kRetryInterval;
}

HeldJob ServerCore::Held(const JobId& id, const Job& job) const {
  HeldJob held{id, job.state->version(), job.snapshot_version, {}};
  held.ended = job.state->ended();
  held.placement = job.state->placement();
  held.shards = job.state->ShardsHere(/*filled=*/false);
  held.filled = job.state->ShardsHere(/*filled=*/true);
  for (const IslandFence& fence : job.state->ledger()->Fences()) {
    held.generation = std::max(held.generation, fence.generation);
  }
  for (const PushId& push : job.state->Staged()) {
    const bool pending = std::any_of(job.pending.begin(), job.pending.end(),
                                     [&](const auto& entry) { return entry.second.id == push; });
    if (!pending) held.staged.push_back(push);
  }
  return held;
}

void ServerCore::SendHeartbeat(Turn& turn) {
  ServerHeartbeat beat;
  for (const auto& [id, job] : jobs_) {
    if (job.state == nullptr) continue;
    beat.parameter_bytes += job.state->parameter_bytes();
    beat.staged_bytes += job.state->staged_bytes();
    beat.jobs.push_back({id, job.state->version(), job.snapshot_version, {}});
  }
  beat.log_bytes = counters_.log_bytes;
  beat.received_bytes = counters_.received_bytes;
  beat.sent_bytes = counters_.sent_bytes;
  Say(std::move(beat), turn);
  next_heartbeat_ = turn.now + heartbeat_interval_;
}

void ServerCore::Say(ServerMessage message, Turn& turn) {
  if (connected_) turn.actions.to_coordinator.push_back(std::move(message));
}

void ServerCore::Fault(const JobId& id, const std::string& reason, Turn& turn) {
  turn.actions.notes.push_back(absl::StrCat("job ", id, ": ", reason));
  Say(ServerFault{id, reason}, turn);
}

void ServerCore::SendDue(Turn& turn) {
  const Instant now = turn.now;
  if (connected_ && now >= next_hello_) SendHello(turn);
  if (connected_ && welcomed_ && now >= next_heartbeat_) SendHeartbeat(turn);
  for (auto& [id, job] : jobs_) {
    if (connected_ && now >= job.next_fault) {
      Say(ServerFault{id, job.damage.empty() ? job.log_full : job.damage, job.damage.empty()},
          turn);
      job.next_fault = now + kRetryInterval;
    }
    if (connected_ && now >= job.next_announcement) {
      job.next_announcement = kNever;
      for (auto& [push, announced] : job.announced) {
        if (now >= announced.next_send) {
          Say(PushStaged{push}, turn);
          announced.next_send = now + announced.interval;
          announced.interval = std::min(2 * announced.interval, kAnnounceLast);
        }
        job.next_announcement = std::min(job.next_announcement, announced.next_send);
      }
    }
    if (now >= job.next_snapshot_try) MaybeSnapshot(job, turn);
    if (now >= job.next_fetch) Receive(id, job, turn);
    if (now >= job.next_forward) ForwardStaged(job, turn);
    if (now >= job.next_base) FetchBaseParts(id, job, turn);
    if (job.contributing && now >= job.contributing->next_try) PushContributionParts(id, job, turn);
  }
}

Instant ServerCore::NextDeadline() const {
  Instant next = remember_at_;
  if (connected_) next = std::min(next_hello_, next_heartbeat_);
  for (const auto& [id, job] : jobs_) {
    if (connected_) next = std::min({next, job.next_fault, job.next_announcement});
    next = std::min({next, job.next_snapshot_try, job.next_fetch, job.next_forward, job.next_base});
    if (job.contributing) next = std::min(next, job.contributing->next_try);
  }
  return next;
}

// ------------------------------------------------------------------------------ the storage ----

LogSequence ServerCore::Append(const JobId& id, Job& job, LogRecord record, Turn& turn) {
  const LogSequence sequence = job.next_sequence++;
  if (const auto* push = std::get_if<PushedRecord>(&record)) {
    job.log_bytes += static_cast<int64_t>(push->payload.bytes.size());
  } else if (const auto* part = std::get_if<ReceivedRecord>(&record);
             part != nullptr && part->part == ReceivedPart::kAdopted) {
    job.log_bytes += static_cast<int64_t>(part->payload.bytes.size());
  }
  turn.actions.log.push_back({id, sequence, std::move(record)});
  return sequence;
}

void ServerCore::On(const LogSynced& event, Turn& turn) {
  Job* job = Usable(event.job);
  if (job == nullptr) return;
  if (!job->log_full.empty()) {
    turn.actions.notes.push_back(absl::StrCat("job ", event.job, ": its log is written again"));
    job->log_full.clear();
    job->next_fault = kNever;
  }
  while (!job->pending.empty() && job->pending.begin()->first <= event.sequence) {
    const Pending push = std::move(job->pending.extract(job->pending.begin()).mapped());
    if (!job->state->HasShard(push.id.shard)) {
      Acknowledge(push.waiting, PushStatus::kRefused, "the shard has moved", turn);
      continue;
    }
    job->state->MarkDurable(push.id);
    if (job->state->ledger()->IsDecided(ToContributionId(push.id))) {
      Acknowledge(push.waiting, PushStatus::kDuplicate, "", turn);
      continue;
    }
    Acknowledge(push.waiting, PushStatus::kStaged, "", turn);
    Announce(push.id, *job, turn);
    if (job->forwards.contains(push.id.shard)) job->to_forward.insert(push.id);
  }
  job->synced = std::max(job->synced, event.sequence);
  while (!job->fills.empty() && job->fills.begin()->first <= event.sequence) {
    Acknowledge(job->fills.begin()->second, PushStatus::kStaged, "", turn);
    job->fills.erase(job->fills.begin());
  }
  if (job->committing && job->committing_sequence <= event.sequence) job->applying = true;
  ForwardStaged(*job, turn);
  Receive(event.job, *job, turn);
  FetchBaseParts(event.job, *job, turn);
}

void ServerCore::On(const LogFailed& event, Turn& turn) {
  Job* job = Usable(event.job);
  if (job == nullptr) return;
  if (job->log_full.empty()) {
    turn.actions.notes.push_back(absl::StrCat("job ", event.job, ": ", event.reason));
    job->next_fault = turn.now;
  }
  job->log_full = event.reason;
}

// Whether the log since the newest snapshot, with another round like the last one, would have more
// than half of the state's bytes: it is kept from the snapshot before on, and two snapshots besides
// it (docs/decisions/parameter-server-storage.md).
bool ServerCore::IsLogLong(Job& job) const {
  const JobState& state = *job.state;
  if (state.version() != job.measured_version) {
    job.measured_version = state.version();
    job.round_bytes = job.log_bytes - std::exchange(job.measured_bytes, job.log_bytes);
  }
  return job.log_bytes > options_.log_bytes_free &&
         job.log_bytes + job.round_bytes > state.parameter_bytes() / 2;
}

void ServerCore::MaybeSnapshot(Job& job, Turn& turn) {
  job.next_snapshot_try = kNever;
  // While a commit is on its way to the disk the state lags behind the log.
  if (job.state == nullptr || job.snapshot_running != nullptr || job.committing) return;
  const JobState& state = *job.state;
  if (!state.assigned() || state.version() == kNoVersion) return;
  const int64_t every = state.assignment().snapshot_every_rounds;
  const Version rounds = state.version() - job.snapshot_version;
  const bool due = state.ended() ? !job.snapshot_ended
                                 : (every > 0 && rounds >= every) || (rounds > 0 && IsLogLong(job));
  if (!due) return;
  job.snapshot_running = state.TakeSnapshot(job.next_sequence - 1);
  job.snapshot_log_bytes = std::exchange(job.log_bytes, 0);
  job.measured_bytes -= job.snapshot_log_bytes;
  // The newest snapshot and its log stay while this one is written, the one before it does not:
  // three would be on the disk.
  turn.actions.truncations.push_back({job.snapshot_running->job, job.snapshot_replay_from});
  turn.actions.snapshots.push_back({job.snapshot_running});
}

void ServerCore::On(const SnapshotDone& event, Turn& turn) {
  Job* job = Usable(event.job);
  if (job == nullptr || job->snapshot_running == nullptr ||
      job->snapshot_running->version != event.version) {
    return;
  }
  const auto written = std::exchange(job->snapshot_running, nullptr);
  if (!event.status.ok()) {
    const std::string reason =
        absl::StrCat("snapshot of version ", event.version, ": ", event.status.message());
    turn.actions.notes.push_back(absl::StrCat("job ", event.job, ": ", reason));
    Say(ServerFault{event.job, reason, /*passing=*/true}, turn);
    job->log_bytes += job->snapshot_log_bytes;
    job->measured_bytes += job->snapshot_log_bytes;
    job->next_snapshot_try = turn.now + kSnapshotRetry;
    return;
  }
  job->snapshot_version = event.version;
  job->snapshot_replay_from = written->replay_from;
  job->snapshot_ended = written->ended;
  MaybeSnapshot(*job, turn);
}

// --------------------------------------------------------------------------- pushes and pulls ----

void ServerCore::On(const PushArrived& event, Turn& turn) {
  const auto refuse = [&](std::string reason) {
    turn.actions.pushes.push_back({event.token, PushStatus::kRefused, std::move(reason)});
  };
  Job* job = Usable(event.id.job);
  if (job != nullptr && IsFill(event.id.base_version)) return TakeFill(event, *job, turn);
  if (job == nullptr || !job->state->assigned()) {
    return refuse(absl::StrCat("job ", event.id.job, " is not assigned to this server"));
  }
  const int64_t bytes = static_cast<int64_t>(event.payload.bytes.size());
  if (!IsEncoding(static_cast<int>(event.encoding))) return refuse("unknown encoding");
  const Verdict verdict = job->state->ledger()->Judge(event.id, event.elements);
  switch (verdict.kind) {
    case Verdict::kRefuse:
      return refuse(verdict.reason);
    case Verdict::kDuplicate:
      turn.actions.pushes.push_back({event.token, PushStatus::kDuplicate, ""});
      return;
    case Verdict::kPending:
      for (auto& [sequence, push] : job->pending) {
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
  const PushedRecord record{event.id, event.encoding, event.payload};
  if (const absl::Status fits = job->state->Check(LogRecord(record)); !fits.ok()) {
    return refuse(std::string(fits.message()));
  }
  if (!job->log_full.empty()) return refuse(job->log_full);
  const int64_t needed = job->state->BytesToStage(event.id, event.encoding);
  if (const absl::Status room = gate_->CheckRoom(needed); !room.ok()) {
    return refuse(std::string(room.message()));
  }
  StagePush(event, *job, turn);
}

void ServerCore::StagePush(const PushArrived& event, Job& job, Turn& turn) {
  PushedRecord record{event.id, event.encoding, event.payload};
  const LogSequence sequence = Append(event.id.job, job, record, turn);
  job.state->Apply(sequence, std::move(record));
  job.pending[sequence] = {event.id, {event.token}};
  UpdateRoom();
}

void ServerCore::Announce(const PushId& id, Job& job, Turn& turn) {
  if (!job.state->HasShard(id.shard)) return;  // it has left while the record was written
  job.announced[id] = {turn.now + kAnnounceFirst, 2 * kAnnounceFirst};
  job.next_announcement = std::min(job.next_announcement, turn.now + kAnnounceFirst);
  Say(PushStaged{id}, turn);
}

void ServerCore::Acknowledge(const std::vector<Token>& tokens, PushStatus status,
                             const std::string& reason, Turn& turn) {
  for (const Token token : tokens) turn.actions.pushes.push_back({token, status, reason});
}

namespace {

std::shared_ptr<SharedTensor> GetPullTensor(const JobState& state, const PullArrived& event) {
  if (event.slot > 0) return state.Slot(event.shard, static_cast<size_t>(event.slot - 1));
  return event.slot == kPullTheta ? state.Theta(event.shard) : state.Served(event.shard);
}

}  // namespace

void ServerCore::On(const PullArrived& event, Turn& turn) {
  const auto refuse = [&](PullRefusal refusal, Version current, std::string reason) {
    turn.actions.refusals.push_back({event.token, refusal, current, std::move(reason)});
  };
  const Job* job = Usable(event.job);
  if (job == nullptr || !job->state->HasShard(event.shard)) {
    return refuse(
        PullRefusal::kUnknown, kNoVersion,
        absl::StrCat("shard ", event.shard, " of job ", event.job, " is not on this server"));
  }
  const JobState& state = *job->state;
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
  if (event.slot == kPullStep) {
    const auto step = state.EncodedStep(event.shard);
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

// ------------------------------------------------------------------------------------ small ----

ServerCore::Job* ServerCore::Usable(const JobId& id) {
  const auto job = jobs_.find(id);
  return job == jobs_.end() || job->second.state == nullptr ? nullptr : &job->second;
}

void ServerCore::UpdateRoom() {
  int64_t staged = 0, parameters = 0;
  for (const auto& [id, job] : jobs_) {
    if (job.state == nullptr) continue;
    staged += job.state->staged_bytes();
    parameters += job.state->parameter_bytes();
  }
  gate_->SetRoom(staged, std::max<int64_t>(0, options_.memory_bytes - parameters));
}

Version ServerCore::version(const JobId& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() || found->second.state == nullptr ? kNoVersion
                                                                : found->second.state->version();
}

std::vector<float> ServerCore::Parameters(const JobId& job, ShardId shard) const {
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || found->second.state == nullptr) return {};
  const auto theta = found->second.state->Theta(shard);
  if (theta == nullptr) return {};
  return {theta->values().begin(), theta->values().end()};
}

}  // namespace atl::ps

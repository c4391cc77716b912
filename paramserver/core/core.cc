#include "paramserver/core/core.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "common/net/relay/places.h"
#include "common/protocol/outer_optimizer.h"

namespace atl::ps {

ServerCore::ServerCore(ServerOptions options, std::vector<RecoveredJob> recovered, ThreadPool* pool)
    : remembered_(options.mark) {
  server_.mark = options.mark;
  server_.options = std::move(options);
  server_.pool = pool;
  for (RecoveredJob& from : recovered) {
    if (from.state == nullptr) {
      unserved_[from.job].damage = std::move(from.damage);
      continue;
    }
    server_.mark.epoch = std::max(server_.mark.epoch, from.state->epoch());
    const JobId job = from.job;
    server_.jobs[job] = std::make_unique<JobDriver>(&server_, std::move(from));
  }
  UpdateRoom();
}

PushGate ServerCore::MakeGate() const {
  std::vector<GateChange> ledgers;
  for (const auto& [id, job] : server_.jobs) ledgers.push_back({id, job->state().ledger()});
  PushGate gate;
  gate.Apply(std::move(ledgers), server_.room);
  return gate;
}

Actions ServerCore::Step(Instant now, const Event& event) {
  Turn turn{now, connected_};
  std::visit([&](const auto& e) { On(e, turn); }, event);
  if (turn.now >= remember_at_) {
    remember_at_ = kNever;
    if (server_.mark != remembered_) turn.actions.remember = remembered_ = server_.mark;
  }
  SendDue(turn);
  for (const auto& [id, job] : server_.jobs) job->PublishLedger(turn);
  UpdateRoom();
  turn.actions.room = server_.room;
  turn.actions.next_deadline = HasWork() ? now : NextDeadline();
  return std::move(turn.actions);
}

void ServerCore::UpdateRoom() {
  int64_t staged = 0;
  for (const auto& [id, job] : server_.jobs) staged += job->state().staged_bytes();
  const int64_t parameters = server_.HeldBytes() - staged;
  server_.room = {staged, std::max<int64_t>(0, server_.options.memory_bytes - parameters)};
}

// ------------------------------------------------------------------------------- the stream ----

void ServerCore::On(const ConnectionUp&, Turn& turn) {
  turn.connected = connected_ = true;
  SendHello(turn);
}

void ServerCore::On(const ConnectionDown&, Turn& turn) {
  turn.connected = connected_ = welcomed_ = false;
  next_hello_ = next_heartbeat_ = kNever;
}

void ServerCore::SendHello(Turn& turn) {
  const ServerOptions& options = server_.options;
  ServerHello hello{options.software_version,
                    AddRelays(options.endpoint, relays_),
                    options.memory_bytes,
                    {},
                    options.public_key,
                    server_.mark,
                    options.site,
                    options.site_only,
                    options.relay_address,
                    options.relay_secret,
                    options.relay_own};
  for (const auto& [id, job] : server_.jobs) hello.jobs.push_back(job->Describe());
  turn.Say(std::move(hello));
  for (const auto& [id, job] : server_.jobs) job->OnHello(turn);
  for (auto& [id, job] : unserved_) {
    if (!job.damage.empty()) job.next_fault = turn.now;
  }
  welcomed_ = false;
  next_heartbeat_ = kNever;
  next_hello_ = turn.now + kRetryInterval;
}

void ServerCore::SendHeartbeat(Turn& turn) {
  ServerHeartbeat beat;
  for (const auto& [id, job] : server_.jobs) {
    beat.parameter_bytes += job->state().parameter_bytes();
    beat.staged_bytes += job->state().staged_bytes();
    beat.jobs.push_back({id, job->state().version(), job->snapshot_version(), {}});
  }
  beat.log_bytes = counters_.log_bytes;
  beat.received_bytes = counters_.received_bytes;
  beat.sent_bytes = counters_.sent_bytes;
  turn.Say(std::move(beat));
  next_heartbeat_ = turn.now + heartbeat_interval_;
}

void ServerCore::SendDue(Turn& turn) {
  if (connected_ && turn.now >= next_hello_) SendHello(turn);
  if (connected_ && welcomed_ && turn.now >= next_heartbeat_) SendHeartbeat(turn);
  for (auto& [id, job] : unserved_) {
    if (!connected_ || turn.now < job.next_fault) continue;
    turn.Say(ServerFault{id, job.damage});
    job.next_fault = turn.now + kRetryInterval;
  }
  for (const auto& [id, job] : server_.jobs) job->DoDue(turn);
}

Instant ServerCore::NextDeadline() const {
  Instant next = remember_at_;
  if (connected_) next = std::min({next, next_hello_, next_heartbeat_});
  for (const auto& [id, job] : unserved_) {
    if (connected_) next = std::min(next, job.next_fault);
  }
  for (const auto& [id, job] : server_.jobs) next = std::min(next, job->NextDeadline(connected_));
  return next;
}

void ServerCore::On(const FromCoordinator& event, Turn& turn) {
  const ToServer& to = event.message;
  if (to.server != server_.options.name || to.incarnation != server_.options.incarnation ||
      !IsForThisServer(to, turn)) {
    return;
  }
  std::visit([&](const auto& message) { Execute(message, turn); }, to.message);
}

// Returns whether the coordinator is the one that this server follows; its first Welcome makes it
// so.
bool ServerCore::IsForThisServer(const ToServer& to, Turn& turn) {
  ClusterMark& mark = server_.mark;
  if (!mark.cluster.empty() && to.cluster != mark.cluster) {
    const std::string text = ForeignClusterText(mark.cluster, to.cluster);
    if (!welcomed_ && std::exchange(refused_, text) != text) turn.actions.notes.push_back(text);
    return false;
  }
  if (to.epoch < mark.epoch) return false;
  if (std::holds_alternative<Refused>(to.message)) return true;  // no order
  mark.epoch = to.epoch;
  mark.sequence = std::max(mark.sequence, to.sequence);
  if (std::holds_alternative<Welcome>(to.message)) {
    refused_.clear();
    mark.cluster = to.cluster;
    remember_at_ = turn.now;
  } else if (remember_at_ == kNever && mark != remembered_ && !mark.cluster.empty()) {
    remember_at_ = turn.now + kRememberInterval;
  }
  return true;
}

// The coordinator keeps what a snapshot makes needless, and a job's end waits for the last one.
void ServerCore::On(const SnapshotDone& event, Turn& turn) {
  JobDriver* const job = server_.Find(event.job);
  if (job == nullptr) return;
  job->On(event, turn);
  if (server_.options.reports_snapshots) next_heartbeat_ = std::min(next_heartbeat_, turn.now);
}

void ServerCore::Execute(const Welcome& message, Turn& turn) {
  if (TakeRelays(message.relays, !welcomed_, &relays_)) {
    turn.actions.relays = relays_;
    if (connected_) SendHello(turn);  // workers are to know
    return;
  }
  if (!connected_ || welcomed_) return;
  welcomed_ = true;
  next_hello_ = kNever;
  heartbeat_interval_ =
      std::clamp<Duration>(message.heartbeat_interval, std::chrono::milliseconds(10),
                           server_.options.heartbeat_interval_max);
  next_heartbeat_ = turn.now + heartbeat_interval_;
}

void ServerCore::Execute(const Refused& message, Turn& turn) {
  if (message.final) turn.actions.stop = message.reason;
  turn.actions.notes.push_back(absl::StrCat("the coordinator refuses: ", message.reason));
  // It has given us up (a silence, a restart) though the stream still stands: begin anew.
  if (!message.final && connected_ && welcomed_) SendHello(turn);
}

// ------------------------------------------------------------------------- which jobs there are
// ----

absl::Status ServerCore::CheckNumber(const JobId& job) const {
  const size_t jobs = server_.jobs.size() + unserved_.size();
  if (server_.Find(job) != nullptr || jobs < kMaxJobs) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("server ", server_.options.name, " holds ", kMaxJobs, " jobs already"));
}

JobDriver& ServerCore::FindOrAdd(const JobId& job) {
  std::unique_ptr<JobDriver>& driver = server_.jobs[job];
  if (driver == nullptr) driver = std::make_unique<JobDriver>(&server_, RecoveredJob{job});
  return *driver;
}

absl::Status ServerCore::RoomFor(const AssignShards& assignment) const {
  int64_t others = 0;
  size_t count = 0;
  std::string names;
  for (const auto& [id, job] : server_.jobs) {
    if (id == assignment.job) continue;
    others += job->state().parameter_bytes();
    if (++count <= 8) absl::StrAppend(&names, names.empty() ? "" : ", ", id);
  }
  const int64_t parameters = JobState::ParameterBytes(assignment);
  // Parameters that it holds already need no more room: other jobs may have come since.
  const JobDriver* held = server_.Find(assignment.job);
  if (held != nullptr && parameters <= held->state().parameter_bytes()) return absl::OkStatus();
  const JobSpec& spec = assignment.definition.spec;
  const int64_t elements = parameters / ServerBytesPerElement(spec);
  const int64_t staged = elements * ServerPeakBytesPerElement(spec) - parameters;
  const int64_t memory_bytes = server_.options.memory_bytes;
  if (parameters <= memory_bytes - others - staged) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "server ", server_.options.name, " has no room for the job: ", parameters,
      " bytes of parameters and outer optimizer state and ", staged,
      " for what a round stages are needed, ", memory_bytes - others, " of --memory-bytes ",
      memory_bytes, " are free", names.empty() ? "" : "; jobs held: ", names));
}

void ServerCore::Execute(const AssignShards& message, Turn& turn) {
  if (HasLeft(message.job, message.definition.placement)) return;
  if (const auto found = unserved_.find(message.job); found != unserved_.end()) {
    return turn.Fault(message.job,
                      found->second.removing ? "it is being removed" : found->second.damage);
  }
  absl::Status status = JobState::Check(message);
  if (status.ok()) status = RoomFor(message);
  if (status.ok()) status = CheckNumber(message.job);
  const JobDriver* job = server_.Find(message.job);
  // A late one: the shards have moved since.
  if (job != nullptr && message.definition.placement < job->state().placement()) return;
  if (status.ok() && job != nullptr) {
    status = job->state().Check(LogRecord(AssignedRecord{server_.mark.epoch, message}));
  }
  if (!status.ok()) return turn.Fault(message.job, std::string(status.message()));
  FindOrAdd(message.job).Execute(message, turn);
}

void ServerCore::Execute(const ReceiveShards& message, Turn& turn) {
  if (HasLeft(message.job, message.placement)) return;
  if (const auto found = unserved_.find(message.job); found != unserved_.end()) {
    Unserved& job = found->second;
    if (job.removing) return;  // requested again when that is done
    // A user has said that what servers had of these shards is lost.
    const bool given_up = std::any_of(message.sources.begin(), message.sources.end(),
                                      [](const ShardSource& source) { return source.fill; });
    if (!given_up) return turn.Fault(message.job, job.damage);
    turn.Note(message.job,
              absl::StrCat("its damaged folder is put aside, since its shards are to be "
                           "filled: ",
                           job.damage));
    job = {"", /*removing=*/true, /*put_aside=*/true};
    turn.actions.erasures.push_back({message.job, /*put_aside=*/true});
    return;
  }
  const JobDriver* job = server_.Find(message.job);
  if (job != nullptr && job->IsLate(message)) return;
  absl::Status status = CheckNumber(message.job);
  if (status.ok()) status = JobDriver::Check(message, job, server_);
  if (!status.ok()) return turn.Fault(message.job, std::string(status.message()));
  FindOrAdd(message.job).Execute(message, turn);
}

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

// Readers that are being served keep what they read until they have it.
void ServerCore::Execute(const RemoveJob& message, Turn& turn) {
  JobDriver* job = server_.Find(message.job);
  const auto unserved = unserved_.find(message.job);
  if (job == nullptr && unserved == unserved_.end()) {
    Leave(message.job, message.placement);
    return turn.Say(JobRemoved{message.job, message.placement});
  }
  if (job == nullptr && unserved->second.removing) return;
  // A late one: it has a part in the job again. Or the job goes on without it: it is kept.
  if (message.placement > 0 && (job == nullptr || job->state().placement() >= message.placement)) {
    return;
  }
  if (job != nullptr) job->RefusePending(turn);
  Leave(message.job, message.placement);
  turn.actions.gate.push_back({message.job, {}});
  server_.jobs.erase(message.job);
  unserved_[message.job] = {"", /*removing=*/true, /*put_aside=*/false, message.placement};
  turn.actions.erasures.push_back({message.job});
  turn.Note(message.job, "removed");
}

void ServerCore::On(const JobErased& event, Turn& turn) {
  const auto found = unserved_.find(event.job);
  if (found == unserved_.end() || !found->second.removing) return;
  const Unserved removed = std::exchange(found->second, {});
  unserved_.erase(found);
  if (!removed.put_aside) turn.Say(JobRemoved{event.job, removed.removed_at});
}

void ServerCore::On(const EraseFailed& event, Turn& turn) {
  turn.Fault(event.job, absl::StrCat("cannot be removed yet: ", event.reason), /*passing=*/true);
}

// ---------------------------------------------------------------------------------- requests ----

void ServerCore::On(const PushArrived& event, Turn& turn) {
  if (JobDriver* job = server_.Find(event.id.job)) return job->On(event, turn);
  turn.Refuse(event.token, NotAssigned(event.id.job));
}

void ServerCore::On(const PullArrived& event, Turn& turn) {
  if (const JobDriver* job = server_.Find(event.job)) return job->On(event, turn);
  turn.actions.refusals.push_back(
      {event.token, PullRefusal::kUnknown, kNoVersion,
       absl::StrCat("shard ", event.shard, " of job ", event.job, " is not on this server")});
}

template <class Event>
void ServerCore::OnTransferred(const Event& event, Turn& turn) {
  const auto found = server_.transfers.extract(event.token);
  if (found.empty()) return;
  JobDriver* job = server_.Find(found.mapped().job);
  if (job == nullptr) return;
  std::visit(
      [&](const auto& what) {
        if constexpr (std::is_same_v<std::decay_t<decltype(what)>, Fetch> ==
                      std::is_same_v<Event, PartFetched>) {
          job->OnTransferred(what, event, turn);
        }
      },
      found.mapped().what);
}

void ServerCore::On(const PartFetched& event, Turn& turn) {
  OnTransferred(event, turn);
  // Others wait for the place that it had among kFetchesAtOnce.
  for (const auto& [id, job] : server_.jobs) job->GoOnFetching(turn);
}

void ServerCore::On(const PushForwarded& event, Turn& turn) { OnTransferred(event, turn); }

bool ServerCore::HasWork() const {
  return std::any_of(server_.jobs.begin(), server_.jobs.end(),
                     [](const auto& entry) { return entry.second->HasWork(); });
}

// Does the work of one job, served round-robin.
void ServerCore::On(const Tick& event, Turn& turn) {
  counters_ = event;
  auto next = server_.jobs.upper_bound(worked_last_);
  for (size_t i = 0; i < server_.jobs.size(); ++i, ++next) {
    if (next == server_.jobs.end()) next = server_.jobs.begin();
    if (!next->second->HasWork()) continue;
    worked_last_ = next->first;
    return next->second->Work(turn);
  }
}

Version ServerCore::version(const JobId& job) const {
  const JobDriver* found = server_.Find(job);
  return found == nullptr ? kNoVersion : found->state().version();
}

std::vector<float> ServerCore::Parameters(const JobId& job, ShardId shard) const {
  const JobDriver* found = server_.Find(job);
  const auto theta = found == nullptr ? nullptr : found->state().Theta(shard);
  if (theta == nullptr) return {};
  return {theta->values().begin(), theta->values().end()};
}

}  // namespace atl::ps

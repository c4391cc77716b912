#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/nodes.h"

namespace atl::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// Makes a lease of what lies on a disk, which takes no memory of the server's.
std::shared_ptr<const ps::TensorLease> OnDisk(const std::shared_ptr<const ps::TensorLease>& lease) {
  if (lease == nullptr) return nullptr;
  const std::span<const float> values = lease->values();
  auto copy = std::make_shared<ps::SharedTensor>(static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), copy->writable().begin());
  return std::make_shared<const ps::TensorLease>(std::move(copy));
}

std::shared_ptr<const ps::Snapshot> OnDisk(const ps::Snapshot& snapshot) {
  auto copy = std::make_shared<ps::Snapshot>(snapshot);
  for (ps::ShardSnapshot& shard : copy->shards) {
    shard.theta = OnDisk(shard.theta);
    for (auto& slot : shard.slots) slot = OnDisk(slot);
  }
  return copy;
}

}  // namespace

void ServerNode::Start() {
  BeginRun();
  ++incarnation_;
  connected_ = false;
  syncing_.clear();
  fences_.clear();
  push_answers_.clear();
  pull_answers_.clear();
  world_.Trace(absl::StrCat(name(), " starts, incarnation ", incarnation_));
  ps::ServerOptions options;
  options.name = name();
  options.incarnation = incarnation_;
  options.endpoint = name();
  options.memory_bytes = 1 << 20;
  options.mark = mark_;
  options.work_elements = 1;  // a shard at a time
  options.site = site_;
  options.site_only = !site_.empty();
  core_.emplace(options, Recover(), &world_.pool);
  gate_ = core_->MakeGate();
  KeepConnecting();
}

// Returns what the storage finds after a crash: all that was synced, and whatever else reached the
// disk.
std::vector<ps::RecoveredJob> ServerNode::Recover() {
  std::vector<ps::RecoveredJob> recovered;
  for (auto& [job, disk] : disk_) {
    while (!disk.log.empty() && disk.log.rbegin()->first > disk.synced && world_.rng.Chance(0.5)) {
      disk.log.erase(std::prev(disk.log.end()));
    }
    const bool damaged = disk.snapshots.size() == 2 && world_.rng.Chance(0.1);
    if (damaged) {
      world_.Trace(absl::StrCat(name(), " finds its newest snapshot damaged"));
      disk.snapshots.pop_back();
    }
    const auto snapshot = disk.snapshots.empty() ? nullptr : OnDisk(*disk.snapshots.back());
    ps::JobReplay replay(job, snapshot, &world_.pool);
    const ps::LogSequence from = snapshot ? snapshot->replay_from : 1;
    for (auto it = disk.log.lower_bound(from); it != disk.log.end(); ++it) {
      if (absl::Status status = replay.Add(it->first, it->second); !status.ok()) {
        world_.checker.Fail(absl::StrCat("N1: ", name(), " cannot replay: ", status.ToString()));
      }
    }
    disk.synced = disk.log.empty() ? disk.synced : disk.log.rbegin()->first;
    auto job_found = std::move(replay).Finish();
    if (!job_found.ok()) {
      world_.checker.Fail(
          absl::StrCat("N1: ", name(), " cannot recover: ", job_found.status().ToString()));
      continue;
    }
    recovered.push_back(*std::move(job_found));
  }
  return recovered;
}

void ServerNode::SwapFolder() {
  world_.Trace(absl::StrCat(
      name(), moved_aside_.empty() ? ": its folder is moved aside" : ": its folder is back"));
  std::swap(disk_, moved_aside_);
  std::swap(mark_, mark_unavailable_);
}

void ServerNode::LoseDisk() {
  world_.Trace(absl::StrCat(name(), " loses its disk for good"));
  disk_.clear();
  mark_ = ClusterMark();
}

void ServerNode::Crash() {
  world_.Trace(absl::StrCat(name(), " crashes"));
  EndRun();
  core_.reset();
  CloseByDeath();
}

void ServerNode::DeliverConnectionLost(Incarnation incarnation, int64_t connection) {
  world_.coordinator().ServerLost(name(), incarnation, connection);
}

void ServerNode::Deliver(const ps::Event& event) {
  if (!core_) return;
  if (const auto* from = std::get_if<ps::FromCoordinator>(&event)) NoteFences(from->message);
  Carry(core_->Step(world_.timeline.now(), event));
}

void ServerNode::NoteFences(const ToServer& message) {
  const auto* fences = std::get_if<FenceIslands>(&message.message);
  // Before the assignment the server has no job to fence.
  if (message.incarnation != incarnation_ || message.epoch < epoch_seen_) return;
  epoch_seen_ = message.epoch;
  if (fences == nullptr || !disk_.contains(fences->job)) return;
  std::map<IslandId, IslandFence>& of_job = fences_[fences->job];
  for (const IslandFence& fence : fences->islands) {
    IslandFence& now = of_job.try_emplace(fence.island, fence).first->second;
    if (std::pair(now.generation, now.incarnation) <
        std::pair(fence.generation, fence.incarnation)) {
      now = fence;
    }
  }
}

void ServerNode::CheckDurable(const ServerMessage& message) {
  const auto on_disk = [&](const JobId& job, const auto& matches, const auto& in_snapshot) {
    const JobDisk& disk = disk_[job];
    for (auto it = disk.log.begin(); it != disk.log.upper_bound(disk.synced); ++it) {
      if (matches(it->second)) return true;
    }
    return std::any_of(disk.snapshots.begin(), disk.snapshots.end(), in_snapshot);
  };
  if (const auto* staged = std::get_if<PushStaged>(&message)) {
    const bool durable = on_disk(
        staged->push.job,
        [&](const ps::LogRecord& record) {
          const auto* push = std::get_if<ps::PushedRecord>(&record);
          return push != nullptr && push->id == staged->push;
        },
        [](const auto&) { return false; });  // snapshots hold no bytes of pushes
    if (!durable) world_.checker.Fail(absl::StrCat("N1: ", name(), " has not synced a push"));
  }
  if (const auto* applied = std::get_if<RoundApplied>(&message)) {
    const bool durable = on_disk(
        applied->job,
        [&](const ps::LogRecord& record) {
          const auto* commit = std::get_if<CommittedRecord>(&record);
          const auto* joined = std::get_if<JoinedRecord>(&record);  // with that version's shards
          return (commit != nullptr && commit->version >= applied->version) ||
                 (joined != nullptr && joined->newest.version >= applied->version);
        },
        [&](const auto& snapshot) { return snapshot->version >= applied->version; });
    if (!durable) {
      world_.checker.Fail(
          absl::StrCat("N1: ", name(), " has not synced version ", applied->version));
    }
    world_.checker.Of(applied->job).Applied(applied->version);
  }
}

void ServerNode::Push(ps::PushArrived event, PushAnswer answer) {
  if (!core_) return;
  event.token = next_token_++;
  push_answers_[event.token] = std::move(answer);
  const auto admitted = gate_.Admit(event.id, event.encoding, event.elements);
  if (!admitted.ok()) {
    push_answers_.extract(event.token)
        .mapped()(absl::IsAlreadyExists(admitted) ? PushStatus::kDuplicate : PushStatus::kRefused,
                  std::string(admitted.message()));
    return;
  }
  Deliver(event);
}

void ServerNode::Pull(ps::PullArrived event, PullAnswer answer) {
  if (!core_) return;
  event.token = next_token_++;
  pull_answers_[event.token] = std::move(answer);
  Deliver(event);
}

void ServerNode::Carry(ps::Actions actions) {
  gate_.Apply(std::move(actions.gate), actions.room);
  if (actions.remember) mark_ = *actions.remember;
  for (ps::AppendLog& append : actions.log) Append(std::move(append));
  for (ServerMessage& message : actions.to_coordinator) {
    CheckDurable(message);
    SendUp(FromServer{name(), incarnation_, std::move(message)});
  }
  for (ps::AcknowledgePush& answer : actions.pushes) {
    if (auto node = push_answers_.extract(answer.token)) {
      node.mapped()(answer.status, answer.reason);
    }
  }
  for (const ps::ReplyPull& reply : actions.replies) {
    if (auto node = pull_answers_.extract(reply.token)) node.mapped()(&reply, nullptr);
  }
  for (const ps::RefusePull& refusal : actions.refusals) {
    if (auto node = pull_answers_.extract(refusal.token)) node.mapped()(nullptr, &refusal);
  }
  for (ps::WriteSnapshot& action : actions.snapshots) {
    auto& snapshots = disk_[action.snapshot->job].snapshots;
    if (snapshots.size() > 1) snapshots.erase(snapshots.begin());
    WriteSnapshot(std::move(action.snapshot));
  }
  for (const ps::TruncateLog& action : actions.truncations) {
    auto& log = disk_[action.job].log;
    log.erase(log.begin(), log.lower_bound(action.keep_from));
  }
  for (const ps::EraseJob& action : actions.erasures) Erase(action.job);
  for (const ps::FetchPart& fetch : actions.fetches) Fetch(fetch);
  for (const ps::ForwardPush& push : actions.forwards) Forward(push);
  for (const std::string& note : actions.notes) {
    world_.Trace(absl::StrCat(name(), ": ", note));
  }
  if (actions.stop) world_.checker.Fail(absl::StrCat(name(), " was refused: ", *actions.stop));
  // Arithmetic takes its time.
  const Instant soon = world_.timeline.now() + milliseconds(2);
  Arm(std::max(actions.next_deadline, soon), [this] { Deliver(ps::Tick{}); });
}

void ServerNode::Append(ps::AppendLog append) {
  if (const auto* push = std::get_if<ps::PushedRecord>(&append.record)) {
    world_.checker.Of(append.job)
        .Staged(name(), push->id, core_->version(append.job), fences_[append.job]);
  }
  if (std::holds_alternative<EndedRecord>(append.record)) {
    world_.checker.Of(append.job).Ended(name());
  }
  JobDisk& disk = disk_[append.job];
  disk.log.insert_or_assign(append.sequence, std::move(append.record));
  if (world_.faulty() && world_.rng.Chance(world_.options.disk_full)) {
    After(milliseconds(1), [this, job = append.job] {
      Deliver(ps::LogFailed{job, "simulated: disk full"});
      SyncLater(job, seconds(3));
    });
  } else {
    SyncLater(append.job, microseconds(200) + world_.UpTo(milliseconds(10)));
  }
}

// From another server, which is known by its endpoint.
void ServerNode::Fetch(const ps::FetchPart& fetch) {
  const auto open = std::make_shared<bool>(true);
  const auto finish = [this, open, at = run(), token = fetch.token](absl::Status status,
                                                                    std::vector<float> values) {
    if (!alive() || run() != at || !std::exchange(*open, false)) return;
    const auto owner = std::make_shared<const std::vector<float>>(std::move(values));
    Deliver(ps::PartFetched{token, std::move(status), {owner, std::as_bytes(std::span(*owner))}});
  };
  const auto answer = [this, finish, from = fetch.endpoint](const ps::ReplyPull* reply,
                                                            const ps::RefusePull* refusal) {
    std::vector<float> values;
    if (reply != nullptr) values.assign(reply->values.begin(), reply->values.end());
    const absl::Status status =
        reply != nullptr ? absl::OkStatus() : absl::FailedPreconditionError(refusal->reason);
    world_.network.Send(from, name(), [finish, status, values] { finish(status, values); });
  };
  ps::PullArrived pull_event{fetch.job,         fetch.version,      fetch.shard, 0,
                             fetch.range.begin, fetch.range.size(), fetch.slot};
  world_.network.Send(name(), fetch.endpoint, [this, pull_event, answer, from = fetch.endpoint] {
    if (ServerNode* node = world_.FindServer(from)) node->Pull(pull_event, answer);
  });
  After(seconds(5), [finish] { finish(absl::DeadlineExceededError("simulated"), {}); });
}

// To another server, which is known by its endpoint.
void ServerNode::Forward(const ps::ForwardPush& push) {
  const auto open = std::make_shared<bool>(true);
  const auto finish = [this, open, at = run(), token = push.token](absl::Status status) {
    if (!alive() || run() != at || !std::exchange(*open, false)) return;
    Deliver(ps::PushForwarded{token, std::move(status)});
  };
  const auto answer = [this, finish, from = push.endpoint](PushStatus status, std::string reason) {
    world_.network.Send(from, name(), [finish, status, reason] {
      finish(status == PushStatus::kRefused ? absl::FailedPreconditionError(reason)
                                            : absl::OkStatus());
    });
  };
  world_.network.Send(name(), push.endpoint, [this, push, answer] {
    if (ServerNode* node = world_.FindServer(push.endpoint)) {
      node->Push({push.id, push.encoding, push.elements, push.payload, 0}, answer);
    }
  });
  After(seconds(5), [finish] { finish(absl::DeadlineExceededError("simulated")); });
}

void ServerNode::Erase(const JobId& job) {
  world_.checker.Of(job).Deleted(name());
  After(world_.UpTo(milliseconds(200)), [this, job] {
    disk_.erase(job);
    Deliver(ps::JobErased{job});
  });
}

void ServerNode::SyncLater(const JobId& job, Duration delay) {
  if (!syncing_.insert(job).second) return;
  After(delay, [this, job] {
    syncing_.erase(job);
    if (!disk_.contains(job)) return;
    JobDisk& disk = disk_[job];
    if (disk.log.empty()) return;
    disk.synced = disk.log.rbegin()->first;
    Deliver(ps::LogSynced{job, disk.synced});
  });
}

void ServerNode::WriteSnapshot(std::shared_ptr<const ps::Snapshot> snapshot) {
  After(milliseconds(5) + world_.UpTo(milliseconds(500)), [this, snapshot] {
    if (!disk_.contains(snapshot->job)) return;
    JobDisk& disk = disk_[snapshot->job];
    if (disk.synced < snapshot->last_sequence) return WriteSnapshot(snapshot);
    if (world_.faulty() && world_.rng.Chance(0.05)) {
      return Deliver(ps::SnapshotDone{snapshot->job, snapshot->version,
                                      absl::ResourceExhaustedError("simulated: disk full")});
    }
    disk.snapshots.push_back(OnDisk(*snapshot));
    Deliver(ps::SnapshotDone{snapshot->job, snapshot->version, absl::OkStatus()});
  });
}

}  // namespace atl::sim

#include "rehearsal/world/server_process.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "paramserver/core/job_replay.h"

namespace atl::rehearsal {

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

void ServerProcess::Start(ps::ServerOptions options) {
  syncing_.clear();
  push_answers_.clear();
  pull_answers_.clear();
  options.mark = mark_;
  core_.emplace(options, Recover(), &pool_);
  gate_ = core_->MakeGate();
}

// Returns what the storage finds after a crash: all that was synced, and whatever else reached the
// disk.
std::vector<ps::RecoveredJob> ServerProcess::Recover() {
  host_.SpoilDisk(disk_);
  std::vector<ps::RecoveredJob> recovered;
  for (auto& [job, disk] : disk_) {
    const auto snapshot = disk.snapshots.empty() ? nullptr : OnDisk(*disk.snapshots.back());
    ps::JobReplay replay(job, snapshot, &pool_);
    const ps::LogSequence from = snapshot ? snapshot->replay_from : 1;
    for (auto it = disk.log.lower_bound(from); it != disk.log.end(); ++it) {
      if (absl::Status status = replay.Add(it->first, it->second); !status.ok()) {
        host_.Fail(absl::StrCat("cannot replay: ", status.ToString()));
      }
    }
    disk.synced = disk.log.empty() ? disk.synced : disk.log.rbegin()->first;
    auto found = std::move(replay).Finish();
    if (!found.ok()) {
      host_.Fail(absl::StrCat("cannot recover: ", found.status().ToString()));
      continue;
    }
    recovered.push_back(*std::move(found));
  }
  return recovered;
}

void ServerProcess::Deliver(const ps::Event& event) {
  if (core_) Carry(core_->Step(host_.Now(), event));
}

void ServerProcess::Push(ps::PushArrived event, PushAnswer answer) {
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

void ServerProcess::Pull(ps::PullArrived event, PullAnswer answer) {
  if (!core_) return;
  event.token = next_token_++;
  pull_answers_[event.token] = std::move(answer);
  Deliver(event);
}

void ServerProcess::Carry(ps::Actions actions) {
  gate_.Apply(std::move(actions.gate), actions.room);
  if (actions.remember) mark_ = *actions.remember;
  for (ps::AppendLog& append : actions.log) Append(std::move(append));
  for (ServerMessage& message : actions.to_coordinator) {
    host_.Saying(message);
    host_.SendUp(std::move(message));
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
  CarryDisk(actions);
  for (const ps::FetchPart& fetch : actions.fetches) host_.Fetch(fetch);
  for (const ps::ForwardPush& push : actions.forwards) host_.Forward(push);
  for (const std::string& note : actions.notes) host_.Note(note);
  if (actions.stop) host_.Fail(absl::StrCat("was refused: ", *actions.stop));
  const Instant soon = host_.Now() + host_.WorkDelay();
  host_.Arm(std::max(actions.next_deadline, soon), [this] { Deliver(ps::Tick{}); });
}

void ServerProcess::CarryDisk(ps::Actions& actions) {
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
}

void ServerProcess::Append(ps::AppendLog append) {
  host_.Appending(append);
  disk_[append.job].log.insert_or_assign(append.sequence, std::move(append.record));
  if (!host_.LogIsFull()) return SyncLater(append.job, host_.SyncDelay());
  host_.After(milliseconds(1), [this, job = append.job] {
    Deliver(ps::LogFailed{job, "simulated: disk full"});
    SyncLater(job, seconds(3));
  });
}

void ServerProcess::Erase(const JobId& job) {
  host_.Erasing(job);
  host_.After(host_.EraseDelay(), [this, job] {
    disk_.erase(job);
    Deliver(ps::JobErased{job});
  });
}

void ServerProcess::SyncLater(const JobId& job, Duration delay) {
  if (!syncing_.insert(job).second) return;
  host_.After(delay, [this, job] {
    syncing_.erase(job);
    if (!disk_.contains(job)) return;
    JobDisk& disk = disk_[job];
    if (disk.log.empty()) return;
    disk.synced = disk.log.rbegin()->first;
    Deliver(ps::LogSynced{job, disk.synced});
  });
}

void ServerProcess::WriteSnapshot(std::shared_ptr<const ps::Snapshot> snapshot) {
  host_.After(host_.SnapshotDelay(), [this, snapshot] {
    if (!disk_.contains(snapshot->job)) return;
    JobDisk& disk = disk_[snapshot->job];
    if (disk.synced < snapshot->last_sequence) return WriteSnapshot(snapshot);
    if (host_.SnapshotFails()) {
      return Deliver(ps::SnapshotDone{snapshot->job, snapshot->version,
                                      absl::ResourceExhaustedError("simulated: disk full")});
    }
    disk.snapshots.push_back(OnDisk(*snapshot));
    Deliver(ps::SnapshotDone{snapshot->job, snapshot->version, absl::OkStatus()});
  });
}

}  // namespace atl::rehearsal

// A parameter server of a history: the faults of its disk and network, and the checks of what it
// says.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/nodes.h"

namespace atl::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

void ServerNode::Start() {
  BeginRun();
  ++incarnation_;
  connected_ = false;
  fences_.clear();
  world_.Trace(absl::StrCat(name(), " starts, incarnation ", incarnation_));
  ps::ServerOptions options;
  options.name = name();
  options.incarnation = incarnation_;
  options.endpoint = name();
  options.memory_bytes = 1 << 20;
  options.work_elements = 1;  // a shard at a time
  options.site = site_;
  options.site_only = !site_.empty();
  process_.Start(std::move(options));
  KeepConnecting();
}

void ServerNode::SpoilDisk(rehearsal::ServerProcess::Disk& disks) {
  for (auto& [job, disk] : disks) {
    while (!disk.log.empty() && disk.log.rbegin()->first > disk.synced && world_.rng.Chance(0.5)) {
      disk.log.erase(std::prev(disk.log.end()));
    }
    const bool damaged = disk.snapshots.size() == 2 && world_.rng.Chance(0.1);
    if (damaged) {
      world_.Trace(absl::StrCat(name(), " finds its newest snapshot damaged"));
      disk.snapshots.pop_back();
    }
  }
}

void ServerNode::SwapFolder() {
  world_.Trace(absl::StrCat(
      name(), moved_aside_.empty() ? ": its folder is moved aside" : ": its folder is back"));
  std::swap(process_.disk(), moved_aside_);
  std::swap(process_.mark(), mark_unavailable_);
}

void ServerNode::LoseDisk() {
  world_.Trace(absl::StrCat(name(), " loses its disk for good"));
  process_.disk().clear();
  process_.mark() = ClusterMark();
}

void ServerNode::Crash() {
  world_.Trace(absl::StrCat(name(), " crashes"));
  EndRun();
  process_.End();
  CloseByDeath();
}

void ServerNode::DeliverConnectionLost(Incarnation incarnation, int64_t connection) {
  world_.coordinator().ServerLost(name(), incarnation, connection);
}

void ServerNode::Deliver(const ps::Event& event) {
  if (core() == nullptr) return;
  if (const auto* from = std::get_if<ps::FromCoordinator>(&event)) NoteFences(from->message);
  process_.Deliver(event);
}

void ServerNode::NoteFences(const ToServer& message) {
  const auto* fences = std::get_if<FenceIslands>(&message.message);
  // Before the assignment the server has no job to fence.
  if (message.incarnation != incarnation_ || message.epoch < epoch_seen_) return;
  epoch_seen_ = message.epoch;
  if (fences == nullptr || !process_.disk().contains(fences->job)) return;
  std::map<IslandId, IslandFence>& of_job = fences_[fences->job];
  for (const IslandFence& fence : fences->islands) {
    IslandFence& now = of_job.try_emplace(fence.island, fence).first->second;
    if (std::pair(now.generation, now.incarnation) <
        std::pair(fence.generation, fence.incarnation)) {
      now = fence;
    }
  }
}

void ServerNode::Saying(const ServerMessage& message) {
  const auto on_disk = [&](const JobId& job, const auto& matches, const auto& in_snapshot) {
    const rehearsal::ServerProcess::JobDisk& disk = process_.disk()[job];
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

void ServerNode::Appending(const ps::AppendLog& append) {
  if (const auto* push = std::get_if<ps::PushedRecord>(&append.record)) {
    world_.checker.Of(append.job)
        .Staged(name(), push->id, core()->version(append.job), fences_[append.job]);
  }
  if (std::holds_alternative<EndedRecord>(append.record)) {
    world_.checker.Of(append.job).Ended(name());
  }
}

Duration ServerNode::SyncDelay() { return microseconds(200) + world_.UpTo(milliseconds(10)); }
Duration ServerNode::SnapshotDelay() { return milliseconds(5) + world_.UpTo(milliseconds(500)); }
Duration ServerNode::EraseDelay() { return world_.UpTo(milliseconds(200)); }

bool ServerNode::LogIsFull() {
  return world_.faulty() && world_.rng.Chance(world_.options.disk_full);
}

bool ServerNode::SnapshotFails() { return world_.faulty() && world_.rng.Chance(0.05); }

void ServerNode::Erasing(const JobId& job) { world_.checker.Of(job).Deleted(name()); }

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

}  // namespace atl::sim

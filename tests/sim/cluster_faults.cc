// Faults of a history.

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"
#include "tests/sim/nodes.h"

namespace atl::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

void Cluster::Repeat(Duration mean, std::function<void()> fault) {
  if (mean == Duration(0)) return;
  const Duration wait = FromSeconds(-Seconds(mean) * std::log(1 - world_.rng.Uniform()));
  world_.timeline.After(wait, [this, mean, fault] {
    if (!world_.faulty()) return;
    fault();
    Repeat(mean, fault);
  });
}

void Cluster::ScheduleFaults() {
  const ClusterOptions& o = world_.options;
  Repeat(o.crash_every, [this] { CrashRandomMember(); });
  Repeat(o.back_up_every, [this] {
    if (IsPlaced()) world_.coordinator().BackUp();
  });
  Repeat(o.leave_every, [this] { EndSomeWorker(); });
  Repeat(o.disconnect_every, [this] { BreakSomeConnection(); });
  Repeat(o.isolate_every, [this] { IsolateRandomMember(); });
  Repeat(o.pause_every, [this] { PauseForAWhile(); });
  Repeat(o.change_every, [this] { ChangeSomeProfile(); });
  Repeat(o.drain_every, [this] { DrainSomeMember(); });
  world_.timeline.After(o.faults_until, [this] {
    world_.Trace("the faults stop");
    world_.network.SetFaults(NetworkFaults{});
    world_.network.RejoinAll();
  });
}

void Cluster::CrashRandomMember() {
  const auto restart_later = [this](auto* node) {
    if (!node->alive()) return;
    node->Crash();
    ++crashes_;
    world_.timeline.After(world_.UpTo(seconds(world_.rng.Chance(0.5) ? 1 : 15)), [node] {
      if (!node->alive()) node->Start();
    });
  };
  const uint64_t pick = world_.rng.Below(1 + world_.servers.size() + world_.workers.size());
  if (pick == 0) {
    CrashCoordinator();
  } else if (pick <= world_.servers.size()) {
    CrashServer(*world_.servers[pick - 1]);
  } else {
    restart_later(world_.workers[pick - 1 - world_.servers.size()].get());
  }
}

void Cluster::CrashServer(ServerNode& node) {
  if (!node.alive()) return;
  if (world_.options.disk_lost > 0 && MayLose(node) &&
      world_.rng.Chance(world_.options.disk_lost)) {
    return world_.rng.Chance(0.5) ? LoseDisk(node) : LoseDiskAtRound(node, Decisions(), 0);
  }
  node.Crash();
  ++crashes_;
  const bool lost = !node.site().empty() && world_.rng.Chance(world_.options.site_disk_lost);
  if (lost && !world_.coordinator_node->mistaken()) node.LoseDisk();
  const auto restart = [&node] {
    if (!node.alive()) node.Start();
  };
  Duration later = world_.UpTo(seconds(world_.rng.Chance(0.5) ? 1 : 15));
  if (world_.options.unavailable_long > 0 && world_.rng.Chance(world_.options.unavailable_long)) {
    later = seconds(20) + world_.UpTo(seconds(40));
  }
  // Before the job is placed any folder is the right one.
  const bool missing = node.holds_jobs() && IsPlaced() &&
                       world_.checker.users().Holds(node.name()) && !disk_lost_ &&
                       world_.rng.Chance(world_.options.folder_missing);
  if (!missing) return world_.timeline.After(later, restart);
  node.SwapFolder();
  restart();
  world_.timeline.After(later, [&node, restart] {
    if (node.alive()) node.Crash();
    node.SwapFolder();
    restart();
  });
}

// Loses the disk as soon as the next round is decided, or a moment later: no island has its version
// yet.
void Cluster::LoseDiskAtRound(ServerNode& node, int64_t decisions, int tries) {
  if (tries > 2000 || !node.alive() || !MayLose(node)) return;
  if (Decisions() > decisions) {
    return world_.timeline.After(world_.UpTo(milliseconds(50)), [this, &node] {
      if (node.alive() && MayLose(node)) LoseDisk(node);
    });
  }
  world_.timeline.After(milliseconds(5), [this, &node, decisions, tries] {
    LoseDiskAtRound(node, decisions, tries + 1);
  });
}

int64_t Cluster::Decisions() const {
  const ProgressRecord* progress = world_.coordinator_node->Progress();
  return progress == nullptr ? 0 : progress->round;
}

// Only what can be filled is lost: an island has parameters.
bool Cluster::MayLose(const ServerNode& node) const {
  CoordinatorNode& coordinator = *world_.coordinator_node;
  const ProgressRecord* progress = coordinator.Progress();
  if (disk_lost_ || !IsPlaced() || coordinator.core() == nullptr || coordinator.mistaken() ||
      !world_.checker.users().Holds(node.name()) || progress->state != JobState::kRunning) {
    return false;
  }
  if (world_.options.spec.outer.shard_copies == 2) return world_.checker.users().HasTwoOfEach();
  const std::optional<JobView> job = coordinator.core()->Job(world_.timeline.now(), progress->job);
  return job && std::any_of(job->islands.begin(), job->islands.end(), [](const IslandView& island) {
           return island.progress && island.progress->ready && island.progress->base_version >= 0;
         });
}

void Cluster::LoseDisk(ServerNode& node) {
  world_.Trace(absl::StrCat(node.name(), " loses its disk"));
  disk_lost_ = true;
  node.Crash();
  ++crashes_;
  node.SwapFolder();
  world_.timeline.After(world_.UpTo(seconds(3)), [&node] {
    if (!node.alive()) node.Start();
  });
  if (world_.options.spec.outer.shard_copies == 2) {
    return AwaitCopies(node, world_.checker.users().dropped());
  }
  Refill(node, 0, world_.checker.users().refilled());
}

// No action is needed: others have all that was there, and make new copies.
void Cluster::AwaitCopies(ServerNode& node, int64_t dropped) {
  world_.timeline.After(seconds(1), [this, &node, dropped] {
    if (world_.checker.users().refilled() > 0) world_.checker.Fail("N1: momentum is lost");
    if (removing_) return;
    if (world_.checker.users().dropped() == dropped || !world_.checker.users().HasTwoOfEach()) {
      return AwaitCopies(node, dropped);
    }
    world_.Trace(absl::StrCat("there are copies of all that ", node.name(), " had"));
    Found(node);
  });
}

// The disk that was lost may be found again, much too late.
void Cluster::Found(ServerNode& node) {
  disk_lost_ = false;
  const bool found = !world_.checker.users().Holds(node.name()) && world_.rng.Chance(0.5);
  if (!found) return node.LoseFolder();
  if (node.alive()) node.Crash();
  node.SwapFolder();
  node.LoseFolder();
  node.Start();
}

// A person says so until it has happened; if it cannot be done, the folder is found again.
void Cluster::Refill(ServerNode& node, int tries, size_t refilled) {
  world_.timeline.After(seconds(1), [this, &node, tries, refilled] {
    bool whole = false, answered = false, nothing_lost = false;
    CoordinatorNode& coordinator = world_.coordinator();
    const ProgressRecord* progress = coordinator.Progress();
    if (progress && coordinator.alive() && !coordinator.mistaken() && !removing_) {
      for (const Reply& reply : coordinator.Deliver(
               ControlJob{6, progress->job, JobCommand::kRefill, false, node.name()})) {
        world_.Trace(absl::StrCat("refill ", node.name(), ": ", reply.status.ToString()));
        answered = true;
        nothing_lost = absl::StrContains(reply.status.message(), "nothing is lost");
        whole = !reply.status.ok() && world_.checker.users().refilled() > refilled &&
                coordinator.HasWhole(node.name());
      }
    }
    if (whole) {
      world_.Trace(absl::StrCat(node.name(), "'s shards are refilled"));
      return Found(node);
    }
    if (removing_) return;
    if (tries >= 40 && answered && world_.checker.users().refilled() == refilled) {
      // It had no shards when it lost its disk, and has some now: the other folder lacks them.
      if (nothing_lost && world_.checker.users().Holds(node.name()) &&
          coordinator.HasWhole(node.name())) {
        return Found(node);
      }
      world_.Trace(absl::StrCat(node.name(), " finds its disk again"));
      disk_lost_ = false;
      if (node.alive()) node.Crash();
      node.SwapFolder();
      return node.Start();
    }
    Refill(node, tries + 1, refilled);
  });
}

// Never all servers at once.
void Cluster::DrainSomeMember() {
  const bool worker = world_.rng.Chance(0.5);
  const NodeId name = worker ? world_.workers[world_.rng.Below(world_.workers.size())]->name()
                             : world_.servers[world_.rng.Below(world_.servers.size())]->name();
  CoordinatorNode& coordinator = world_.coordinator();
  const auto servers = std::ranges::count_if(
      world_.servers, [&](const auto& node) { return drained_.contains(node->name()); });
  if ((!worker && servers + 1 >= std::ssize(world_.servers)) || drained_.contains(name) ||
      !IsPlaced() || !coordinator.alive() || coordinator.mistaken()) {
    return;
  }
  const auto replies = coordinator.Deliver(DrainMember{8, name, true});
  if (replies.empty() || !replies[0].status.ok()) return;
  world_.Trace(absl::StrCat(name, " is drained by a person"));
  drained_.insert(name);
  world_.timeline.After(seconds(2) + world_.UpTo(seconds(20)), [this, name] { Undrain(name); });
}

void Cluster::Undrain(const NodeId& member) {
  CoordinatorNode& coordinator = world_.coordinator();
  const bool there = coordinator.alive() && !coordinator.mistaken();
  if (there && !coordinator.Deliver(DrainMember{9, member, false}).empty()) {
    drained_.erase(member);
    return;
  }
  world_.timeline.After(seconds(1), [this, member] { Undrain(member); });
}

bool Cluster::IsPlaced() const {
  const ProgressRecord* progress = world_.coordinator_node->Progress();
  return progress && progress->version >= 0 && !removing_;
}

void Cluster::CrashCoordinator() {
  CoordinatorNode& node = world_.coordinator();
  if (!node.alive() || node.mistaken()) return;
  node.Crash();
  ++crashes_;
  const auto restart = [&node] {
    if (node.mistaken() && node.alive()) node.Crash();
    if (!node.alive()) node.Start();
  };
  if (!world_.rng.Chance(world_.options.mistaken_coordinator)) {
    using Loss = CoordinatorNode::Loss;
    const bool lost =
        IsPlaced() && node.has_backup() && world_.rng.Chance(world_.options.lost_store);
    const Loss loss = static_cast<Loss>(world_.rng.Below(3));
    world_.timeline.After(world_.UpTo(seconds(world_.rng.Chance(0.5) ? 1 : 15)),
                          [this, &node, restart, lost, loss] {
                            if (!lost || node.alive()) return restart();
                            node.StartAfter(loss);
                            // The copy may know of drains that have been ended since.
                            for (const auto& worker : world_.workers) Undrain(worker->name());
                          });
    return;
  }
  const bool of_other = world_.rng.Chance(0.5);
  world_.timeline.After(world_.UpTo(seconds(1)), [this, &node, of_other, restart] {
    // A member that has not joined a cluster yet, or has just lost its disk, would join the other
    // one for good.
    const auto joined = [](const auto& member) { return !member->mark().cluster.empty(); };
    const bool other_cluster = of_other && std::ranges::all_of(world_.servers, joined) &&
                               std::ranges::all_of(world_.workers, joined);
    if (!node.alive()) node.StartEmpty(other_cluster);
    world_.timeline.After(seconds(1) + world_.UpTo(seconds(8)), restart);
  });
}

void Cluster::EndSomeWorker() { world_.workers[world_.rng.Below(world_.workers.size())]->Leave(); }

void Cluster::BreakSomeConnection() {
  const uint64_t pick = world_.rng.Below(world_.servers.size() + world_.workers.size());
  if (pick < world_.servers.size()) {
    world_.servers[pick]->Disconnect();
  } else {
    world_.workers[pick - world_.servers.size()]->Disconnect();
  }
}

void Cluster::IsolateRandomMember() {
  const uint64_t pick = world_.rng.Below(world_.servers.size() + world_.workers.size());
  const std::string name = pick < world_.servers.size()
                               ? world_.servers[pick]->name()
                               : world_.workers[pick - world_.servers.size()]->name();
  world_.Trace(absl::StrCat(name, " is cut off"));
  world_.network.Isolate(name);
  world_.timeline.After(world_.UpTo(seconds(20)), [this, name] {
    world_.Trace(absl::StrCat(name, " is reachable again"));
    world_.network.Rejoin(name);
  });
}

void Cluster::PauseForAWhile() {
  const ProgressRecord* progress = world_.coordinator().Progress();
  if (!progress || !world_.coordinator().alive() || world_.coordinator().mistaken()) return;
  const JobId job = progress->job;
  world_.coordinator().Deliver(ControlJob{1, job, JobCommand::kPause});
  pausing_ = true;
  world_.timeline.After(world_.UpTo(seconds(10)), [this, job] { Resume(job); });
}

void Cluster::ChangeSomeProfile() {
  const uint64_t pick = world_.rng.Below(world_.workers.size());
  world_.coordinator().Deliver(ProfileChanged{{world_.workers[pick]->name()},
                                              "simulated: it is slower than measured",
                                              world_.rng.Chance(0.3)});
}

}  // namespace atl::sim

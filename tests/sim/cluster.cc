#include "tests/sim/cluster.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/protocol/outer_optimizer.h"
#include "tests/sim/nodes.h"

namespace atl::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

World::World(const ClusterOptions& o)
    : options(o), rng(o.seed), network(&timeline, &rng), pool(1), checker(o.spec, &pool) {}

World::~World() = default;

void World::Trace(const std::string& line) {
  const std::string stamped =
      absl::StrFormat("%10.4f %s", Seconds(timeline.now() - Instant{}), line);
  for (const char c : stamped) {
    trace_hash = (trace_hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  if (print) print(stamped);
}

ServerNode* World::FindServer(const NodeId& name) {
  for (const auto& node : servers) {
    if (node->name() == name) return node.get();
  }
  return nullptr;
}

WorkerNode* World::FindWorker(const NodeId& name) {
  for (const auto& node : workers) {
    if (node->name() == name) return node.get();
  }
  return nullptr;
}

namespace {

void ChooseOptimizer(uint64_t seed, OuterSpec& outer) {
  Rng rng(seed, /*stream=*/320);
  if (!rng.Chance(0.5)) return;
  outer.optimizer = OuterOptimizers()[rng.Below(OuterOptimizers().size())].name;
  outer.merge = OuterMerges()[rng.Below(OuterMerges().size())];
  if (!ValidateOuterChoice(outer).ok()) outer.wait_for_all = false;
}

void ChooseFragments(uint64_t seed, OuterSpec& outer) {
  Rng rng(seed, /*stream=*/402);
  if (!HasSinglePushRounds(outer) && rng.Chance(0.5)) {
    outer.fragments = 2 + static_cast<int64_t>(rng.Below(2));  // of three layers
    outer.steps_per_round = outer.fragments * (2 + static_cast<int64_t>(rng.Below(12)));
  }
  if (rng.Chance(0.2)) outer.fragment_blend = 0.25 + 0.75 * rng.Uniform();
  if (rng.Chance(0.3) && outer.overlap == Overlap::kCarry) {
    const int64_t most = outer.steps_per_round / outer.fragments;
    outer.fragment_delay_steps = 1 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(most)));
  }
}

}  // namespace

ClusterOptions RandomOptions(uint64_t seed) {
  Rng rng(seed, /*stream=*/77);
  ClusterOptions o;
  o.seed = seed;
  o.workers = 1 + static_cast<int>(rng.Below(4));
  o.servers = 1 + static_cast<int>(rng.Below(3));
  o.network.drop = rng.Chance(0.5) ? 0 : 0.1 * rng.Uniform();
  o.network.duplicate = rng.Chance(0.5) ? 0 : 0.2 * rng.Uniform();
  o.network.slow = rng.Chance(0.5) ? 0 : 0.05 * rng.Uniform();
  o.network.delay_max = milliseconds(1 + rng.Below(rng.Chance(0.2) ? 800 : 40));
  o.crash_every = rng.Chance(0.2) ? seconds(0) : seconds(5 + rng.Below(40));
  o.disconnect_every = rng.Chance(0.3) ? seconds(0) : seconds(5 + rng.Below(40));
  o.isolate_every = rng.Chance(0.5) ? seconds(0) : seconds(15 + rng.Below(60));
  o.pause_every = rng.Chance(0.7) ? seconds(0) : seconds(20 + rng.Below(40));
  JobSpec& spec = o.spec;
  spec.name = "sim";
  spec.model.hidden = 8;
  spec.model.layers = 1;
  spec.model.heads = 2;
  spec.model.seed = seed;
  spec.data.path = "toy";
  spec.data.sequence_length = 16;
  spec.inner.batch_sequences = 1 + static_cast<int64_t>(rng.Below(5));
  spec.outer.learning_rate = 0.7;
  spec.outer.momentum = 0.8;
  spec.outer.steps_per_round = 2 + static_cast<int64_t>(rng.Below(12));
  spec.outer.balance_steps = rng.Chance(0.5);
  spec.outer.grace_seconds = 0.5 + 3 * rng.Uniform();
  spec.outer.wait_for_all = rng.Chance(0.2);
  spec.outer.overlap = rng.Chance(0.5) ? Overlap::kCarry : Overlap::kNone;
  spec.outer.push_encoding = rng.Chance(0.3) ? Encoding::kBfloat16 : Encoding::kFloat32;
  spec.outer.reject_outliers = rng.Chance(0.8);
  spec.outer.clip_norm = rng.Chance(0.5) ? 0 : 0.05 + rng.Uniform();
  spec.schedule.validate_every_rounds = static_cast<int64_t>(rng.Below(4));
  spec.schedule.checkpoint_every_steps = rng.Chance(0.3) ? 0 : 1 + rng.Below(8);
  spec.schedule.snapshot_every_rounds = 1 + static_cast<int64_t>(rng.Below(4));
  Rng types(seed, /*stream=*/79);
  if (types.Chance(0.4)) {
    constexpr Encoding kQuantized[] = {Encoding::kInt8, Encoding::kInt4, Encoding::kE3m0,
                                       Encoding::kTopK};
    spec.outer.push_encoding = kQuantized[types.Below(std::size(kQuantized))];
  }
  ChooseOptimizer(seed, spec.outer);
  Rng shape(seed, /*stream=*/78);
  if (shape.Chance(0.5)) {
    o.workers = 2 + static_cast<int>(shape.Below(4));
    o.leave_every = shape.Chance(0.5) ? seconds(0) : seconds(10 + shape.Below(30));
    spec.layout.island = shape.Chance(0.6) ? IslandScope::kAll : IslandScope::kSite;
    Rng sites(seed, /*stream=*/79);
    o.sites_declared = sites.Chance(0.5);
    o.change_every = sites.Chance(0.5) ? seconds(0) : seconds(5 + sites.Below(40));
    spec.layout.workers_per_island = static_cast<int64_t>(shape.Below(3));
    if (sites.Chance(0.3)) {
      spec.layout.island = IslandScope::kAuto;
      spec.layout.workers_per_island = 0;
    }
    spec.inner.micro_batch_sequences = 0;
  }
  Rng pulls(seed, /*stream=*/82);
  if (pulls.Chance(0.3)) {
    o.spec.outer.pull_encoding = pulls.Chance(0.5) ? Encoding::kInt8 : Encoding::kInt4;
  }
  ChooseFragments(seed, spec.outer);
  const int64_t sequences = 200 + static_cast<int64_t>(rng.Below(1500));
  spec.schedule.train_tokens = sequences * spec.data.sequence_length;
  return o;
}

ClusterOptions MovingOptions(uint64_t seed) {
  ClusterOptions o = RandomOptions(seed);
  Rng moves(seed, /*stream=*/80);
  o.moves = true;
  o.late_servers = static_cast<int>(moves.Below(3));
  o.drain_every = moves.Chance(0.5) ? seconds(0) : seconds(8 + moves.Below(30));
  o.disk_lost = moves.Chance(0.5) ? 0 : 0.3;
  // Who has lost both a disk and the store has lost the model.
  if (o.disk_lost > 0) o.lost_store = 0;
  o.mistaken_coordinator = 0;
  return o;
}

ClusterOptions CopiesOptions(uint64_t seed) {
  ClusterOptions o = MovingOptions(seed);
  Rng copies(seed, /*stream=*/81);
  o.spec.outer.shard_copies = 2;
  o.servers = 2 + static_cast<int>(copies.Below(2));
  o.disk_lost = copies.Chance(0.3) ? 0 : 0.4;
  o.unavailable_long = copies.Chance(0.5) ? 0 : 0.4;
  o.folder_missing = 0;  // which is a disk that is lost and found here
  if (copies.Chance(0.7)) {
    o.lost_store = 0;
    return o;
  }
  // Copies stay where they are, and the coordinator's store is lost.
  const ClusterOptions plain = RandomOptions(seed);
  o.lost_store = plain.lost_store;
  o.mistaken_coordinator = plain.mistaken_coordinator;
  o.late_servers = 0;
  o.drain_every = seconds(0);
  o.disk_lost = o.unavailable_long = 0;
  return o;
}

ClusterOptions SitesOptions(uint64_t seed) {
  ClusterOptions o = RandomOptions(seed);
  Rng sites(seed, /*stream=*/480);
  o.workers = std::max(o.workers, 2);
  o.sites_declared = true;
  o.site_servers["even"] = 1 + static_cast<int>(sites.Below(2));
  if (sites.Chance(0.5)) o.site_servers["odd"] = 1 + static_cast<int>(sites.Below(2));
  o.late_site_servers = sites.Chance(0.3);
  o.site_disk_lost = sites.Chance(0.5) ? 0 : 0.4;
  OuterSpec& outer = o.spec.outer;
  outer.site.rounds = 1 + static_cast<int64_t>(sites.Below(4));
  if (sites.Chance(0.5)) {
    outer.site.optimizer = "nesterov";
    outer.site.learning_rate = 0.3 + 0.7 * sites.Uniform();
    outer.site.momentum = 0.9 * sites.Uniform();
  }
  outer.fragments = 1;
  if (IsQuantized(outer.push_encoding)) outer.push_encoding = Encoding::kBfloat16;
  return o;
}

std::string Describe(const ClusterOptions& o) {
  return absl::StrFormat(
      "%d workers, %d servers and %d late ones, a drain every %.0f s, disks lost %.1f, drop %.3f, "
      "duplicate %.3f, slow %.3f, delay up to %.0f ms, a crash "
      "every %.0f s, a disconnect every %.0f s, an isolation every %.0f s, a pause every %.0f s; "
      "%d tokens, batch %d, H %d, %d fragments, delay %d, blend %.2f, encodings %d and %d, "
      "overlap %s, "
      "grace %.1f s%s%s, %d workers an island, "
      "an end every "
      "%.0f s",
      o.workers, o.servers, o.late_servers, Seconds(o.drain_every), o.disk_lost, o.network.drop,
      o.network.duplicate, o.network.slow, 1e3 * Seconds(o.network.delay_max),
      Seconds(o.crash_every), Seconds(o.disconnect_every), Seconds(o.isolate_every),
      Seconds(o.pause_every), o.spec.schedule.train_tokens, o.spec.inner.batch_sequences,
      o.spec.outer.steps_per_round, o.spec.outer.fragments, o.spec.outer.fragment_delay_steps,
      o.spec.outer.fragment_blend, static_cast<int>(o.spec.outer.push_encoding),
      static_cast<int>(o.spec.outer.pull_encoding),
      o.spec.outer.overlap == Overlap::kCarry ? "carry" : "none", o.spec.outer.grace_seconds,
      o.spec.outer.wait_for_all ? ", waits for all" : "",
      o.spec.layout.island == IslandScope::kAll ? ", one island of all"
      : o.spec.layout.island == IslandScope::kSite
          ? (o.sites_declared ? ", islands by site" : ", islands by measured site")
      : o.spec.layout.island == IslandScope::kAuto ? ", islands as the planner says"
                                                   : "",
      o.spec.layout.workers_per_island, Seconds(o.leave_every));
}

Cluster::Cluster(const ClusterOptions& options) : world_(options) {
  world_.network.SetFaults(options.network);
  world_.coordinator_node = std::make_unique<CoordinatorNode>(&world_);
  for (int i = 0; i < options.servers + options.late_servers; ++i) {
    world_.servers.push_back(std::make_unique<ServerNode>(&world_, absl::StrCat("server-", i)));
  }
  for (const auto& [site, count] : options.site_servers) {
    for (int i = 0; i < count; ++i) {
      world_.servers.push_back(
          std::make_unique<ServerNode>(&world_, absl::StrCat(site, "-server-", i), site));
    }
  }
  for (int i = 0; i < options.workers; ++i) {
    const double slowness = 1 + 1.5 * world_.rng.Uniform();
    world_.workers.push_back(
        std::make_unique<WorkerNode>(&world_, absl::StrCat("worker-", i), slowness));
  }
}

Cluster::~Cluster() {
  for (auto& node : world_.workers) node->End();
}

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
  if (!node.site().empty() && world_.rng.Chance(world_.options.site_disk_lost)) node.LoseDisk();
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
  // A member that has not joined a cluster yet would join the other one for good.
  const auto joined = [](const auto& member) { return !member->mark().cluster.empty(); };
  const bool other_cluster = world_.rng.Chance(0.5) &&
                             std::ranges::all_of(world_.servers, joined) &&
                             std::ranges::all_of(world_.workers, joined);
  world_.timeline.After(world_.UpTo(seconds(1)), [this, &node, other_cluster, restart] {
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

// Users retry until it works, also when the coordinator is down.
void Cluster::Resume(const JobId& job) {
  if (!world_.coordinator().mistaken() &&
      !world_.coordinator().Deliver(ControlJob{2, job, JobCommand::kResume}).empty()) {
    pausing_ = false;
    return;
  }
  world_.timeline.After(seconds(1), [this, job] { Resume(job); });
}

bool Cluster::Ended() const {
  const ProgressRecord* progress = world_.coordinator_node->Progress();
  return progress && !removing_ &&
         (progress->state == JobState::kDone || progress->state == JobState::kCancelled);
}

void Cluster::Operate() {
  world_.timeline.After(seconds(1), [this] {
    if (!removing_) Operate();
  });
  CoordinatorNode& node = world_.coordinator();
  if (!node.alive() || node.mistaken()) return;
  std::vector<OrphanView> orphans = node.core()->Orphans();
  // State of a site's servers goes with the job above, or begins anew.
  std::erase_if(orphans, [&](const OrphanView& o) { return world_.checker.IsOfSite(o.job); });
  if (!orphans.empty()) {
    if (orphans[0].missing.empty()) {
      node.Deliver(ControlJob{4, orphans[0].job, JobCommand::kAdopt});
    }
    return;
  }
  const ProgressRecord* progress = node.Progress();
  if (!progress) return;
  if (!progress->outdated.empty()) {
    for (const Reply& reply : node.Deliver(ControlJob{4, progress->job, JobCommand::kAdopt})) {
      world_.Trace(absl::StrCat("adopt: ", reply.status.ToString()));
    }
  } else if (progress->state == JobState::kFailed ||
             (progress->state == JobState::kPaused && !pausing_)) {
    node.Deliver(ControlJob{5, progress->job, JobCommand::kResume});
  }
}

// Again, as a person would, if the coordinator died before it answered and without storing the job.
void Cluster::Submit() {
  if (world_.coordinator().Progress()) return;
  if (world_.coordinator().mistaken()) {
    world_.timeline.After(seconds(1), [this] { Submit(); });
    return;
  }
  const auto replies = world_.coordinator().Deliver(SubmitJob{7, world_.options.spec, 1});
  if (replies.empty()) {
    world_.timeline.After(seconds(1), [this] { Submit(); });
  } else if (!replies[0].status.ok()) {
    world_.checker.Fail("the job was not taken: " + replies[0].status.ToString());
  }
}

// Again, as a person would, until the coordinator answers.
void Cluster::RemoveJob() {
  const ProgressRecord* progress = world_.coordinator().Progress();
  if (!progress) return;
  if (world_.coordinator().mistaken()) {
    world_.timeline.After(seconds(1), [this] { RemoveJob(); });
    return;
  }
  const auto replies =
      world_.coordinator().Deliver(ControlJob{3, progress->job, JobCommand::kRemove});
  if (replies.empty()) {
    world_.timeline.After(seconds(1), [this] { RemoveJob(); });
  } else if (!replies[0].status.ok() && !absl::IsNotFound(replies[0].status)) {
    world_.checker.Fail("the job cannot be removed: " + replies[0].status.ToString());
  }
}

bool Cluster::HeldSomewhere() const {
  return world_.coordinator_node->StoresJobs() ||
         std::any_of(world_.servers.begin(), world_.servers.end(),
                     [](const auto& server) { return server->holds_jobs(); });
}

// Whatever fails meanwhile, nothing of the job may stay.
void Cluster::RunUntilRemoved() {
  removing_ = true;
  world_.checker.NoteRemovalRequest();
  RemoveJob();
  const Instant limit =
      std::max(world_.timeline.now(), Instant{} + world_.options.faults_until) + seconds(120);
  while (world_.checker.failure().empty() && HeldSomewhere() && !world_.timeline.empty()) {
    if (world_.timeline.now() > limit) {
      std::string who = world_.coordinator_node->StoresJobs() ? " coordinator" : "";
      for (const auto& server : world_.servers) {
        if (server->holds_jobs()) absl::StrAppend(&who, " ", server->name());
      }
      world_.checker.Fail(absl::StrCat("N8: the job's removal does not end:", who));
    }
    world_.timeline.RunOne();
  }
}

Outcome Cluster::Run() {
  world_.coordinator().Start();
  const auto servers = static_cast<size_t>(world_.options.servers);
  for (size_t i = 0; i < world_.servers.size(); ++i) {
    ServerNode* node = world_.servers[i].get();
    const bool late = node->site().empty() ? i >= servers : world_.options.late_site_servers;
    if (!late) {
      node->Start();
      continue;
    }
    world_.timeline.After(seconds(2) + world_.UpTo(seconds(20)), [node] {
      if (!node->alive()) node->Start();
    });
  }
  for (auto& node : world_.workers) node->Start();
  Submit();
  ScheduleFaults();
  Operate();
  Checkers& checker = world_.checker;
  const Instant limit = Instant{} + world_.options.limit;
  while (checker.failure().empty() && !Ended() && !world_.timeline.empty()) {
    if (world_.timeline.now() > limit) {
      std::string state = "N8: the job has not ended";
      if (CoordinatorCore* core = world_.coordinator().core()) {
        for (const JobSummary& job : core->Jobs().jobs) {
          absl::StrAppend(&state, "; ", job.job, " is ", Name(job.state), " (", job.reason,
                          "), waits for: ", job.waiting_for);
        }
      }
      for (const auto& node : world_.workers) {
        absl::StrAppend(&state, "; ", node->name(), ": ", node->GetActivity());
      }
      checker.Fail(state);
      break;
    }
    world_.timeline.RunOne();
  }
  Outcome outcome;
  const ProgressRecord* progress = world_.coordinator().Progress();
  if (CoordinatorCore* core = world_.coordinator().core(); core != nullptr && progress) {
    const std::optional<JobView> job = core->Job(world_.timeline.now(), progress->job);
    for (const IslandView& island : job ? job->islands : std::vector<IslandView>()) {
      outcome.steps_redone += island.steps_redone;
      outcome.steps_interrupted += island.steps_interrupted;
    }
  }
  if (checker.failure().empty() && progress) {
    if (progress->state != JobState::kDone) {
      checker.Fail(
          absl::StrCat("the job ended as ", Name(progress->state), ": ", progress->reason));
    }
    const JobSpec& spec = world_.options.spec;
    checker.users().Finished(*progress, spec.schedule.train_tokens / spec.data.sequence_length);
  }
  if (checker.failure().empty()) RunUntilRemoved();
  outcome.failure = checker.failure();
  outcome.trace_hash = world_.trace_hash;
  outcome.events = world_.timeline.events_run();
  outcome.crashes = crashes_;
  outcome.rounds = checker.users().rounds();
  outcome.rejected = checker.users().rejected();
  outcome.adopted = checker.adopted();
  outcome.contributed = checker.contributed();
  outcome.site_jobs = checker.site_jobs();
  outcome.took = world_.timeline.now() - Instant{};
  return outcome;
}

}  // namespace atl::sim

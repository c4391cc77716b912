#include "tests/sim/nodes.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/shards/replicas.h"
#include "coordinator/core/testing/planner.h"

namespace atl::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {
constexpr char kCluster[] = "00000000000000aa";
constexpr double kStoreIsChecked = 0.002;  // after a step: some dozens of times a history
}  // namespace

// ----------------------------------------------------------------------------- coordinator ----

void CoordinatorNode::Start() {
  BeginRun();
  connections_.clear();
  mistaken_ = false;
  int64_t epoch = 1;
  if (const auto it = store_.find("epoch"); it != store_.end()) {
    epoch = std::get<EpochRecord>(it->second).epoch + 1;
  }
  world_.Trace(absl::StrCat("coordinator starts, epoch ", epoch));
  CoordinatorOptions options;
  if (!world_.options.moves) options.rebalance_after = std::chrono::hours(1000);
  options.max_shard_bytes = 32;  // 8 elements: some toy layers are cut
  options.quotas = world_.options.quotas;
  // Every second history decides what follows from members' comings and goings as large clusters
  // do.
  if (world_.options.seed % 2 == 1) options.many_members = 0;
  core_.emplace(options, kCluster, epoch);
  BeginRecording();
  std::vector<StoreRecord> stored;
  for (const auto& [key, value] : store_) stored.push_back(value);
  if (absl::Status status = core_->Recover(world_.timeline.now(), stored); !status.ok()) {
    world_.checker.Fail(absl::StrCat("N1: recovery: ", status.ToString()));
    return;
  }
  Deliver(Tick{});
}

void CoordinatorNode::BeginRecording() {
  recorder_.reset();
  if (world_.record_folder.empty()) return;
  auto recorder =
      EventRecorder::Open(&RealFiles(), world_.record_folder, world_.record_segment_bytes);
  if (!recorder.ok()) return world_.checker.Fail(std::string(recorder.status().message()));
  recorder_ = *std::move(recorder);
}

void CoordinatorNode::StartEmpty(bool other_cluster) {
  BeginRun();
  connections_.clear();
  mistaken_ = true;
  world_.Trace(absl::StrCat("a coordinator with an empty store starts",
                            other_cluster ? ", of another cluster" : ""));
  core_.emplace(CoordinatorOptions(), other_cluster ? "00000000000000bb" : kCluster, 1);
  BeginRecording();
  if (!core_->Recover(world_.timeline.now(), {}).ok()) world_.checker.Fail("no recovery");
  Deliver(Tick{});
}

void CoordinatorNode::StartAfter(Loss loss) {
  const char* const what = loss == Loss::kOlderCopy  ? "an older copy of its store"
                           : loss == Loss::kRestored ? "a restored backup"
                                                     : "an empty store, its own being lost";
  world_.Trace(absl::StrCat("the coordinator gets ", what));
  world_.checker.StoreReplaced();
  if (loss == Loss::kLost) {
    store_ = {{"epoch", EpochRecord{0, kCluster}}};
  } else {
    store_ = backup_;
  }
  if (loss != Loss::kOlderCopy) {
    const int64_t minutes = (int64_t{1} << 20) + ++losses_;
    store_["epoch"] = AfterLoss(std::get<EpochRecord>(store_.at("epoch")), minutes * 60'000);
  }
  Start();
}

void CoordinatorNode::Crash() {
  world_.Trace("coordinator crashes");
  EndRun();
  core_.reset();
  for (auto& member : world_.servers) member->DisconnectSoon();
  for (auto& member : world_.workers) member->DisconnectSoon();
}

std::vector<Reply> CoordinatorNode::Deliver(const CoordinatorEvent& event) {
  if (!core_) return {};
  if (recorder_ != nullptr) recorder_->BeforeStep(world_.timeline.now(), event, *core_);
  const CoordinatorActions actions = core_->Step(world_.timeline.now(), event);
  if (recorder_ != nullptr) recorder_->AfterStep(actions);
  for (const StoreWrite& write : actions.persist) {
    const std::string key = MakeRecordKey(write.record);
    if (mistaken_) {
      const auto* line = std::get_if<EventRecord>(&write.record);
      if (line != nullptr) world_.Trace(absl::StrCat("mistaken: ", line->text));
    } else if (write.erase) {
      store_.erase(key);
    } else {
      if (!std::holds_alternative<EventRecord>(write.record)) {
        store_.insert_or_assign(key, write.record);
      }
      world_.checker.Persisted(write.record);
      if (const auto* line = std::get_if<EventRecord>(&write.record)) {
        world_.Trace(absl::StrCat("log: ", line->text));
        world_.preemptions += absl::StrContains(line->text, "leaves when it has pushed");
      }
    }
  }
  if (world_.faulty() && !mistaken_ && !actions.persist.empty() &&
      world_.rng.Chance(world_.options.crash_inside_step)) {
    Crash();
    world_.timeline.After(world_.UpTo(seconds(8)), [this] {
      if (!alive()) Start();
    });
    return {};
  }
  if (!mistaken_ && world_.rng.Chance(kStoreIsChecked)) CheckStore();
  Carry(actions);
  return actions.replies;
}

void CoordinatorNode::CheckStore() {
  const std::vector<StoreRecord> core = core_->Stored();
  std::vector<StoreRecord> disk;
  for (const auto& [key, value] : store_) disk.push_back(value);
  if (core != disk) world_.checker.Fail("N1: the core's state is not what it has persisted");
}

void CoordinatorNode::Carry(const CoordinatorActions& actions) {
  const auto send = [this](const NodeId& to, Timeline::Action deliver) {
    if (world_.faulty() && world_.rng.Chance(world_.options.ghost)) {
      world_.timeline.After(world_.UpTo(seconds(30)), deliver);
    }
    world_.network.Send(name(), to, std::move(deliver));
  };
  for (const ToWorker& message : actions.to_workers) {
    send(message.worker, [world = &world_, message] {
      if (WorkerNode* node = world->FindWorker(message.worker)) {
        node->Deliver(worker::Received{message});
      }
    });
  }
  for (const ToServer& message : actions.to_servers) {
    if (const auto* commit = std::get_if<CommitRound>(&message.message)) {
      if (!mistaken_) world_.checker.Of(commit->job).CommitSent(*commit, {});
    }
    const auto* collect = std::get_if<CollectStatistics>(&message.message);
    if (collect != nullptr && world_.options.spoiled_statistics > 0 && world_.faulty() &&
        !mistaken_ && world_.rng.Chance(world_.options.spoiled_statistics)) {
      Statistics spoiled{collect->job, collect->version, collect->contributions, {{77, {1}}}};
      AfterInRun(milliseconds(1), [this, from = FromServer{message.server, message.incarnation,
                                                           std::move(spoiled)}] { Deliver(from); });
    }
    send(message.server, [world = &world_, message] {
      if (ServerNode* node = world->FindServer(message.server)) {
        node->Deliver(ps::FromCoordinator{message});
      }
    });
  }
  for (const GroupWorkers& query : actions.groups) Group(query);
  for (const MakePlan& query : actions.plans) Plan(query);
  ArmTick(actions.next_deadline, [this] { Deliver(Tick{}); });
}

void CoordinatorNode::Plan(const MakePlan& query) {
  PlanMade made{query.job, query.island, query.request, absl::ResourceExhaustedError("simulated")};
  if (!world_.faulty() || !world_.rng.Chance(world_.options.no_plan)) {
    const double slowness = 0.9 + 0.2 * world_.rng.Uniform();
    const auto replicas = static_cast<int32_t>(1 + world_.rng.Below(3));
    made.plan = testing::TestPlan(query, slowness, replicas);
    made.plan->optimizer_copies = static_cast<int32_t>(world_.rng.Below(3));  // 0: all of them
  }
  AfterInRun(world_.UpTo(milliseconds(500)), [this, made] { Deliver(made); });
}

// Sites are found by a rule, then the answer names who shares an island; some answers never come.
void CoordinatorNode::Group(const GroupWorkers& query) {
  SitesFound found;
  for (const PlanMember& worker : query.members) {
    const char* site = worker.member.worker.back() % 2 == 0 ? "even" : "odd";
    found.workers.push_back({worker.member.worker, site, "simulated"});
  }
  const bool by_site = query.spec.layout.island == IslandScope::kSite || world_.rng.Chance(0.4);
  const WorkersGrouped grouped{query.job, query.request,
                               by_site ? IslandScope::kSite : IslandScope::kAll, "simulated"};
  if (world_.faulty() && world_.rng.Chance(world_.options.no_plan)) return;
  AfterInRun(world_.UpTo(seconds(3)), [this, found, grouped] {
    Deliver(found);
    if (core_) Deliver(grouped);
  });
}

void CoordinatorNode::WorkerLost(const NodeId& worker, Incarnation incarnation,
                                 int64_t connection) {
  if (alive() && connections_[worker] == connection) {
    Deliver(ConnectionLost{MemberKind::kWorker, worker, incarnation});
  }
}

void CoordinatorNode::ServerLost(const NodeId& server, Incarnation incarnation,
                                 int64_t connection) {
  if (alive() && connections_[server] == connection) {
    Deliver(ConnectionLost{MemberKind::kServer, server, incarnation});
  }
}

const ProgressRecord* CoordinatorNode::Progress() const {
  for (const ProgressRecord* progress : ListProgress()) {
    if (!world_.checker.IsOther(progress->job)) return progress;
  }
  return nullptr;
}

std::vector<const ProgressRecord*> CoordinatorNode::ListProgress() const {
  std::vector<const ProgressRecord*> all;
  // By their key: this is called after every event, and stores are large.
  for (auto at = store_.lower_bound(MakeRecordKey(ProgressRecord{})); at != store_.end(); ++at) {
    const auto* progress = std::get_if<ProgressRecord>(&at->second);
    if (progress == nullptr) break;
    if (!world_.checker.IsOfSite(progress->job)) all.push_back(progress);
  }
  return all;
}

bool CoordinatorNode::HasWhole(const NodeId& server) const {
  for (const auto& [key, record] : store_) {
    const auto* job = std::get_if<JobRecord>(&record);
    if (job == nullptr) continue;
    for (const ShardDescriptor& shard : job->shards) {
      const auto fills = [&](const ShardReplica& r) { return r.fill && r.replaces == server; };
      if (FindReplica(shard, fills) != nullptr) return false;
    }
  }
  return true;
}

bool CoordinatorNode::StoresJobs() const {
  return std::any_of(store_.begin(), store_.end(), [](const auto& entry) {
    return !std::holds_alternative<EpochRecord>(entry.second) &&
           !std::holds_alternative<MemberRecord>(entry.second) &&
           !std::holds_alternative<RemovedRecord>(entry.second);
  });
}

// ---------------------------------------------------------------------------------- member ----

void Member::KeepConnecting() {
  AfterInRun(milliseconds(20) + world_.UpTo(milliseconds(500)), [this] {
    if (connected_) return;
    if (!world_.coordinator().alive() || !world_.network.IsReachable(name(), "coordinator")) {
      return KeepConnecting();
    }
    connected_ = true;
    world_.coordinator().Connected(name(), ++connection_);
    OnConnected();
  });
}

void Member::Disconnect() {
  if (!alive() || !connected_) return;
  world_.Trace(absl::StrCat(name(), " loses its connection"));
  CloseByDeath();
  OnDisconnected();
  KeepConnecting();
}

// Not at once: the process that crashed may be in the middle of a Step of this member's making.
void Member::DisconnectSoon() {
  AfterInRun(world_.UpTo(milliseconds(200)), [this, connection = connection_] {
    if (connection == connection_) Disconnect();
  });
}

void Member::CloseByDeath() {
  if (!connected_) return;
  connected_ = false;
  if (world_.rng.Chance(0.3)) return;
  world_.timeline.After(world_.UpTo(milliseconds(200)),
                        [this, incarnation = incarnation_, connection = connection_] {
                          DeliverConnectionLost(incarnation, connection);
                        });
}

void Member::SendUp(CoordinatorEvent event) {
  const auto deliver = [this, event] {
    if (world_.coordinator().alive()) world_.coordinator().Deliver(event);
  };
  if (world_.faulty() && world_.rng.Chance(world_.options.ghost)) {
    world_.timeline.After(world_.UpTo(seconds(30)), deliver);
  }
  if (connected_) world_.network.Send(name(), "coordinator", deliver);
}

}  // namespace atl::sim

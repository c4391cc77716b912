// The coordinator's shell: its store survives it.

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rehearsal/players.h"

namespace atl::rehearsal {
namespace {

constexpr char kCluster[] = "00000000000000aa";
constexpr Duration kPreparedPlan = std::chrono::milliseconds(50);
// The planner prepares for the loss of so many workers (coordinator/prepared_plans.h).
constexpr size_t kPreparedLosses = 2;

}  // namespace

Coordinator::Coordinator(World* world) : Node(&world->timeline, "coordinator"), world_(*world) {}

void Coordinator::Start() {
  BeginRun();
  int64_t epoch = 1;
  if (const auto it = store_.find("epoch"); it != store_.end()) {
    epoch = std::get<EpochRecord>(it->second).epoch + 1;
  }
  CoordinatorOptions options;
  options.heartbeat_interval = kQuiet;
  options.last_progress = [this](const NodeId& leader) {
    Worker* const worker = world_.FindWorker(leader);
    worker->NoteProgress();
    return worker->progress();
  };
  options.max_shard_bytes = world_.facts.layers.front().elements * 4;
  core_.emplace(options, kCluster, epoch);
  std::vector<StoreRecord> stored;
  for (const auto& [key, value] : store_) stored.push_back(value);
  if (absl::Status status = core_->Recover(world_.timeline.now(), stored); !status.ok()) {
    world_.trouble = absl::StrCat("the coordinator does not recover: ", status.message());
    return;
  }
  Deliver(Tick{});
}

void Coordinator::Crash() {
  if (!alive()) return;
  EndRun();
  core_.reset();
  for (auto& server : world_.servers) server->Disconnect();
  for (auto& worker : world_.workers) worker->Disconnect();
}

std::vector<Reply> Coordinator::Deliver(const CoordinatorEvent& event) {
  if (!core_) return {};
  CoordinatorActions actions = core_->Step(world_.timeline.now(), event);
  for (StoreWrite& write : actions.persist) {
    if (const auto* line = std::get_if<EventRecord>(&write.record)) {
      world_.hash = XXH3_64bits_withSeed(line->text.data(), line->text.size(), world_.hash);
      continue;
    }
    const std::string key = MakeRecordKey(write.record);
    if (write.erase) {
      store_.erase(key);
      continue;
    }
    if (std::holds_alternative<ProgressRecord>(write.record)) progress_key_ = key;
    store_.insert_or_assign(key, std::move(write.record));
  }
  Carry(actions);
  return actions.replies;
}

void Coordinator::Carry(const CoordinatorActions& actions) {
  for (const ToWorker& message : actions.to_workers) {
    Worker* const worker = world_.FindWorker(message.worker);
    world_.Say(site(), worker->site(),
               [worker, event = worker::Event(worker::Received{message}),
                connection = worker->connection()] {
                 if (worker->connection() == connection) worker->Deliver(event);
               });
  }
  for (const ToServer& message : actions.to_servers) {
    Server* const server = world_.FindServer(message.server);
    world_.Say(site(), server->site(), [server, message, connection = server->connection()] {
      if (server->alive() && server->connection() == connection) {
        server->Deliver(ps::FromCoordinator{message});
      }
    });
  }
  for (const GroupWorkers& query : actions.groups) {
    WorkersGrouped grouped{query.job, query.request, world_.scene.island_scope, "as planned"};
    AfterInRun(world_.scene.times.plan, [this, grouped] { Deliver(grouped); });
  }
  for (const MakePlan& query : actions.plans) Plan(query);
  ArmTick(actions.next_deadline, [this] { Deliver(Tick{}); });
}

// A plan for the loss of one or two workers has been prepared; others are searched for.
void Coordinator::Plan(const MakePlan& query) {
  ++plans_;
  PlanMade made = world_.planner.Plan(query.island, query, query.current,
                                      static_cast<int32_t>(world_.facts.layers.size()));
  made.job = query.job;
  made.island = query.island;
  made.request = query.request;
  std::vector<NodeId> members;
  for (const PlanMember& member : query.members) members.push_back(member.member.worker);
  std::sort(members.begin(), members.end());
  std::vector<NodeId>& before = planned_[query.island];
  const bool loss = std::includes(before.begin(), before.end(), members.begin(), members.end()) &&
                    before.size() <= members.size() + kPreparedLosses && !query.current;
  before = members;
  AfterInRun(loss ? kPreparedPlan : world_.scene.times.plan,
             [this, made = std::move(made)] { Deliver(made); });
}

const ProgressRecord* Coordinator::progress() const {
  const auto found = store_.find(progress_key_);
  return found == store_.end() ? nullptr : &std::get<ProgressRecord>(found->second);
}

}  // namespace atl::rehearsal

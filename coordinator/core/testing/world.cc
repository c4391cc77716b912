#include "coordinator/core/testing/world.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "coordinator/core/testing/describe.h"

namespace atl::testing {

World::World(CoordinatorOptions options)
    : options_(options), core_(std::make_unique<CoordinatorCore>(options, kCluster, 1)) {
  ATOLL_CHECK(core_->Recover(now_, {}).ok());
}

std::string World::Do(const std::string& line) {
  printed_.clear();
  const Command command(line);
  ATOLL_CHECK(!command.words.empty(), "no command: ", line);
  const std::string& verb = command.words[0];
  if (verb == "server") {
    DoServer(command);
  } else if (verb == "worker") {
    DoWorker(command);
  } else if (verb == "servers" && command.Has("snapshot")) {
    for (auto& [name, server] : servers_) {
      for (auto& [id, job] : server.jobs) job.snapshot = job.version;
      if (server.alive) Heartbeat(name, server);
    }
  } else if (verb == "servers") {
    bool more = AnswerOnce();
    while (more && !command.Has("once")) more = AnswerOnce();
  } else if (verb == "submit") {
    Submit(command);
  } else if (verb == "wait") {
    Wait(command.Number(1));
  } else if (verb == "coordinator") {
    DoCoordinator(command);
  } else if (verb == "planner") {
    DoPlanner(command);
  } else if (verb == "again") {
    Step(CoordinatorEvent(last_event_));
  } else if (verb == "show") {
    Show();
  } else if (const std::optional<CoordinatorEvent> event = ParseEvent(command)) {
    Step(*event);
  } else {
    ATOLL_CHECK(false, "unknown command: ", line);
  }
  return printed_;
}

void World::DoLines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) Do(line);
}

JobView World::Job(const JobId& job) const {
  const std::optional<JobView> view = core_->Job(now_, job);
  ATOLL_CHECK(view, "no job ", job);
  return *view;
}

IslandView World::Island(IslandId id, const JobId& job) const { return Job(job).islands.at(id); }

void World::StartJob(const std::vector<NodeId>& servers, const std::vector<NodeId>& workers,
                     const std::string& submit) {
  for (const NodeId& name : servers) Do(absl::StrCat("server ", name, " attaches"));
  for (const NodeId& name : workers) Do(absl::StrCat("worker ", name, " attaches"));
  Do(absl::StrCat("submit min=", workers.size(), " ", submit));
  for (const NodeId& name : workers) Do(absl::StrCat("worker ", name, " prepared"));
  Do("servers answer");
  DoLines({absl::StrCat("worker ", workers[0], " pushes"),
           absl::StrCat("worker ", workers[0], " stages"), "servers answer"});
  for (const NodeId& name : workers) Do(absl::StrCat("worker ", name, " ready"));
}

void World::Contribute(const NodeId& worker, int64_t sequences, double norm) {
  DoLines({absl::StrCat("worker ", worker, " leases wanted=", sequences),
           absl::StrCat("worker ", worker, " pushes norm=", norm),
           absl::StrCat("worker ", worker, " stages")});
}

void World::Round(const std::vector<NodeId>& workers, int64_t sequences) {
  for (const NodeId& worker : workers) Contribute(worker, sequences);
  Do("servers answer");
}

std::vector<StoreRecord> World::stored() const {
  std::vector<StoreRecord> records;
  for (const auto& [key, record] : store_) records.push_back(record);
  return records;
}

void World::Step(const CoordinatorEvent& event) {
  if (on_event) on_event(event);
  last_event_ = event;
  const CoordinatorActions actions = core_->Step(now_, event);
  if (after_event) after_event(event);
  for (const StoreWrite& write : actions.persist) {
    if (const auto* log = std::get_if<EventRecord>(&write.record)) {
      log_.push_back(*log);
      Print(absl::StrCat("log ", log->job, log->job.empty() ? "" : " ", log->text));
      continue;
    }
    const std::string key = MakeRecordKey(write.record);
    store_.erase(key);
    if (!write.erase) store_.emplace(key, write.record);
  }
  const bool often = ++steps_ % kOftenEnough == 0 || store_.size() < kManyRecords;
  if (checks && often) CheckStore();
  ATOLL_CHECK(actions.next_deadline > now_, "a deadline that has passed: the shell would spin");
  for (const Reply& reply : actions.replies) {
    reply_ = reply.status;
    Print(absl::StrCat("reply ", reply.job, reply.job.empty() ? "" : " ", reply.status.ToString()));
  }
  for (const ToWorker& to : actions.to_workers) Deliver(to);
  for (const ToServer& to : actions.to_servers) Deliver(to);
  for (const GroupWorkers& query : actions.groups) Group(query);
  for (const MakePlan& query : actions.plans) Plan(query);
}

void World::DoPlanner(const Command& command) {
  planner_speed_ = command.Real("speed", planner_speed_);
  if (command.Has("waits")) planner_ = PlannerMode::kWaits;
  if (command.Has("refuses")) {
    planner_ = PlannerMode::kRefuses;
    planner_refusal_ = command.Text("reason");
  }
  if (command.Has("answers")) planner_ = PlannerMode::kAnswers;
  if (command.Has("groups")) {
    groups_ = command.Has("site")  ? IslandScope::kSite
              : command.Has("all") ? IslandScope::kAll
                                   : IslandScope::kWorker;
  }
  if (planner_ == PlannerMode::kWaits) return;
  for (const GroupWorkers& query : std::exchange(pending_groups_, {})) Group(query);
  for (const MakePlan& query : std::exchange(pending_plans_, {})) Plan(query);
}

void World::Group(const GroupWorkers& query) {
  std::string names;
  for (const PlanMember& worker : query.members) absl::StrAppend(&names, " ", worker.member.worker);
  Print(absl::StrCat("groups", names, "?"));
  if (planner_ == PlannerMode::kWaits) {
    pending_groups_.push_back(query);
    return;
  }
  Step(WorkersGrouped{query.job, query.request, groups_, "as the test says"});
}

void World::Plan(const MakePlan& query) {
  if (planner_ == PlannerMode::kWaits) {
    pending_plans_.push_back(query);
    return;
  }
  PlanMade made{query.job, query.island, query.request,
                absl::ResourceExhaustedError(planner_refusal_)};
  if (planner_ == PlannerMode::kAnswers) {
    made.plan = TestPlan(query, planner_speed_);
  }
  Step(made);
}

void World::CheckStore() {
  std::vector<StoreRecord> stored = this->stored();
  const std::vector<StoreRecord> claimed = core_->Stored();
  for (size_t i = 0; i < std::min(stored.size(), claimed.size()); ++i) {
    ATOLL_CHECK(stored[i] == claimed[i], "not stored as it is: ", MakeRecordKey(stored[i]), " / ",
                MakeRecordKey(claimed[i]));
  }
  ATOLL_CHECK(stored.size() == claimed.size(), stored.size(), " stored, ", claimed.size());
  CoordinatorCore second(options_, core_->cluster(), core_->epoch() + 1);
  const absl::Status status = second.Recover(now_, stored);
  ATOLL_CHECK(status.ok(), status.ToString());
  std::vector<StoreRecord> recovered = second.Stored();
  std::erase_if(stored, [](const auto& r) { return std::holds_alternative<EpochRecord>(r); });
  ATOLL_CHECK(recovered == stored, "recovery gives another state");
}

void World::DoCoordinator(const Command& command) {
  const std::string what = command.words.at(1);
  if (what == "is-held-up") {
    const std::chrono::seconds held(command.Number(2));
    now_ += held;
    Step(Stalled{held});
  } else if (what == "is-backed-up") {
    backup_ = store_;
    backup_mark_ = {core_->cluster(), core_->epoch()};
  } else if (what == "puts-its-store-aside") {
    aside_ = store_;
    aside_mark_ = {core_->cluster(), core_->epoch()};
  } else if (what == "takes-its-store-back") {
    store_ = aside_;
    Restart(aside_mark_.cluster, aside_mark_.epoch + 1);
  } else if (what == "is-rolled-back") {
    store_ = backup_;
    Restart(backup_mark_.cluster, backup_mark_.epoch + 1);
  } else if (what == "is-restored") {
    store_ = backup_;
    const EpochRecord own = AfterLoss(std::get<EpochRecord>(store_.at("epoch")), 0);
    store_["epoch"] = own;
    Restart(own.cluster, own.epoch + 1);
  } else if (what == "is-lost") {
    store_.clear();
    Restart(command.Text("cluster", core_->cluster()), 1);
  } else {
    if (what == "crashes-at") crashed_ = command.words.at(2);
    Restart(core_->cluster(), core_->epoch() + 1);
  }
}

namespace {

// Accepts messages as members do.
template <typename To>
bool Accepts(const ClusterMark& mark, const To& to) {
  return mark.cluster.empty() || (to.cluster == mark.cluster && to.epoch >= mark.epoch);
}

template <typename To>
void Remember(const To& to, ClusterMark& mark) {
  if (std::holds_alternative<Refused>(to.message)) return;
  if (std::holds_alternative<Welcome>(to.message)) mark.cluster = to.cluster;
  mark.epoch = to.epoch;
  mark.sequence = std::max(mark.sequence, to.sequence);
}

}  // namespace

void World::Deliver(const ToWorker& to) {
  Print(absl::StrCat("-> ", to.worker, ": ", Describe(to.message)));
  Worker& worker = workers_[to.worker];
  if (to.incarnation != worker.incarnation || !Accepts(worker.mark, to)) return;
  Remember(to, worker.mark);
  if (const auto* forget = std::get_if<ForgetJob>(&to.message)) {
    std::erase(worker.held, forget->job);
  }
  if (const auto* prepare = std::get_if<PrepareJob>(&to.message)) {
    worker.job_to_prepare = prepare->job;
    worker.preparation = prepare->request;
  }
  if (const auto* order = std::get_if<IslandOrder>(&to.message)) {
    if (order->generation != worker.order.generation || order->job != worker.order.job) {
      worker.leases.clear();
      worker.ready = false;
    }
    if (order->plan.number != worker.order.plan.number) worker.set_up = false;
    worker.order = *order;
    worker.member = MemberOrder();
    if (order->run == RunState::kStop) {
      worker.order = IslandOrder();
      worker.holds_layers = false;
    }
  }
  if (const auto* order = std::get_if<MemberOrder>(&to.message)) {
    worker.holds_layers = worker.holds_layers || worker.set_up;
    worker.member = *order;
    worker.order = IslandOrder();
    worker.set_up = false;
    if (order->run == RunState::kStop) {
      worker.member = MemberOrder();
      worker.holds_layers = false;
    }
  }
  if (const auto* fill = std::get_if<FillShards>(&to.message)) worker.fill = *fill;
  if (const auto* grant = std::get_if<LeaseGrant>(&to.message)) {
    if (grant->request == worker.request && !grant->ranges.empty()) {
      worker.leases.insert(worker.leases.end(), grant->ranges.begin(), grant->ranges.end());
      ++worker.request;
    }
  }
  if (const auto* grant = std::get_if<PushGrant>(&to.message)) {
    worker.granted = grant->contribution;
    worker.to_stage = grant->order;
  }
}

void World::Deliver(const ToServer& to) {
  const std::string text = Describe(to.message);
  if (std::holds_alternative<FenceIslands>(to.message)) {
    // Repeated with every heartbeat.
    if (last_fences_[to.server] == text) return;
    last_fences_[to.server] = text;
  }
  Print(absl::StrCat("-> ", to.server, ": ", text));
  Server& server = servers_[to.server];
  if (!Accepts(server.mark, to)) return;
  Remember(to, server.mark);
  if (to.incarnation == server.incarnation && server.alive)
    server.pending_messages.push_back(to.message);
}

void World::Submit(const Command& command) {
  submitted_ = command.Int("number", submitted_ + 1);
  Step(SubmitJob{1, ParseJobSpec(command), submitted_, command.Text("owner")});
}

void World::Wait(int64_t seconds) {
  for (int64_t second = 1; second <= seconds; ++second) {
    now_ += std::chrono::seconds(1);
    if (std::chrono::duration_cast<std::chrono::seconds>(now_.time_since_epoch()).count() % 2 ==
        0) {
      for (auto& [name, server] : servers_) {
        if (server.alive && !server.silent) Heartbeat(name, server);
      }
      for (auto& [name, worker] : workers_) {
        if (worker.alive && !worker.silent) Heartbeat(name, worker);
      }
    }
    Step(Tick{});
  }
}

void World::Restart(ClusterId cluster, int64_t epoch) {
  core_ = std::make_unique<CoordinatorCore>(options_, std::move(cluster), epoch);
  const absl::Status status = core_->Recover(now_, stored(), std::exchange(crashed_, ""));
  ATOLL_CHECK(status.ok(), status.ToString());
  for (auto& [name, server] : servers_) server.pending_messages.clear();
  last_fences_.clear();
  Step(Tick{});
}

void World::Show() {
  for (const JobSummary& job : core_->Jobs().jobs) {
    const JobView view = Job(job.job);
    Print(absl::StrCat("= ", job.job, " ", Name(job.state), " (", job.reason, "), version ",
                       job.version, ", ", job.tokens_committed, " of ", job.tokens_budget,
                       " tokens", job.waiting_for.empty() ? "" : ", waits: ", job.waiting_for));
    for (const IslandView& island : view.islands) {
      Print(absl::StrFormat(
          "=   island %d of %s generation %d: %s; %d accepted, %d rejected, %d "
          "tokens, %d leased",
          island.island, island.worker, island.generation, island.activity, island.rounds_accepted,
          island.rounds_rejected, island.tokens_committed, island.leased_sequences));
      if (!island.plan && island.planning.empty()) continue;
      std::string line = absl::StrCat("=     ", Describe(island.plan.value_or(IslandPlan())));
      if (!island.planning.empty()) absl::StrAppend(&line, "; ", island.planning);
      for (const IslandWorkerView& w : island.workers) {
        absl::StrAppend(&line, "; ", w.worker,
                        w.leads     ? " leads"
                        : w.in_plan ? " follows"
                                    : " spare",
                        " (plan ", w.plan_number, ")");
      }
      Print(line);
    }
    Print(absl::StrFormat("=   round %s; data: %d committed, %d pushed, %d leased, %d free",
                          view.round.phase, view.ledger.committed, view.ledger.pushed,
                          view.ledger.leased, view.ledger.free));
  }
}

}  // namespace atl::testing

// A small cluster for tests: a real CoordinatorCore with its store, and scripted members, driven by
// commands of one line each. The unit tests and tests/scenarios use them.
//
//   server ps-0 attaches [incarnation=N] [memory=BYTES] [empty]   with what its disk holds
//          [site=TEXT] [site-only]
//   server ps-0 attaches lacks=SHARD         with that, but for a shard that was being filled
//   server ps-0 attaches stranger            another folder of that name, for this once
//   server ps-0 fetches-nothing              from other servers, from now on
//   server ps-0 dies | goes-silent | faults [passing] reason=TEXT
//   worker a attaches [incarnation=N] [site=TEXT] [devices=N]
//   worker a attaches incarnation=N rival    another process; the one before stays
//   worker a dies | goes-silent | leaves
//   worker a prepared [digest=N] [sequences=N] [measured=1] [scale=N] [heads=N] [experts=N] |
//   refuses reason=TEXT
//                                            scale: a model of so many times 80 elements
//   worker a ready [speed=TOKENS_PER_S]      a heartbeat: holds the ordered version
//   worker a leases [wanted=N] [request=N]
//   worker a pushes [norm=X] [consumed=0-4] [base=V] [tokens=N] [generation=N] [incarnation=N]
//          [experts=N,M]                    tokens that each saw
//   worker a stages [shards=N]               N (or all) of the granted shards reach their servers
//   worker a validates loss=X [version=V] [tokens=N] [set=NAME set-loss=X] [score=X [tasks=N]]
//                                            of all tasks of its order, or of the first ones
//   servers answer [once]                    to all requests; until no message is left
//   servers snapshot
//   submit [name=] [min=] [max=] [servers=] [tokens=] [steps=] [batch=] [grace=] [wait-for-all]
//          [steps-min=N] [no-balance] [no-overlap] [adaptive-grace] [validate=] [clip=] [copies=2]
//          [evaluate=N,M]                   tasks "arc", "wiki", scored every N, M rounds
//          [quantised-pulls]
//          [from=JOB[@VERSION]]             begins with that job's parameters
//          [island=site|all|auto] [fragments=N] [expert-fragments=N] [site-rounds=N]
//          [priority=N] [weight=N] [owner=NAME] [keep-outliers]
//          [exclude=a,b/1] [pinned=oslo]    what layout.exclude and layout.sites name
//          [per-island=N] [sites=oslo,rome] [set=NAME]    sequences are of 10 tokens; sites have
//                                           data of their own; a validation set
//   pause | resume | cancel | remove | adopt JOB;  refill JOB server=ps-0;  drain MEMBER [undo]
//   wait SECONDS                             heartbeats of all that are neither dead nor silent
//   worker a beats [measuring=TEXT]          a heartbeat: under a new order, it has stopped
//   worker a pulls ps-0=BYTES_PER_S ps-1=...     so fast, by its heartbeats from now on
//   worker a stands-still                    its heartbeats show no progress from now on
//   worker a lags                            it keeps the version that it has, until it is ready
//   worker a fills                           what it was ordered to, where a server expects it
//   worker a steps-on                        but not from now on: its step takes long
//   worker b follows                         a heartbeat: serves its leader under the ordered plan
//   worker a sets-up                         a heartbeat: its island is set up for the ordered plan
//   worker a saves holders=abc [step=] [consumed=] [number=] [base=] [disk]    two hold each
//   worker a replans reason=TEXT              the same, with a replan request
//   planner answers | waits | refuses reason=TEXT    from now on; answers is what it begins with
//   planner speed=X                          its steps take X times as long
//   planner groups site|all|worker           what it answers to GroupWorkers; site is first
//   sites a=SITE b=SITE                      found by measuring
//   changed WORKER reason=TEXT [unusable] [subject=TEXT] [size=X]
//                                            what is known of the worker; _ in TEXT is a space
//   coordinator restarts | crashes-at JOB
//   coordinator is-backed-up | is-restored | is-rolled-back
//                        a copy of its store; a start from that, by --restore or by mistake
//   coordinator puts-its-store-aside | takes-its-store-back     to be with a wrong one meanwhile
//   coordinator is-lost [cluster=ID]         a start from an empty store, of that cluster
//                                            (members say hello when they have to attach again)
//   coordinator is-held-up SECONDS           stalls: receives and does nothing
//   again                                    the last event once more: a duplicate
//   show
//
// After every Step it checks that the writes so far add up to what the core says is stored, and
// that a second core which recovers from them says the same.

#ifndef ATOLL_COORDINATOR_CORE_TESTING_WORLD_H_
#define ATOLL_COORDINATOR_CORE_TESTING_WORLD_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/testing/command.h"
#include "coordinator/core/testing/planner.h"

namespace atl::testing {

class World {
 public:
  explicit World(CoordinatorOptions options = CoordinatorOptions());

  // Carries out the line and returns what the coordinator did, one line each.
  std::string Do(const std::string& line);
  void HandleEvent(const CoordinatorEvent& event) { Step(event); }
  // Returns all lines of the log, with severities, which Do does not print.
  const std::vector<EventRecord>& log() const { return log_; }
  // Several lines; for setting up a test.
  void DoLines(const std::vector<std::string>& lines);

  CoordinatorCore& core() { return *core_; }
  Instant now() const { return now_; }
  JobView Job(const JobId& job = "lm-1") const;
  IslandView Island(IslandId id, const JobId& job = "lm-1") const;
  // The last order to the worker.
  const IslandOrder& Order(const NodeId& worker) { return workers_[worker].order; }
  const MemberOrder& Membership(const NodeId& worker) { return workers_[worker].member; }
  const std::vector<PositionRange>& Leases(const NodeId& worker) { return workers_[worker].leases; }
  // The number of the worker's newest PrepareJob, which grows.
  int64_t Preparation(const NodeId& worker) { return workers_[worker].preparation; }
  const ClusterMark& GetClusterMark(const NodeId& worker) { return workers_[worker].mark; }
  const absl::Status& reply() const { return reply_; }
  // Returns what the core has stored.
  std::vector<StoreRecord> stored() const;
  // Returns the stored records of one kind, in the order of their keys.
  template <class Record>
  std::vector<Record> Stored() const {
    std::vector<Record> found;
    for (const StoreRecord& record : core_->Stored()) {
      if (const auto* one = std::get_if<Record>(&record)) found.push_back(*one);
    }
    return found;
  }

  // Before each Step, and after it; may be null.
  std::function<void(const CoordinatorEvent&)> on_event, after_event;
  bool checks = true;  // the store, after Steps

  // A job with these servers and workers, up to version 0 applied and every island ready.
  void StartJob(const std::vector<NodeId>& servers, const std::vector<NodeId>& workers,
                const std::string& submit);
  // The worker trains `sequences` and its push is complete.
  void Contribute(const NodeId& worker, int64_t sequences, double norm = 1);
  // All of these do, and the servers answer.
  void Round(const std::vector<NodeId>& workers, int64_t sequences);

 private:
  struct Worker {
    Incarnation incarnation = 0;
    bool alive = false;
    bool silent = false;
    JobId job_to_prepare;
    int64_t preparation = 0;
    IslandOrder order;
    MemberOrder member;         // job empty: it follows no leader
    bool set_up = false;        // under the plan of `order` or `member`
    bool holds_layers = false;  // layers of an island
    bool steps_on = false;
    ClusterMark mark;
    std::vector<JobId> held;
    bool stands_still = false;
    bool lags = false;
    FillShards fill;  // the newest order
    int64_t inner_step = 0;
    Version base = kNoVersion;
    std::vector<SavedState> saved;
    std::string replan_reason;
    std::string measuring;
    std::map<NodeId, double> pull_rates;
    std::vector<std::string> unreached;
    std::vector<PositionRange> leases;
    int64_t request = 1;
    int64_t wanted = 0;
    bool ready = false;
    double speed = 100;
    double exchange_s = 0;
    ContributionId granted;
    std::vector<GrantedPush> to_stage;
  };
  struct ServerJob {
    AssignShards assignment;
    CommitRound newest = {"", kNoVersion, {}, {}};
    Generation generation = 0;
    bool ended = false;
    Version version = kNoVersion;
    Version snapshot = kNoVersion;
    std::set<PushId> staged;
    ReceiveShards receiving;  // the newest order that fills shards
  };
  struct Server {
    Incarnation incarnation = 0;
    bool alive = false;
    bool silent = false;
    bool fetches_nothing = false;
    std::map<JobId, ServerJob> jobs;  // its disk
    ClusterMark mark;
    std::vector<ToServerMessage> pending_messages;
  };

  void Step(const CoordinatorEvent& event);
  void CheckStore();
  // Each check of many records takes long: then it is not made after each Step.
  static constexpr size_t kManyRecords = 200;
  static constexpr int kOftenEnough = 50;
  void Deliver(const ToWorker& to);
  void Deliver(const ToServer& to);
  void Plan(const MakePlan& query);
  void Group(const GroupWorkers& query);
  void DoCoordinator(const Command& command);
  void DoPlanner(const Command& command);
  void Print(const std::string& line) { printed_ += line + "\n"; }

  void DoServer(const Command& command);
  void DoWorker(const Command& command);
  void AttachWorker(const NodeId& name, Worker& worker, const Command& command);
  void Push(const NodeId& name, Worker& worker, const Command& command);
  void Save(const NodeId& name, Worker& worker, const Command& command);
  void Stage(const NodeId& name, Worker& worker, int64_t shards);
  void FillServers(const FillShards& order);
  void Heartbeat(const NodeId& name, Worker& worker);
  void Heartbeat(const NodeId& name, Server& server);
  void Submit(const Command& command);
  void Wait(int64_t seconds);
  void Restart(ClusterId cluster, int64_t epoch);
  std::map<NodeId, Server>::iterator FindAt(const std::string& endpoint);
  void PushTo(const PushContribution& push);
  HeldJob Held(const JobId& id, const ServerJob& job) const;
  bool AnswerOnce();
  void Answer(const NodeId& name, Server& server, const ToServerMessage& message);
  Statistics Gram(const Server& server, const CollectStatistics& request);
  void Show();

  static constexpr char kCluster[] = "00000000000000aa";

  CoordinatorOptions options_;
  int64_t submitted_ = 0;
  Instant now_{};
  std::unique_ptr<CoordinatorCore> core_;
  int64_t steps_ = 0;
  std::vector<EventRecord> log_;
  std::map<std::string, StoreRecord> store_, backup_, aside_;
  ClusterMark backup_mark_, aside_mark_;
  std::map<NodeId, Worker> workers_;
  std::map<NodeId, Server> servers_;
  std::map<ContributionId, double> norms_;
  std::map<NodeId, std::string> last_fences_;
  CoordinatorEvent last_event_ = Tick{};
  absl::Status reply_;
  JobId crashed_;  // the next start finds this
  enum class PlannerMode { kAnswers, kWaits, kRefuses };
  PlannerMode planner_ = PlannerMode::kAnswers;
  std::string planner_refusal_;
  double planner_speed_ = 1;
  std::vector<MakePlan> pending_plans_;
  std::vector<GroupWorkers> pending_groups_;
  IslandScope groups_ = IslandScope::kSite;
  std::string printed_;
};

}  // namespace atl::testing

#endif  // ATOLL_COORDINATOR_CORE_TESTING_WORLD_H_

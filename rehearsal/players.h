// The daemons of a rehearsed run: the real cores of the coordinator, parameter servers and workers,
// on virtual time. What surrounds the cores is modelled: how long commands, transfers and the
// detection of a failure take, and which of an island's state a loss leaves.
//
// Cores count in a small model: as many layers as there are fragments and servers for, of a few
// elements each. Transfers have the real model's bytes. All pseudo-gradients are alike, so none is
// rejected.
//
// Heartbeats that report no change are not sent: the coordinator learns of a loss when its
// detection is over.

#ifndef ATOLL_REHEARSAL_PLAYERS_H_
#define ATOLL_REHEARSAL_PLAYERS_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/thread_pool.h"
#include "coordinator/core/core.h"
#include "rehearsal/accounts.h"
#include "rehearsal/links.h"
#include "rehearsal/planner.h"
#include "rehearsal/scene.h"
#include "rehearsal/world/node.h"
#include "rehearsal/world/server_process.h"
#include "worker/core/core.h"

namespace atl::rehearsal {

// Members whose state does not change say nothing for so long.
inline constexpr Duration kQuiet = std::chrono::hours(24);
inline constexpr Duration kClosed{200'000'000};  // until a closed connection shows

class Coordinator;
class Server;
class Worker;

// The training state that an island's members hold, whichever leads it.
struct IslandState {
  Generation generation = 0;
  bool valid = false;
  int64_t plan_number = 0;      // that it is held by
  std::vector<NodeId> members;  // with a part, when it was set up
  std::set<std::pair<NodeId, Incarnation>> holders;
  std::deque<int64_t> saves;  // on its members' disks, the newest last
  int64_t steps = 0;          // that it has made in this generation, by all its leaders
  int64_t adopted_at = 0;     // of these, before its base: what a loss of the state leaves
  int64_t copied_at = -1;     // likewise, before the copies in other members' memory; -1: none

  int64_t steps_at_risk() const { return steps - adopted_at; }
};

struct World {
  // Both outlive it.
  World(const Scene* scene, Searches* searches);
  ~World();

  Worker* FindWorker(const NodeId& name) const;
  Server* FindServer(const NodeId& name) const;
  // Carries a short message; while the link is down it waits.
  void Say(const std::string& from_site, const std::string& to_site, Timeline::Action deliver);

  const Scene& scene;
  Planner planner;
  Timeline timeline;
  Links links;
  ThreadPool pool{1};
  Accounts accounts;
  JobSpec spec;    // as the cores see it
  JobFacts facts;  // likewise
  double layer_parameters = 0;
  Instant horizon;  // nothing is played beyond
  std::unique_ptr<Coordinator> coordinator;
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::unique_ptr<Worker>> workers;
  std::unordered_map<NodeId, size_t> worker_index;
  std::map<IslandId, IslandState> islands;
  std::map<std::pair<Generation, NodeId>, Leadership> handed_over;  // by who led
  std::map<int64_t, std::vector<NodeId>> saves;  // on these members' disks, by number
  int64_t next_save = 1;
  int64_t reach = 0;  // grows when a worker starts or ends, a link breaks or is mended
  int64_t trained_tokens = 0;
  int64_t steps = 0;
  int64_t leaps = 0;
  uint64_t hash = 0;    // of the coordinator's decisions, without their times
  std::string trouble;  // a broken guarantee: the rehearsal is of no use
};

class Coordinator : public Node {
 public:
  explicit Coordinator(World* world);

  void Start();
  void Crash();
  std::vector<Reply> Deliver(const CoordinatorEvent& event);
  const ProgressRecord* progress() const;
  const CoordinatorCore* core() const { return core_ ? &*core_ : nullptr; }
  const std::string& site() const { return world_.scene.coordinator_site; }
  int64_t plans() const { return plans_; }

 private:
  void Carry(const CoordinatorActions& actions);
  void Plan(const MakePlan& query);

  World& world_;
  std::map<std::string, StoreRecord> store_;
  std::optional<CoordinatorCore> core_;
  std::map<IslandId, std::vector<NodeId>> planned_;  // members of each island's newest plan
  std::string progress_key_;
  int64_t plans_ = 0;
};

// A daemon that keeps a connection to the coordinator.
class Member : public Node {
 public:
  Member(World* world, std::string name, std::string site);

  const std::string& site() const { return site_; }
  Incarnation incarnation() const { return incarnation_; }
  bool connected() const { return connected_; }
  int64_t connection() const { return connection_; }
  // The coordinator has ended, or cannot be reached any more.
  void Disconnect();
  // The coordinator notices after `detection` that this run, or its connection, is over.
  void ReportLost(Duration detection);

 protected:
  virtual void OnConnected() = 0;
  virtual void OnDisconnected() = 0;
  virtual MemberKind kind() const = 0;
  void ConnectAfter(Duration delay);
  void SendUp(CoordinatorEvent event);

  World& world_;
  const std::string site_;
  Incarnation incarnation_ = 0;
  bool connected_ = false;
  int64_t connection_ = 0;  // what was said on an earlier one is lost
};

class Server : public Member, private ServerProcess::Host {
 public:
  Server(World* world, std::string name, std::string site);

  void Start();
  void Crash(bool machine);  // as a worker's
  void LoseDisk();           // likewise
  void Deliver(const ps::Event& event) { process_.Deliver(event); }
  ServerProcess& process() { return process_; }

 private:
  MemberKind kind() const override { return MemberKind::kServer; }
  void OnConnected() override { Deliver(ps::ConnectionUp{}); }
  void OnDisconnected() override { Deliver(ps::ConnectionDown{}); }

  // ---- ServerProcess::Host ----
  Instant Now() const override { return world_.timeline.now(); }
  void After(Duration delay, Timeline::Action action) override {
    AfterInRun(delay, std::move(action));
  }
  void Arm(Instant deadline, Timeline::Action tick) override { ArmTick(deadline, std::move(tick)); }
  void SendUp(ServerMessage message) override {
    Member::SendUp(FromServer{name(), incarnation_, std::move(message)});
  }
  void Fetch(const ps::FetchPart& fetch) override;
  void Forward(const ps::ForwardPush& push) override;
  void Note(const std::string&) override {}
  void Fail(const std::string& what) override;
  Duration SyncDelay() override { return std::chrono::milliseconds(5); }
  Duration SnapshotDelay() override { return std::chrono::seconds(1); }
  Duration EraseDelay() override { return std::chrono::milliseconds(100); }
  Duration WorkDelay() override { return std::chrono::milliseconds(2); }

  ServerProcess process_;
};

// A worker's process: the real core, and its island's devices as times. worker.cc has its runs,
// commands.cc what it does for its core, leaps.cc how steps pass.
class Worker : public Member {
 public:
  Worker(World* world, size_t index, const SceneWorker* described);

  void Start();
  // Its process ends now; `machine`: with its machine, so that only silence shows it.
  void Crash(bool machine);
  void Leave(Duration notice);
  // Loses what it has saved. REQUIRES: it is down.
  void LoseDisk();
  void Deliver(const worker::Event& event);
  size_t index() const { return index_; }
  // A member of the island that it leads cannot be reached any more: the step does not end.
  void MemberLost();
  // It may be reached again.
  void MembersBack();
  // Nothing passes between these sites.
  void LinkDown(const Links::Ends& ends);
  // Counts the steps that have ended by now: the run is over.
  void BringTo(Instant end);
  bool Leads(const NodeId& member) const;
  std::vector<NodeId> ListMembers() const;  // of the island that it leads, or sets up
  // Notes whether its island makes progress now, as heartbeats would show it.
  void NoteProgress();
  Instant progress() const { return progress_; }

 private:
  using WorkerCore = worker::WorkerCore;
  // Work of the devices by themselves: steps, and copies of the state in other members' memory.
  struct Pace {
    bool stepping = false;
    Instant step_began, step_ends;
    int64_t step_tokens = 0;
    // In leaps: the state is copied, and steps go on.
    Instant copied = kNever;
    // Others have the copies, of the island's state after so many steps.
    Instant kept = kNever;
    int64_t kept_steps = 0;
  };
  struct Made {
    int64_t steps = 0;
    int64_t tokens = 0;
    Duration copying{0};      // without steps
    int64_t kept_steps = -1;  // of the newest copies
  };
  // Work that a copy of the core has done ahead of time.
  struct Leap {
    std::unique_ptr<WorkerCore> ahead;
    Pace pace;
    Made made;
    Instant last;             // its end
    worker::Actions actions;  // then
  };
  MemberKind kind() const override { return MemberKind::kWorker; }
  void OnConnected() override { Deliver(worker::Connected{}); }
  void OnDisconnected() override { Deliver(worker::ConnectionLost{"the coordinator is lost"}); }

  // ---- worker.cc ----
  Use CurrentUse() const;
  Use FollowedUse(const Worker& leader) const;
  void UpdateUse();
  void Carry(const worker::Actions& actions);
  void End();
  // Its outstanding command ends in this event after `delay`, unless it is interrupted.
  void Finish(Duration delay, worker::Event event);

  // ---- commands.cc ----
  void Do(const worker::Send& action);
  void Do(const worker::Prepare& action);
  void Do(const worker::Reconfigure& action);
  void Do(const worker::MakeInitialWeights& action);
  void Do(const worker::TrainStep& action);
  void Do(const CaptureDelta& action);
  void Do(const worker::AdoptPulled& action);
  void Do(const worker::Validate& action);
  void Do(const worker::SaveState& action);
  void Do(const worker::Handover& action);
  void Do(const worker::InterruptStep& action);
  void Do(const worker::Follow& action);
  void Do(const worker::Unfollow& action);
  void Do(const worker::ReleaseJob& action);
  void Do(const StartPull& action);
  void Do(const PushShards& action);
  void Do(const worker::CancelTransfers& action);
  void Do(const worker::Stop& action);
  void Do(const worker::RememberCluster& action) { mark_ = action.mark; }
  void Do(const worker::Note&) {}
  void Do(const worker::UseRelays&) {}  // links are as described
  void Do(const MeasureLinks&) {}       // the described cluster has them
  void Do(const TraceNextStep&) {}      // not requested
  void SetUpIfAllFollow();
  void SetUp();
  void EndSetUp(worker::Reconfigured done, Duration replay);
  absl::Status PlanAlone();
  bool IsHere(const IslandMember& member, const Worker& worker) const;
  bool Follows(const worker::Reconfigure& action, const IslandMember& member) const;
  bool AllHere();  // and the links between them are up
  // Returns what the devices still hold of the island's state under the plan that is being set up,
  // and how long it takes to move and replay.
  worker::Reconfigured KeepState(Duration* takes, Duration* replay);
  void NoteParts();
  void HoldState();
  // Calls `done` when so many bytes have moved on each of these paths.
  void MoveState(const std::vector<std::pair<Links::Path, double>>& moves, Timeline::Action done);
  // Lists what members without the island's state receive, and from where.
  std::vector<std::pair<Links::Path, double>> ListStateMoves(
      const IslandPlan& plan, const std::set<std::pair<NodeId, Incarnation>>& had) const;
  // Lists what each member sends the next ones, to be kept in their memory.
  std::vector<std::pair<Links::Path, double>> ListCopies() const;
  // The devices' work of so long was lost, or of another use.
  void LoseWork(Use from, Duration time);
  void MoveWork(Use from, Use to, Duration time);
  void ChargeLostSteps();
  SavedState MakeSavedState(const worker::SaveState& action) const;
  Duration CopyTime(double bytes_per_parameter) const;
  Duration StateCopyTime() const;
  // Returns how long the copies are on their way; none: other transfers decide that.
  std::optional<Duration> PredictCopies() const;
  bool CopiesByItself(const worker::SaveState& action) const {
    return action.tier == Tier::kMemory && (redundant_ || copies_take_);
  }
  worker::StateCopied CopiedState() const {
    return {redundant_ ? worker::Kept::kByOwners : worker::Kept::kCopied};
  }
  // Begins copies of the state after so many steps.
  void BeginCopies(Instant now, int64_t steps, Pace& pace) const;
  void ScheduleKept();
  void NoteSave(int64_t save);
  void CancelAll(std::vector<int64_t>& transfers);
  // Forgets those at the end that have arrived.
  bool AnyMoves(std::vector<int64_t>& transfers) const;
  void SendShares(const Server& server, bool receives, double bytes, Timeline::Action done);
  void PushPart(const PushShards& action, const ShardPart& part);
  void PullPart(const StartPull& action, const ShardPart& part);
  void CheckPull(int64_t pull, int64_t transfers, int64_t seen);
  bool Wants(int64_t run_then, int64_t transfers_then) const {
    return alive() && run() == run_then && transfers_ == transfers_then;
  }

  // ---- leaps.cc ----
  // Plans the end of the step under way: alone, or of all up to the next thing that matters.
  void ScheduleStep(Instant deadline);
  bool TryLeap(Instant deadline);
  void EndStep();
  void EndLeap();
  void RollBack();
  worker::StepDone DoneStep(int64_t tokens) const;
  // Ends what is under way and ends then, or begins what the core orders. False: that is another
  // thing than a step or copies.
  worker::Actions EndInLeap(Instant at, WorkerCore& core, Pace& pace, Made& made) const;
  bool BeginInLeap(Instant at, const worker::Actions& actions, int64_t steps, Pace& pace) const;
  void Count(const Made& made);
  Duration step_time() const { return Duration(plan_.step_ns); }
  int64_t Tokens(const std::vector<PositionRange>& ranges) const;

  const size_t index_;
  const SceneWorker& described_;
  ClusterMark mark_;
  std::set<JobId> held_;
  std::unique_ptr<WorkerCore> core_;
  int64_t command_ = 0;       // number of the outstanding command's end
  bool outstanding_ = false;  // but for a step
  bool preparing_ = false;
  bool leaving_ = false;
  bool said_ = false;  // in the newest Step: an answer may come soon
  JobId job_;

  // Leading.
  std::optional<worker::Reconfigure> reconfigure_;  // under way
  bool setting_up_ = false;
  IslandId island_ = -1;
  Generation generation_ = 0;
  IslandPlan plan_;            // set up; number 0 and no members: none
  std::vector<Worker*> team_;  // its members, or this worker
  size_t followed_by_ = 0;     // the first so many members follow reconfigure_'s plan
  bool leads_ = false;
  int64_t all_here_at_ = -1;          // World::reach when plan_'s members were all here
  Use noted_use_ = Use::kRestarting;  // by its members' accounts, too
  std::vector<NodeId> parts_;         // members with a part
  // Shares of the model that owners at each site push and pull, of the plan that is set up.
  std::map<std::string, double> owned_;
  bool redundant_ = false;               // that plan has everything on two workers
  std::optional<Duration> copies_take_;  // see PredictCopies

  // Following.
  std::optional<MemberOrder> follows_;

  // Work that is under way by itself.
  Pace pace_;
  int64_t kept_number_ = 0;
  bool stuck_ = false;  // a member is lost: it does not end
  bool scheduled_ = false;
  int64_t step_number_ = 0;
  std::optional<Leap> leap_;

  int64_t transfers_ = 0;  // generation of transfers; older ones are cancelled
  std::vector<int64_t> on_links_;
  std::vector<int64_t> state_on_links_;  // between members
  int64_t pull_number_ = -1;             // of the one under way
  int64_t pull_missing_ = 0;
  Instant progress_;
  int64_t pull_arrived_ = 0;  // parts of all pulls
};

}  // namespace atl::rehearsal

#endif  // ATOLL_REHEARSAL_PLAYERS_H_

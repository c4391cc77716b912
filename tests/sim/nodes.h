// The simulated shells around the cores: what a daemon's threads, disk and sockets do, in virtual
// time. A node that is down has no core; its disk stays.

#ifndef ATOLL_TESTS_SIM_NODES_H_
#define ATOLL_TESTS_SIM_NODES_H_

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "coordinator/recording/recorder.h"
#include "paramserver/core/core.h"
#include "rehearsal/world/node.h"
#include "rehearsal/world/server_process.h"
#include "tests/sim/cluster.h"
#include "tests/sim/member.h"
#include "tests/sim/toy_trainer.h"
#include "worker/core/core.h"
#include "worker/island/control/follower_control.h"
#include "worker/island/control/leader.h"

namespace atl::sim {

class CoordinatorNode : public rehearsal::Node {
 public:
  explicit CoordinatorNode(World* world) : Node(&world->timeline, "coordinator"), world_(*world) {}

  void Start();
  // With an empty store, of another cluster or of the members' own, by mistake; until it crashes.
  void StartEmpty(bool other_cluster);
  // With what its store was at the newest BackUp, put back by mistake (members notice) or by
  // --restore; or with an empty store by --cluster.
  enum class Loss { kOlderCopy, kRestored, kLost };
  void StartAfter(Loss loss);
  void BackUp() { backup_ = store_; }
  bool has_backup() const { return !backup_.empty(); }
  void Crash();
  // Returns what Step replied; only for requests of users.
  std::vector<Reply> Deliver(const CoordinatorEvent& event);

  // A member's new connection, known by a number; Lost is ignored for replaced ones.
  void Connected(const NodeId& member, int64_t connection) { connections_[member] = connection; }
  void WorkerLost(const NodeId& worker, Incarnation incarnation, int64_t connection);
  void ServerLost(const NodeId& server, Incarnation incarnation, int64_t connection);

  CoordinatorCore* core() { return core_ ? &*core_ : nullptr; }
  bool mistaken() const { return mistaken_; }  // it has not the right store
  // Returns the progress of the user's first job; null if there is none; until the next event.
  const ProgressRecord* Progress() const;
  std::vector<const ProgressRecord*> ListProgress() const;  // of all jobs of users
  bool StoresJobs() const;
  // None of the job's shards on the server is lost any more.
  bool HasWhole(const NodeId& server) const;

 private:
  void Carry(const CoordinatorActions& actions);
  void CheckStore();
  void BeginRecording();
  void Plan(const MakePlan& query);
  void Group(const GroupWorkers& query);

  World& world_;
  std::map<std::string, StoreRecord> store_, backup_;  // the disk
  int64_t losses_ = 0;
  bool mistaken_ = false;  // and nothing of what it does reaches store_
  std::optional<CoordinatorCore> core_;
  std::unique_ptr<EventRecorder> recorder_;  // where the world has a folder for it
  std::map<NodeId, int64_t> connections_;
};

// A daemon that keeps a connection to the coordinator.
class Member : public rehearsal::Node {
 public:
  Member(World* world, std::string name)
      : Node(&world->timeline, std::move(name)), world_(*world) {}

  virtual const ClusterMark& mark() const = 0;  // on its disk
  // The connection breaks; it is tried again until the coordinator is there.
  void Disconnect();
  void DisconnectSoon();

 protected:
  virtual void OnConnected() = 0;
  virtual void OnDisconnected() = 0;
  virtual void DeliverConnectionLost(Incarnation incarnation, int64_t connection) = 0;
  // The process has ended: the coordinator may notice the closed connection, or only the silence.
  void CloseByDeath();
  void KeepConnecting();
  // Sends to the coordinator over this incarnation's network; some messages come back as ghosts.
  void SendUp(CoordinatorEvent event);

  World& world_;
  Incarnation incarnation_ = 0;
  bool connected_ = false;
  int64_t connection_ = 0;
};

class ServerNode : public Member, private rehearsal::ServerProcess::Host {
 public:
  using PushAnswer = rehearsal::ServerProcess::PushAnswer;
  using PullAnswer = rehearsal::ServerProcess::PullAnswer;

  // `site`: it holds shards of this site's jobs alone; "": of users' jobs.
  ServerNode(World* world, std::string name, std::string site = "")
      : Member(world, std::move(name)), site_(std::move(site)), process_(this, &world->pool) {}

  void Start();
  void Crash();
  // Moves its folder aside: it starts with an empty one. Swaps back when called again.
  void SwapFolder();
  // It is down, and starts with an empty folder.
  void LoseDisk();
  const std::string& site() const { return site_; }
  const ClusterMark& mark() const override { return process_.mark(); }
  void Deliver(const ps::Event& event);
  // From a worker. `answer` runs on this node when the core answers; it sends the answer back.
  void Push(ps::PushArrived event, PushAnswer answer) {
    process_.Push(std::move(event), std::move(answer));
  }
  void Pull(ps::PullArrived event, PullAnswer answer) {
    process_.Pull(std::move(event), std::move(answer));
  }

  ps::ServerCore* core() { return process_.core(); }
  bool holds_jobs() { return !process_.disk().empty(); }  // on its disk
  // A folder that is moved aside does not come back.
  void LoseFolder() { moved_aside_.clear(); }

 private:
  void OnConnected() override { Deliver(ps::ConnectionUp{}); }
  void OnDisconnected() override { Deliver(ps::ConnectionDown{}); }
  void DeliverConnectionLost(Incarnation incarnation, int64_t connection) override;
  void NoteFences(const ToServer& message);

  // ---- rehearsal::ServerProcess::Host ----
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
  void Note(const std::string& text) override { world_.Trace(absl::StrCat(name(), ": ", text)); }
  void Fail(const std::string& what) override {
    world_.checker.Fail(absl::StrCat("N1: ", name(), " ", what));
  }
  Duration SyncDelay() override;
  Duration SnapshotDelay() override;
  Duration EraseDelay() override;
  Duration WorkDelay() override { return std::chrono::milliseconds(2); }
  void SpoilDisk(rehearsal::ServerProcess::Disk& disks) override;
  bool LogIsFull() override;
  bool SnapshotFails() override;
  void Appending(const ps::AppendLog& append) override;
  // Fails if the server says that something is durable which a crash now could take.
  void Saying(const ServerMessage& message) override;
  void Erasing(const JobId& job) override;

  const std::string site_;
  rehearsal::ServerProcess process_;
  rehearsal::ServerProcess::Disk moved_aside_;
  ClusterMark mark_unavailable_;
  int64_t epoch_seen_ = 0;                                   // newest coordinator seen
  std::map<JobId, std::map<IslandId, IslandFence>> fences_;  // highest ones of this incarnation
};

// The state that an island's devices are to hold: what its leader believes, and the checks compare.
struct IslandState {
  LayerValues theta;  // empty: not known, it is about to be replaced
  LayerValues moment;
  int64_t optimizer_step = 0;
};

// The real core, leader and follower around a toy member (member.h).
class WorkerNode : public Member {
 public:
  WorkerNode(World* world, std::string name, double slowness)
      : Member(world, std::move(name)), slowness_(slowness) {}

  void Start();
  void Crash();
  void Deliver(const worker::Event& event);
  void Leave();  // SIGTERM
  void End();    // the simulation is over
  const ClusterMark& mark() const override { return mark_; }
  std::string GetActivity() const { return core_ ? core_->activity() : "down"; }
  const std::shared_ptr<SimMember>& member() const { return member_; }

 private:
  struct Pull {
    int64_t number = 0;
    size_t missing = 0;
    int64_t steps = 0;  // parts that came as steps
  };
  struct ToyStep {
    std::vector<PositionRange> ranges;
    double learning_rate = 0;
  };
  // Knowledge of the checks about an island, for its next leader.
  struct Known {
    std::optional<IslandState> state;
    std::vector<PositionRange> since_base, captured_on;
    Version adopted = kNoVersion;
    int64_t carried = 0;
    std::optional<ContributionId> captured;
    std::optional<ToyStep> stepping;
  };

  void OnConnected() override { Deliver(worker::Connected{}); }
  void OnDisconnected() override { Deliver(worker::ConnectionLost{"simulated"}); }
  void DeliverConnectionLost(Incarnation incarnation, int64_t connection) override;
  void CrashAndRestart();

  // ---- worker_node.cc ----
  void Do(const worker::Send& action) { SendUp(FromWorker{name(), incarnation_, action.message}); }
  void Do(const worker::InterruptStep& action);
  void Do(const worker::Follow& action);
  void Do(const worker::Unfollow& action);
  void Do(const MeasureLinks&) {}       // the simulated planner does not request it
  void Do(const TraceNextStep&) {}      // not requested
  void Do(const worker::UseRelays&) {}  // no node relays
  void Do(const worker::CancelTransfers& action);
  void Do(const worker::Stop& action);
  void Do(const worker::RememberCluster& action) { mark_ = action.mark; }
  void Do(const worker::Note& action) { world_.Trace(absl::StrCat(name(), ": ", action.text)); }
  void Post(worker::Event event);
  void RunFollower();
  absl::Status AwaitFree();

  // ---- transfer_node.cc ----
  void Do(const StartPull& action);
  void Do(const PushShards& action);
  std::map<NodeId, std::vector<ShardPart>> GroupPartsByOwner(
      const std::vector<ShardPart>& shards) const;
  // `slot`: in full, or as a step.
  void PullPart(const StartPull& action, const NodeId& owner, const ShardPart& part,
                int64_t transfer, int32_t slot);
  void PushPart(const PushShards& action, const NodeId& sender, const ShardPart& part);
  bool Fill(ps::PushArrived& event, const PushShards& action, const NodeId& sender,
            const ShardPart& part) const;
  void EndPull(int64_t transfer, worker::Event event);

  // ---- island_node.cc ----
  // Commands are the leader's.
  template <class Command>
  void Do(const Command& command) {
    command_ = command;
    leader_->Enqueue(command);
  }
  void Do(const worker::Prepare& action);
  void Do(const worker::TrainStep& action);
  void Do(const worker::AdoptPulled& action);
  void Do(const worker::Validate& action);
  void Do(const worker::SaveState& action);
  void Do(const worker::ReleaseJob& action) { leader_->Enqueue(action); }
  void MakeLeader();
  void OnCall(const GroupFrame& call);
  void RemoveJob(const JobId& job);
  // Compares what it reports of the island's state with what is there.
  template <class T>
  void Check(const T&) {}
  void Check(const worker::Prepared& event) { Forget(event.job); }
  void Check(const worker::PrepareFailed& event) { Forget(event.job); }
  void Check(const worker::Reconfigured& event);
  void Check(const worker::HandedOver& event);
  void Check(const worker::InitialWeightsMade& event);
  void Check(const worker::StepDone& event);
  void Check(const worker::DeltaCaptured& event);
  void Check(const worker::DeltaReady& event);
  void Check(const worker::Adopted& event);
  void Check(const worker::ValidationDone&) { CheckWhole("has validated"); }
  void Check(const worker::StateCopied& event);
  void Check(const worker::StateSaved& event);
  void Check(const worker::CommandFailed& event);
  void Forget(const JobId& next);
  void CheckKept(const worker::Reconfigured& taken);

  // ---- island_checks.cc ----
  bool GatherLayer(const WorkerNode& node, int32_t layer, std::optional<int64_t>* step,
                   IslandState* state);
  std::optional<IslandState> Gather();
  void CheckWhole(const char* when);
  void Remember(const IslandState& state);
  void CheckMoments(std::span<const float> pushed, std::span<const float> captured);
  void CheckDelta(const CaptureDelta& action, const JobId& job, const LayerValues& theta);
  LayerValues OfOwners(OuterKind kind);

  const double slowness_;
  ClusterMark mark_;
  Disk disk_;
  std::optional<worker::WorkerCore> core_;
  std::shared_ptr<SimMember> member_;
  std::shared_ptr<worker::IslandLeader> leader_;
  std::shared_ptr<worker::FollowerControl> follower_;
  bool follower_runs_ = false;
  worker::Action command_;               // the newest
  std::optional<LayerValues> addition_;  // of an adoption, before it
  CaptureDelta capture_;                 // the newest, and the parameters then
  LayerValues captured_theta_, captured_moment_;
  JobId job_;  // of spec_
  JobSpec spec_;
  std::pair<IslandId, Generation> island_{-1, 0};  // that it leads
  Known known_, kept_;
  std::map<int64_t, std::pair<LocalCheckpoint, IslandState>> saving_;  // by inner step
  bool leaving_ = false;
  Pull pull_;
  int diverged_ = 0;    // steps that ended in no number since the newest capture
  Instant sick_until_;  // its steps are far too long, some end in no number
  int64_t next_transfer_ = 1;
  std::set<int64_t> transfers_;  // still wanted
};

}  // namespace atl::sim

#endif  // ATOLL_TESTS_SIM_NODES_H_

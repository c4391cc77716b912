// The simulated shells around the cores: what a daemon's threads, disk and sockets do, in virtual
// time. A node that is down has no core; its disk stays.

#ifndef ATOLL_TESTS_SIM_NODES_H_
#define ATOLL_TESTS_SIM_NODES_H_

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "paramserver/core/core.h"
#include "tests/sim/cluster.h"
#include "tests/sim/toy_trainer.h"
#include "worker/core/core.h"

namespace atl::sim {

// A process that can die. What was scheduled for one life does nothing in the next.
class Node {
 public:
  Node(World* world, std::string name) : world_(*world), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  bool alive() const { return alive_; }

 protected:
  // Runs `action` after `delay` if this life still lasts.
  void After(Duration delay, Timeline::Action action);
  void BeginLife() {
    alive_ = true;
    ++life_;
  }
  void EndLife() {
    alive_ = false;
    ++life_;
  }
  // Calls `tick` at `deadline`, unless another deadline has replaced it by then.
  void Arm(Instant deadline, Timeline::Action tick);
  int64_t life() const { return life_; }

  World& world_;

 private:
  const std::string name_;
  bool alive_ = false;
  int64_t life_ = 0;
  int64_t deadline_number_ = 0;
};

class CoordinatorNode : public Node {
 public:
  explicit CoordinatorNode(World* world) : Node(world, "coordinator") {}

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
  // Returns what Step replied; only for requests of people.
  std::vector<Reply> Deliver(const CoordinatorEvent& event);

  // A member's new connection, known by a number; Lost is ignored for replaced ones.
  void Connected(const NodeId& member, int64_t connection) { connections_[member] = connection; }
  void WorkerLost(const NodeId& worker, Incarnation incarnation, int64_t connection);
  void ServerLost(const NodeId& server, Incarnation incarnation, int64_t connection);

  CoordinatorCore* core() { return core_ ? &*core_ : nullptr; }
  bool mistaken() const { return mistaken_; }  // it has not the right store
  std::optional<ProgressRecord> Progress() const;
  bool StoresJobs() const;
  // None of the job's shards on the server is lost any more.
  bool HasWhole(const NodeId& server) const;

 private:
  void Carry(const CoordinatorActions& actions);
  void CheckStore();
  void Plan(const MakePlan& ask);
  void Group(const GroupWorkers& ask);

  std::map<std::string, StoreRecord> store_, backup_;  // the disk
  int64_t losses_ = 0;
  bool mistaken_ = false;  // and nothing of what it does reaches store_
  std::optional<CoordinatorCore> core_;
  std::map<NodeId, int64_t> connections_;
};

// A daemon that keeps a connection to the coordinator.
class Member : public Node {
 public:
  using Node::Node;

  const ClusterMark& mark() const { return mark_; }
  // The connection breaks; it is tried again until the coordinator is there.
  void Disconnect();
  void DisconnectSoon();

 protected:
  virtual void OnConnected() = 0;
  virtual void OnDisconnected() = 0;
  virtual void TellCoordinatorLost(Incarnation incarnation, int64_t connection) = 0;
  // The process is gone: the coordinator may notice the closed connection, or only the silence.
  void CloseByDeath();
  void KeepConnecting();
  // Sends to the coordinator over this life's network; some messages come back as ghosts.
  void SendUp(CoordinatorEvent event);

  ClusterMark mark_;  // on its disk
  Incarnation incarnation_ = 0;
  bool connected_ = false;
  int64_t connection_ = 0;
};

class ServerNode : public Member {
 public:
  using Member::Member;

  void Start();
  void Crash();
  // Its folder is away: it starts with an empty one. Swaps back when called again.
  void SwapFolder();
  void Deliver(const ps::Event& event);
  // From a worker. `answer` runs on this node when the core answers; it sends the answer back.
  using PushAnswer = std::function<void(PushStatus, std::string)>;
  using PullAnswer = std::function<void(const ps::ReplyPull*, const ps::RefusePull*)>;
  void Push(ps::PushArrived event, PushAnswer answer);
  void Pull(ps::PullAsked event, PullAnswer answer);

  ps::ServerCore* core() { return core_ ? &*core_ : nullptr; }
  bool holds_jobs() const { return !disk_.empty(); }  // on its disk
  // What is away does not come back.
  void LoseFolder() { away_.clear(); }

 private:
  struct JobDisk {
    std::map<ps::LogSequence, ps::LogRecord> log;
    ps::LogSequence synced = 0;
    std::vector<std::shared_ptr<const ps::Snapshot>> snapshots;  // newest last, at most two
  };

  void OnConnected() override { Deliver(ps::ConnectionUp{}); }
  void OnDisconnected() override { Deliver(ps::ConnectionDown{}); }
  void TellCoordinatorLost(Incarnation incarnation, int64_t connection) override;
  std::vector<ps::RecoveredJob> Recover();
  void Carry(ps::Actions actions);
  void Append(ps::AppendLog append);
  // Fails if the server says that something is durable which a crash now could take.
  void CheckDurable(const ServerMessage& message);
  void NoteFences(const ToServer& message);
  void SyncLater(const JobId& job, Duration delay);
  void WriteSnapshot(std::shared_ptr<const ps::Snapshot> snapshot);
  void Fetch(const ps::FetchPart& fetch);
  void Forward(const ps::ForwardPush& push);
  void Erase(const JobId& job);

  std::map<JobId, JobDisk> disk_, away_;
  ClusterMark mark_away_;
  std::optional<ps::ServerCore> core_;
  std::set<JobId> syncing_;
  int64_t epoch_seen_ = 0;                  // newest coordinator that was heard
  std::map<IslandId, IslandFence> fences_;  // highest ones that this life has been told
  std::map<ps::Token, PushAnswer> push_answers_;
  std::map<ps::Token, PullAnswer> pull_answers_;
  ps::Token next_token_ = 1;
};

class WorkerNode : public Member {
 public:
  WorkerNode(World* world, std::string name, double slowness)
      : Member(world, std::move(name)), slowness_(slowness) {}

  void Start();
  void Crash();
  void Deliver(const worker::Event& event);
  void Leave();  // SIGTERM
  std::string Doing() const { return core_ ? core_->doing() : "down"; }

 private:
  // What this worker's disk has of a save: the layers that it held.
  struct Saved {
    LocalCheckpoint about;
    std::map<int32_t, std::vector<float>> layers;
  };
  struct Pull {
    int64_t number = 0;
    size_t missing = 0;
    bool over = false;
  };

  void OnConnected() override { Deliver(worker::Connected{}); }
  void OnDisconnected() override { Deliver(worker::ConnectionLost{"simulated"}); }
  void TellCoordinatorLost(Incarnation incarnation, int64_t connection) override;
  void Do(const worker::Send& action) { SendUp(FromWorker{name(), incarnation_, action.message}); }
  void Do(const worker::Prepare& action);
  void Do(const worker::MakeInitialWeights& action);
  void Do(const worker::TrainStep& action);
  void Do(const worker::CaptureDelta& action);
  void Do(const worker::SaveState& action);
  void Do(const worker::AdoptPulled& action);
  void Do(const worker::Validate& action);
  void Do(const worker::ReleaseJob& action);
  void Do(const worker::Reconfigure& action);
  void Do(const worker::HandOver& action);
  void Do(const worker::InterruptStep& action);
  void Do(const worker::Follow& action);
  void Do(const worker::Unfollow& action);
  void Do(const MeasureLinks&) {}   // the simulated planner does not ask
  void Do(const TraceNextStep&) {}  // nobody asks
  void Do(const worker::StartPull& action);
  void Do(const worker::PushShards& action);
  void Do(const worker::CancelTransfers& action);
  void Do(const worker::Stop& action);
  void Do(const worker::RememberCluster& action) { mark_ = action.mark; }
  void Do(const worker::Note& action) { world_.Trace(absl::StrCat(name(), ": ", action.text)); }

  void PullShard(const worker::StartPull& action, const ShardPlacement& shard, int64_t transfer);
  void PushShard(const worker::PushShards& action, const worker::ShardPart& shard);
  void EndPull(int64_t transfer, worker::Event event);
  void Capture(const worker::CaptureDelta& action);
  void MakeDelta(const worker::CaptureDelta& action);
  void Quantize(const worker::CaptureDelta& action);
  void SettleResidual(const worker::AdoptPulled& action);

  // ---- group_node.cc: an island of several workers ----
  // Whose state a shard is a part of.
  struct Owner {
    IslandId island = -1;
    Generation generation = 0;
    bool operator==(const Owner&) const = default;
  };
  struct Shard {
    std::vector<float> theta;
    int64_t clock = 0;  // grows with every step and every new set of parameters
    Owner owner;
    std::vector<PositionRange> trained_on;  // since the base, in no captured delta yet
    int64_t step = 0;                       // that made it; 0: none, it was written
  };
  struct Serving {
    JobId job;
    Generation generation = 0;
    int64_t plan = 0;
    bool operator==(const Serving&) const = default;
  };
  struct ToyStep {
    std::vector<PositionRange> ranges;
    double learning_rate = 0;
    float scale = 1;
  };
  // A step that the leader has taken, and this worker is about to: it is a little behind.
  struct LateStep {
    ToyStep step;
    Owner owner;
    int64_t clock = 0;  // before it
    int64_t number = 0;
  };
  // What this worker knows of the island that it led, for whom takes over.
  struct Kept {
    worker::Leadership leadership;
    ToyTrainer trainer;
    std::vector<PositionRange> since_base;
    Version adopted = kNoVersion;
    int64_t carried = 0;
    std::optional<ContributionId> captured;
    int64_t clock = 0;
    std::optional<ToyStep> stepping;
    std::map<NodeId, int64_t> owners;
  };
  NodeId HolderOf(int32_t layer) const;
  WorkerNode* Partner(const NodeId& worker, std::string& why);
  std::string WhyNotTogether();
  void Together(Duration delay, Timeline::Action finish);
  void FailTogether(const std::string& why);
  void SetUp(Instant deadline);
  std::map<int32_t, Shard> Find(int64_t clock);
  void MoveState();
  bool TakeOver(std::string& why);
  void CrashAndRestart();
  bool FromDisks(int64_t save, std::map<int32_t, Shard>& state);
  // A save that goes on beside steps.
  struct Saving {
    LocalCheckpoint about;
    SavedState state;
    std::map<NodeId, Saved> parts;
    std::map<NodeId, int64_t> lives;
  };
  void WriteSaved(Saving saving);
  bool Gather();
  bool Scatter(const std::vector<PositionRange>& trained_on);
  void Take(const LateStep& step);
  void TakeLate();
  void HearAll();
  void AgreeOnStep();
  void TakeStepSomewhere();
  void StepTogether(const worker::TrainStep& action, Duration took, float scale, double loss);
  void OwnersKeep();
  bool AnOwnerIsGone();

  const double slowness_;
  std::map<int64_t, Saved> disk_;  // by save: the newest two
  std::optional<worker::WorkerCore> core_;
  ToyTrainer trainer_;
  JobSpec spec_;
  std::vector<PositionRange> since_base_;  // trained on, in no captured delta yet
  Version adopted_ = kNoVersion;
  int64_t carried_ = 0;                     // sequences of since_base_ at the last adoption
  std::optional<ContributionId> captured_;  // since the last adoption
  // Who keeps theta_base and what is pushed of its layers: the process that does. Empty: nothing is
  // kept yet, or it is all here.
  std::map<NodeId, int64_t> owners_;
  std::map<int32_t, Shard> held_;    // layers on this worker's device
  std::optional<Serving> serving_;   // under which plan, as leader or follower
  IslandPlan plan_;                  // that it leads; no members: none
  Owner owner_;                      // the island that it leads
  int64_t clock_ = 0;                // of the newest whole state
  std::optional<ToyStep> stepping_;  // under way, or failed and not known to be taken or not
  std::optional<LateStep> late_;     // given up if it is told to follow another plan
  int64_t late_number_ = 0;
  std::optional<LateStep> waits_;  // given up where it was committed: others may have taken it
  std::optional<Kept> kept_;
  NodeId take_over_from_;  // in the Reconfigure under way
  int64_t resume_ = 0;     // likewise
  bool together_ = false;  // a command of several devices is under way
  int64_t together_number_ = 0;
  bool leaving_ = false;
  Pull pull_;
  int diverged_ = 0;    // steps that ended in no number since the newest capture
  Instant sick_until_;  // its steps are far too long, some end in no number
  int64_t next_transfer_ = 1;
  std::set<int64_t> transfers_;  // still wanted
};

}  // namespace atl::sim

#endif  // ATOLL_TESTS_SIM_NODES_H_

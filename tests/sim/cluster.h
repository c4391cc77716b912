// A whole Atoll in one thread: the real cores of the coordinator, parameter servers and workers,
// and the real control of islands, on virtual time, a faulty network and disks that forget what was
// not synced. Of an island only devices and links are toys (member.h).
//
// Fault injection: one seed gives one history. Nodes crash and restart, connections break, messages
// are lost, repeated, delayed and reordered, old messages arrive again; then the faults
// stop and the job must finish. checker.h says what must hold all the while.

#ifndef ATOLL_TESTS_SIM_CLUSTER_H_
#define ATOLL_TESTS_SIM_CLUSTER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/control.h"
#include "common/rng.h"
#include "common/thread_pool.h"
#include "coordinator/core/core.h"
#include "rehearsal/world/timeline.h"
#include "tests/sim/checker.h"
#include "tests/sim/network.h"
#include "worker/pipeline/engine.h"

namespace atl::sim {

struct OtherJob {
  Duration submitted{};
  JobSpec spec;
  std::string owner = {};
};

struct ClusterOptions {
  uint64_t seed = 1;
  int workers = 3;
  int servers = 2;
  JobSpec spec;
  std::vector<OtherJob> others;  // that share the workers; their names are all different
  std::vector<DeviceQuota> quotas = {};
  std::string owner = {};  // of the first job
  NetworkFaults network;
  Duration faults_until = std::chrono::seconds(60);
  Duration crash_every = std::chrono::seconds(20);  // mean, over all nodes; 0: never
  Duration disconnect_every = std::chrono::seconds(15);
  Duration isolate_every = std::chrono::seconds(40);
  Duration pause_every = std::chrono::seconds(90);
  // The share of the coordinator's crashes after which one with an empty store runs in its place
  // for a while.
  double mistaken_coordinator = 0.3;
  double lost_store = 0.4;  // of its other crashes: it comes back with another store
  Duration back_up_every = std::chrono::seconds(8);
  bool moves = false;  // shards move by themselves
  // Parameter servers that are for their site's jobs alone, by site ("even", "odd").
  std::map<std::string, int> site_servers = {};
  bool late_site_servers = false;     // they start while the job runs
  double site_disk_lost = 0;          // of their crashes: what they held is lost for good
  int late_servers = 0;               // more servers, that start while the job runs
  Duration drain_every{0};            // mean: a member is drained for a while
  double unavailable_long = 0;        // of a server's crashes: others' copies are used meanwhile
  double disk_lost = 0;               // of a server's crashes: its folder is lost, and refilled
  double folder_missing = 0.15;       // of a server's crashes: it runs without its folder a while
  double spoiled_statistics = 0.003;  // of each request for them: the job fails, and is resumed
  double crash_inside_step = 0.0005;  // of the coordinator, after it persisted and before it sent
  double disk_full = 0.001;           // of each append of a server
  double ghost = 0.01;                // of each message to come back seconds later
  double step_fails = 0.001;          // of each inner step
  Duration leave_every{0};            // mean: a worker ends on purpose, and comes back
  double link_breaks = 0.01;          // of each step of several workers
  double replan_request_chance =
      0.02;                        // of each such step to make the leader send a replan request
  double no_plan = 0.05;           // of each request to the planner to be refused
  bool sites_declared = true;      // by the workers' operators; else they are found
  Duration change_every{0};        // mean: what is known of a worker or its links changes
  double trainer_sick = 0.001;     // of each inner step to be the first of many bad ones
  double lost_writes = 0.003;      // of each layer written to a device of a shared island
  double dies_handing_over = 0.2;  // of each leader that hands its island over
  Duration limit = std::chrono::minutes(30);  // of virtual time
  bool signs = false;  // digests of pushes are compared with what servers have
  // worker-0 is hostile: its pushes are multiplied by this, or it vouches for other ones than those
  // that it makes.
  float poison = 1;
  bool lies = false;
};

// The same with shards that move and disks that are lost, and the coordinator's store whole.
ClusterOptions MovingOptions(uint64_t seed);
// Options with two servers for each shard: lost disks then cost nothing.
ClusterOptions CopiesOptions(uint64_t seed);
// With a hostile worker among at least three islands, and the rules against it.
ClusterOptions HostileOptions(uint64_t seed);
// With several jobs of unlike priorities, weights and gangs, and the coordinator's store whole.
ClusterOptions JobsOptions(uint64_t seed);
// With parameter servers of sites alone, which have jobs of their own.
ClusterOptions SitesOptions(uint64_t seed);
// Everything about the options but the seed's own history, chosen by the seed.
ClusterOptions RandomOptions(uint64_t seed);
std::string Describe(const ClusterOptions& options);

class CoordinatorNode;
class ServerNode;
class WorkerNode;
struct IslandState;
struct StepAttempt;

// State that the nodes share.
struct World {
  explicit World(const ClusterOptions& o);
  ~World();

  void Trace(const std::string& line);
  bool faulty() const { return timeline.now() - Instant{} < options.faults_until; }
  Duration UpTo(Duration limit) {
    return Duration(rng.Below(static_cast<uint64_t>(limit.count()) + 1));
  }
  CoordinatorNode& coordinator() { return *coordinator_node; }
  ServerNode* FindServer(const NodeId& name);
  WorkerNode* FindWorker(const NodeId& name);

  const ClusterOptions options;
  Timeline timeline;
  Rng rng;
  LossyNetwork network;
  ThreadPool pool;
  Checkers checker;
  // Attempts at steps of several members, the newest last; by the name that all of them know.
  std::shared_ptr<StepAttempt> FindOrAddStepAttempt(const std::string& key);
  void Commit(StepAttempt& attempt, StepSums sums, Duration late_max);
  std::deque<std::pair<std::string, std::shared_ptr<StepAttempt>>> step_attempts;
  int64_t preemptions = 0;     // islands that were called for other jobs
  std::set<uint64_t> moments;  // fingerprints of all that an island's optimizer was in at a time
  std::map<int64_t, std::pair<LocalCheckpoint, std::shared_ptr<IslandState>>> saved;  // by save
  uint64_t trace_hash = 1469598103934665603u;
  std::function<void(const std::string&)> print;  // every line of the trace, when set
  std::string record_folder;                      // for recordings of its coordinators; empty: none
  int64_t record_segment_bytes = 0;

  std::unique_ptr<CoordinatorNode> coordinator_node;
  std::vector<std::unique_ptr<ServerNode>> servers;
  std::vector<std::unique_ptr<WorkerNode>> workers;
};

struct Outcome {
  std::string failure;  // empty: every promise held and the job is done
  uint64_t trace_hash = 0;
  int64_t events = 0;
  int64_t crashes = 0;
  int64_t rounds = 0;
  int64_t rejected = 0;
  // Jobs of sites, versions that they adopted after their version 0, what the job above has taken.
  int64_t site_jobs = 0, adopted = 0, contributed = 0;
  int64_t preemptions = 0;
  Duration took{};           // virtual
  int64_t steps_redone = 0;  // of all islands, as they are shown
  int64_t steps_interrupted = 0;
};

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);
  ~Cluster();

  // Submits the jobs and runs until all have ended, then removes them and runs until nothing is
  // stored anywhere; or until a promise is broken or the limit is over.
  Outcome Run();

  World& world() { return world_; }
  // Some worker gets SIGTERM, and comes back a little later.
  void EndSomeWorker();
  int64_t crashes() const { return crashes_; }

 private:
  void Submit();
  void SubmitOther(size_t index);
  void ScheduleFaults();
  void Repeat(Duration mean, std::function<void()> fault);
  void CrashRandomMember();
  void CrashCoordinator();
  void CrashServer(ServerNode& node);
  bool MayLose(const ServerNode& node) const;
  void LoseDisk(ServerNode& node);
  void LoseDiskAtRound(ServerNode& node, int64_t decisions, int tries);
  int64_t Decisions() const;
  void Refill(ServerNode& node, int tries, size_t refilled);
  void AwaitCopies(ServerNode& node, int64_t dropped);
  void Found(ServerNode& node);
  void DrainSomeMember();
  void Undrain(const NodeId& member);
  void BreakSomeConnection();
  void IsolateRandomMember();
  void PauseForAWhile();
  void ChangeSomeProfile();
  void Resume(const JobId& job);
  bool Ended() const;     // all jobs
  bool IsPlaced() const;  // and running: version 0 is committed
  // Does what a person would: adopts, resumes.
  void Operate();
  void RemoveJob(const JobId& job);
  void CheckEnds();  // how each job has ended
  void RunUntilRemoved();
  bool HeldSomewhere() const;

  World world_;
  int64_t crashes_ = 0;
  std::set<NodeId> drained_;
  bool disk_lost_ = false;  // one at a time
  bool pausing_ = false;    // a person has paused the job, and resumes it later
  bool removing_ = false;   // it is over
};

}  // namespace atl::sim

#endif  // ATOLL_TESTS_SIM_CLUSTER_H_

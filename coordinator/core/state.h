// Everything the coordinator knows, stored and not, for the parts that change it: members.h,
// jobs.h, islands.h, rounds.h, servers.h. Private to the core.
//
// What is stored is changed through the Edit functions, so that the end of the Step can write it.

#ifndef ATOLL_COORDINATOR_CORE_STATE_H_
#define ATOLL_COORDINATOR_CORE_STATE_H_

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/estimate.h"
#include "common/protocol/outer_optimizer.h"
#include "common/protocol/round_length.h"
#include "coordinator/core/core.h"
#include "coordinator/core/islands/island_state.h"
#include "coordinator/core/job_table.h"
#include "coordinator/core/rounds/ledger.h"
#include "coordinator/core/rounds/round_state.h"
#include "coordinator/core/shards/replicas.h"

namespace atl::coord {

struct MemberId {
  MemberKind kind = MemberKind::kWorker;
  NodeId name;

  auto operator<=>(const MemberId&) const = default;
};

// Why a member is no member of its island any more, or not attached.
struct Loss {
  std::string reason;
  bool left = false;  // in order, as it says itself

  std::string text() const { return left ? "it leaves: " + reason : reason; }
};

// A relay that a member is reached through, and why this one; see relays.h.
struct RelayUse {
  MemberKind kind = MemberKind::kServer;
  NodeId name;
  Incarnation incarnation = 0;
  std::string reason;

  bool operator==(const RelayUse&) const = default;
};

struct Member {
  MemberRecord record;
  // Not stored.
  bool attached = false;
  bool welcomed = false;          // some incarnation, since the coordinator's start
  bool incarnation_seen = false;  // this incarnation, since the coordinator's start
  Instant last_heartbeat{};       // while attached
  Duration heartbeat_interval = kHeartbeatInterval;  // as its newest Welcome says
  // Silent for so long, it is evicted.
  Duration lease = kHeartbeatInterval * kMissedHeartbeatsBeforeEviction;
  Instant attached_at{};
  Instant detached_at{};                // while it is not; the coordinator's start at the earliest
  Instant evictions_suspended_until{};  // missing heartbeats until then do not evict it
  std::optional<Instant> reattach_by;   // after a restart of the coordinator
  Instant noted_deadline = kNever;      // of its entry in State::member_deadlines
  std::string reason = "not seen since the coordinator's start";
  std::string software_version;
  std::string site;                         // as its operator says
  std::string relay_address, relay_secret;  // where it relays for others; empty: nowhere
  bool relay_own = false;                   // for its own links alone
  std::vector<RelayUse> relays;             // others reach it through
  std::vector<RelayUse> dials;              // it connects to these itself: they cannot reach it
  std::string address;                      // of its link, without relays
  std::set<MemberId> dialled_by;            // those that connect to it
  std::set<std::string> unreached;          // others' addresses, by its newest heartbeat
  Incarnation rival = 0;                    // another process of its name that was refused last

  MemberId id() const { return {record.kind, record.name}; }
};

// A worker's place in an island, as far as it was noted; see State::FindAssignment.
struct NotedAssignment {
  int64_t job = 0;  // its number; 0: none
  IslandId island = 0;
  size_t follower = 0;  // at this index of its followers, or its leader
};

struct WorkerFields {
  bool has_beaten = false;  // since it attached: what it does is known
  std::vector<DeviceInfo> devices;
  std::vector<JobId> held;  // jobs of which it has a checkpoint, by its hello
  std::optional<IslandProgress> progress;
  std::optional<MemberProgress> following;     // the island it serves; see State::SetFollowing
  std::string measuring;                       // as it reports; empty: nothing
  double utilisation = 0;                      // likewise
  std::map<std::string, Estimate> pull_rates;  // bytes a second, by parameter servers' endpoints
  std::string peer_endpoint;                   // empty: it cannot share an island
  std::vector<std::string> more_peer_endpoints;
  std::string peer_public_key;
  std::string certificate;  // that it has shown, PEM; empty: none
  NotedAssignment assigned;
  bool leaving = false;                  // it ends; serves on until its state has moved
  JobId candidate_for;                   // it is to prepare this job; see State::SetCandidate
  JobId spare_for;                       // it evaluates versions of this job, idle but for that
  int64_t candidature = 0;               // PrepareJob::request
  Instant requested_at{};                // PrepareJob, first
  Instant request_again_at{};            // PrepareJob, again
  std::optional<JobFacts> prepared;      // its answer, for candidate_for
  JobId measured_for;                    // the newest job whose layers' costs it reported
  std::map<JobId, std::string> refused;  // jobs that this incarnation cannot run, and why
  std::map<JobId, Instant> stop_sent;    // of ended jobs that it still reports
};

struct Worker : Member, WorkerFields {
  // It is to have no work: it ends, or is drained.
  bool leaves() const { return leaving || record.draining; }

  template <class V>
  void VisitFields(V& v) {
    v(static_cast<Member&>(*this), static_cast<WorkerFields&>(*this));
  }
};

struct ServerFields {
  std::string endpoint;
  std::string public_key;  // of its tensor link; empty: plaintext
  int64_t memory_bytes = 0;
  ServerHeartbeat load;
  bool site_only = false;  // for jobs of its site's servers alone
};

struct Server : Member, ServerFields {
  template <class V>
  void VisitFields(V& v) {
    v(static_cast<Member&>(*this), static_cast<ServerFields&>(*this));
  }
};

// Null: the member is a server.
inline Worker* AsWorker(Member& member) {
  return member.record.kind == MemberKind::kWorker ? static_cast<Worker*>(&member) : nullptr;
}

// A job on an attached server that this coordinator does not know, or has not placed there.
struct HeldElsewhere {
  HeldJob held;
  std::optional<JobDescribed> described;
};

// The decision which workers share an island.
struct Grouping {
  int64_t request = 0;  // under way, or the last one; 0: none
  Instant requested_at{};
};

// The rates that a job's pushes may have been trained at before its settings changed, up to those
// that are based on version `until`.
struct FormerRates {
  InnerSpec inner;
  int64_t train_tokens = 0;
  Version until = kNoVersion;
};

struct Dirty {
  bool record = false;
  bool progress = false;
  std::set<IslandId> islands;
  std::set<IslandId> plans;
};

// A replica of a shard.
struct ReplicaId {
  ShardId shard = 0;
  NodeId server;

  auto operator<=>(const ReplicaId&) const = default;
};

// How far the replicas are that join now: the first of JobRecord::shards.
struct Moving {
  Version version = kNoVersion;  // at which they are received
  std::vector<ReplicaId> batch;
  int64_t batch_bytes = int64_t{256} << 20;
  std::map<ReplicaId, Version> received;
  Instant again_at{};                 // servers get requests
  Instant plan_again_at{};            // whether shards are to move
  std::optional<Instant> held_since;  // a round waits for them
  Duration hold = std::chrono::seconds(5);
  Instant fill_again_at{};
  int64_t fills = 0;  // requested
  std::map<NodeId, Instant> release_again_at;
  std::string trouble;                 // why shards that should move do not
  std::optional<Instant> balanced_at;  // moves that balance servers were planned
};

// Sums a job's replicas up by server; see Job::replicas.
struct ReplicaIndex {
  std::map<NodeId, std::vector<ShardId>> held;  // active or standby there
  std::set<NodeId> active;                      // of some shard
  std::vector<ReplicaId> joining;               // in the order of the shards
  std::set<NodeId> targets;                     // of those
  std::map<NodeId, int64_t> leaving;            // the newest placement since which one leaves
  bool fills = false;                           // some of `joining`
  // Made on demand.
  // Replicas that hold shards of a fragment (-1: of all layers), all of its or those of the
  // contribution, whose experts have not all seen tokens.
  std::map<std::pair<int64_t, ContributionId>, int64_t> pushed;
  std::map<std::pair<NodeId, Encoding>, int64_t> staged_bytes;
};

// Beginning the job of a site's servers.
struct SiteAttempt {
  Instant not_before{};
  std::string trouble;  // why the newest one failed; empty: it did not
};

// Takes a sample now and then of what happens many times a second: all in a row would be those of
// one disturbance.
struct SpacedEstimate {
  Estimate seconds;
  Instant next{};
  double last = 0;  // said again until there is a newer one

  void Add(Instant now, double value) {
    if (now < next || value == last) return;
    next = now + RoundLength::kSampleEvery;
    last = value;
    seconds.Add(value);
  }
};

// A worker that evaluates versions of a job; see sharing/spares.h.
struct Spare {
  NodeId worker;
  Incarnation incarnation = 0;
  Generation generation = 0;
  bool agrees = false;          // it has found the job's facts
  bool evaluates = false;       // the version to be validated is given to it
  Version newest = kNoVersion;  // that it was given
  Instant since{};              // it was given that, or sent its newest result
  Resending preparing;          // PrepareJob
  SentOrder sent;               // sequence 0: nothing yet
};

// An island that other jobs are to have.
struct CalledIsland {
  std::string reason;
  Instant since{};  // it was called, made a step, or had something of its push staged
};

struct Job {
  JobRecord record;
  ProgressRecord progress;
  Rounds rounds;
  std::map<IslandId, IslandRecord> islands;
  std::map<IslandId, IslandPlan> plans;  // in force
  // The ledger; a site's job shares that of the job above, where it is stored.
  std::shared_ptr<Ledger> ledger = std::make_shared<Ledger>();
  Dirty dirty;

  // Not stored.
  bool recovered = false;  // from the store of an earlier process, and not rebuilt since
  std::string waiting_for;
  std::map<IslandId, ProgressWatch> watches;
  std::map<IslandId, SpacedEstimate> exchanges;  // as islands report them
  SpacedEstimate commits;                        // of Rounds::round_took
  RoundLength round_length;
  std::map<IslandId, NextPush> next_pushes;  // of those whose speed was known; see round_steps.h
  std::map<IslandId, SentOrder> orders;
  std::map<NodeId, SentMemberOrder> member_orders;  // by follower
  std::map<IslandId, Planning> planning;
  Grouping grouping;
  std::map<IslandId, Switch> switches;
  std::map<IslandId, Instant> vacant_since;
  std::map<IslandId, CalledIsland> called;  // that are to leave the job: see sharing/scheduling.h
  std::optional<Spare> spare;
  std::map<NodeId, Incarnation> unfit_spares;             // that had no result in time
  int64_t placement_revision = 0, settings_revision = 0;  // grow with each change
  std::optional<FormerRates> former_rates;
  Instant validating_since = kNever;  // the last validation is waited for
  // Results of an island for the version to be validated that no other one has confirmed.
  std::map<IslandId, ValidationLoss> doubted_losses;
  // Leases of islands when their newest generations began.
  std::map<IslandId, std::vector<PositionRange>> leased_before;
  std::set<IslandId> touched;  // since it was reconciled, see State::Touch
  mutable std::map<IslandId, bool>
      plan_is_whole;          // where no Edit has changed it since; see PlanInForce
  Instant deadline = kNever;  // NextJobDeadline, at the last fixed point
  JobState reconciled_state = JobState::kQueued;
  Moving moving;
  std::map<std::string, SiteAttempt> site_attempts;  // by site
  mutable std::optional<ReplicaIndex> index;         // of the record, until EditRecord
  std::map<NodeId, int64_t> bytes_held;              // what of it is in State::server_use

  const JobId& id() const { return record.job; }
  const JobSpec& spec() const { return record.spec; }
  JobRecord& EditRecord() {
    dirty.record = true;
    index.reset();
    return record;
  }
  ProgressRecord& EditProgress() {
    dirty.progress = true;
    return progress;
  }
  IslandRecord& EditIsland(IslandId id) {
    dirty.islands.insert(id);
    return islands[id];
  }
  IslandPlan& EditPlan(IslandId id) {
    dirty.plans.insert(id);
    return plans[id];
  }
  void ErasePlan(IslandId id) {
    if (plans.erase(id) > 0) dirty.plans.insert(id);
  }

  // Newest version decided, applied everywhere or not.
  Version decided_version() const;
  bool ended() const;
  // A server is ahead of the store, which is outdated or restored: nothing of it may be used until
  // it is rebuilt.
  bool stale() const;
  // Has shards and islands: initializing, running, paused or finishing.
  bool active() const;
  int64_t occupied_islands() const;
  // Valid until the next EditRecord. REQUIRES: no replica has changed since the last one.
  ReplicaIndex& replicas() const;
  const ShardDescriptor& shard(ShardId id) const { return record.shards[static_cast<size_t>(id)]; }
  // The shards that the server holds, in order.
  const std::vector<ShardId>& ShardsOn(const NodeId& server) const;
  bool HoldsShards(const NodeId& server) const { return replicas().held.contains(server); }
  int64_t StagedBytes(const NodeId& server) const;
};

// Null: there is none.
template <class Map>
auto FindIn(Map& map, const typename Map::key_type& key) {
  const auto found = map.find(key);
  return found == map.end() ? nullptr : &found->second;
}

struct State {
  CoordinatorOptions options;
  ClusterId cluster;
  int64_t epoch = 0;
  bool epoch_dirty = true;
  int64_t sequence = 0;              // as in EpochRecord
  int64_t opened_at = 0;             // the stored sequence that this process found
  bool restored = false;             // it has found a store that was restored
  JobId crashed;                     // what the process before was at when it crashed; not stored
  std::string store_age;             // not empty: who has seen changes that the store lacks
  std::set<MemberId> age_witnesses;  // of such changes, that the store does not know (not stored)
  std::map<JobId, int64_t> removed;  // by users, with their records' sequence
  // Not stored.
  std::map<JobId, std::map<NodeId, HeldElsewhere>> held;
  struct Foreign {
    ClusterId cluster;
    Instant last_heartbeat{};
  };
  std::map<MemberId, Foreign> foreign;
  std::map<NodeId, Worker> workers;
  std::map<NodeId, Server> servers;
  std::set<MemberId> dirty_members;
  JobTable<Job> jobs;
  std::set<int64_t> outdated;  // jobs, by number
  std::set<int64_t> unplaced;  // jobs that are queued or prepared, by number
  bool shares = false;         // several jobs can have workers
  int64_t next_sequence = 0;   // of orders and events
  SiteRates site_rates;        // as measured
  // Where servers are by their hosts' workers; emptied when workers change. See GetServerSite.
  mutable std::map<NodeId, std::string> server_sites;
  // Use of a server by all jobs as they are stored.
  struct ServerUse {
    int64_t bytes = 0;       // of parameters and slots that the server holds or is to get
    std::set<int64_t> jobs;  // that have replicas there or links to it, by number
  };
  std::map<NodeId, ServerUse> server_use;
  int64_t next_plan_request = 0;  // of MakePlan and GroupWorkers

  // Attached members that relay, with the attached ones that each serves, and those that more
  // relays could serve.
  std::map<MemberId, std::set<MemberId>> relays;
  std::set<MemberId> lack_relays;
  std::map<std::string, std::set<MemberId>> by_address;  // attached members

  // Indices, so that a heartbeat costs the same however many members there are.
  std::map<std::pair<JobId, IslandId>, std::set<NodeId>> followed;
  std::set<NodeId> candidates;  // workers with a candidate_for
  std::set<NodeId> drained_workers;
  // When what follows from changes of members is looked for at the latest; see reconcile.h.
  Instant reconcile_by{};       // everything; at first, at once
  Instant touched_by = kNever;  // what is touched
  // One of each member, no later than its own; others than Member::noted_deadline are void.
  std::set<std::pair<Instant, MemberId>> member_deadlines;
  // Deadlines of jobs, by number; entries that their jobs do not have any more are void.
  std::set<std::pair<Instant, int64_t>> job_deadlines;

  // The Step under way.
  std::set<int64_t> touched;     // jobs, by number
  bool lost_member = false;      // by which some were touched: others may take its place
  std::set<int64_t> unfinished;  // jobs that have not reached a fixed point
  Instant now{};
  CoordinatorActions out;

  Worker* FindWorker(const NodeId& name) { return FindIn(workers, name); }
  const Worker* FindWorker(const NodeId& name) const { return FindIn(workers, name); }
  Server* FindServer(const NodeId& name) { return FindIn(servers, name); }
  const Server* FindServer(const NodeId& name) const { return FindIn(servers, name); }
  Member* FindMember(const MemberId& id);
  const Member* FindMember(const MemberId& id) const;
  Member& AddMember(const MemberId& id);  // or finds it
  int64_t CountMembers() const { return std::ssize(workers) + std::ssize(servers); }
  // what(member) of all workers, then of all parameter servers.
  template <class Do>
  void ForEachMember(Do what) {
    for (auto& [name, worker] : workers) what(worker);
    for (auto& [name, server] : servers) what(server);
  }
  template <class Do>
  void ForEachMember(Do what) const {
    for (const auto& [name, worker] : workers) what(worker);
    for (const auto& [name, server] : servers) what(server);
  }
  Job* FindJob(const JobId& id);
  const Job* FindJob(const JobId& id) const;
  // The island that the worker leads or follows in (or is to come back to); job null: none.
  template <class J>
  struct AssignmentIn {
    J* job = nullptr;
    IslandId island = -1;
    bool leads = false;
  };
  using Assignment = AssignmentIn<Job>;
  Assignment FindAssignment(const Worker& worker);
  AssignmentIn<const Job> FindAssignment(const Worker& worker) const;
  Assignment PeekAssignment(const Worker& worker);  // its job as JobTable::Peek
  Assignment FindAssignment(const NodeId& worker);  // none: also of a worker that is not known
  AssignmentIn<const Job> FindAssignment(const NodeId& worker) const;
  // Returns whether there are so many members that what follows from events is gathered; see
  // reconcile.h.
  bool HasManyMembers() const { return CountMembers() >= options.many_members; }
  // After the islands of a job have changed.
  void IndexAssignments(const Job& job, IslandId id);
  void SetCandidate(Worker& worker, const JobId& job);  // empty: of none
  void SetFollowing(Worker& worker, const std::optional<MemberProgress>& following);

  // Something has changed that decisions of the job (and of the island) are made of.
  void Touch(Job& job) { touched.insert(job.record.number); }
  void Touch(Job& job, IslandId id) {
    Touch(job);
    job.touched.insert(id);
  }
  void TouchWhole(Job& job) {
    Touch(job);
    for (const auto& [id, island] : job.islands) job.touched.insert(id);
  }

  void Send(const Worker& worker, ToWorkerMessage message);
  void SendToServer(const NodeId& server, ToServerMessage message);
  void Log(const JobId& job, Severity severity, std::string text);
  int64_t NextSequence() { return (epoch << 32) + ++next_sequence; }
  void SetState(Job& job, JobState state, std::string reason);
};

// "; w1 measures the link to w3 (2 of 5)", for workers that measure a link; empty: none does.
std::string WhoMeasures(const State& s, const std::vector<NodeId>& workers);

// Endpoints of members, with their relays.
inline constexpr size_t kEndpointBytesMax = 1024;
// Everything below `limit_bytes`, without control characters: text of members goes into logs.
std::string CleanText(const std::string& text, size_t limit_bytes = 1000);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_STATE_H_

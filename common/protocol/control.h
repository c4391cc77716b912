// The control plane's messages, as plain structs: what workers, parameter servers and the
// coordinator say to each other. Start here; docs/concepts.md describes a round.
//
// Rules that make the protocol safe (they are what the seeded simulation attacks):
//  * Any message may be lost, repeated, delayed or reordered. Every message is idempotent, and
//    a sender that still needs an answer repeats its message (kRetryInterval).
//  * Orders are levels, not edges: an IslandOrder holds all that the coordinator wants of an
//    island, and a larger `sequence` replaces a smaller one.
//  * Everything sent by a worker or parameter server carries its incarnation; everything sent by
//    the coordinator carries its cluster and its epoch. Smaller ones than those already seen are
//    ignored, and so is another cluster than the member's own.
//  * Only RemoveJob and ForgetJob delete state.
//  * The coordinator persists a decision before it sends anything that follows from it, and a
//    parameter server logs a push (and a commit) before it acknowledges it.

#ifndef ATOLL_COMMON_PROTOCOL_CONTROL_H_
#define ATOLL_COMMON_PROTOCOL_CONTROL_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/ids.h"
#include "common/protocol/device_profile.h"
#include "common/protocol/heartbeat.h"
#include "common/protocol/island_plan.h"
#include "common/protocol/job_spec.h"
#include "common/protocol/penalty_state.h"
#include "common/protocol/saved_state.h"
#include "common/protocol/step_trace.h"
#include "common/time.h"

namespace atl {

inline constexpr Duration kRetryInterval = std::chrono::seconds(2);
inline constexpr Duration kHeartbeatInterval = std::chrono::seconds(2);
inline constexpr int kMissedHeartbeatsBeforeEviction = 3;

// Names a cluster: 16 hexadecimal digits, drawn at its coordinator's first start. A member belongs
// to the cluster that welcomed it first, for good.
using ClusterId = std::string;

// What a member remembers durably of its coordinator. Cluster empty: it has followed none yet.
struct ClusterMark {
  ClusterId cluster;
  int64_t epoch = 0;  // newest seen
  // Newest seen change of the coordinator's store. A store that ends before it has lost changes.
  int64_t sequence = 0;

  bool operator==(const ClusterMark&) const = default;
};

// A mark of which only the sequence has grown is written down after so long at the latest.
inline constexpr Duration kRememberInterval = std::chrono::seconds(10);

// One layer's parameters are one contiguous vector of fp32; shards cut it into transferable ranges.
struct LayerSize {
  std::string name;
  int64_t elements = 0;
  int64_t statistics = 0;  // of these, the last ones: an outer round takes their mean

  bool operator==(const LayerSize&) const = default;
};

struct ShardPlacement {
  ShardId shard = 0;
  int32_t layer = 0;  // index into the job's layers
  int64_t begin = 0;  // first element within the layer
  int64_t elements = 0;
  NodeId server;         // parameter server that holds it
  std::string endpoint;  // where that server's tensor link listens, "tcp://host:port"
  // Of that link, CURVE, Z85; empty: plaintext. Workers that push and pull trust the coordinator,
  // to which it speaks by TLS, to name the server that it means.
  std::string public_key;

  bool operator==(const ShardPlacement&) const = default;
};

// What a worker found when it opened a job's model and data. All workers must find the same; of
// data, those of one site where sites hold different data.
struct JobFacts {
  std::vector<LayerSize> layers;
  int64_t train_sequences = 0;
  int64_t validation_sequences = 0;
  uint64_t data_digest = 0;  // of the data set's size and samples of its bytes
  // The model's numbers, also where the job only names a config.json; files and seed are left out.
  ModelSpec model = {};

  bool operator==(const JobFacts&) const = default;
};

// ---------------------------------------------------------------------------------- worker -> ----

// One device of a worker; device i of worker w is named "w/i" (island_plan.h).
struct DeviceInfo {
  std::string kind;  // "cpu", or the GPU's name
  int64_t memory_bytes = 0;
  int32_t threads = 0;
  std::string uuid;     // of a GPU; empty: none
  std::string compute;  // "fp32" or "bf16"
  std::string nccl;     // version of the NCCL that it can join groups by; empty: it cannot
  // Of the machine, beside that of a device with memory of its own; 0: memory_bytes is part of it.
  int64_t host_memory_bytes = 0;
  // In the operator's currency; what the worker sends to other sites is priced alike on all
  // devices.
  double price_per_hour = 0;
  double egress_price_per_gb = 0;
};

// First message on every new connection.
struct WorkerHello {
  std::string software_version;
  std::vector<DeviceInfo> devices;
  // Where its peer link listens, as other workers reach it, "tcp://host:port"; empty: it can share
  // an island with no other worker.
  std::string peer_endpoint;
  std::string peer_public_key;  // of that link, CURVE, Z85; empty: plaintext
  std::string site;             // as its operator says; empty: found by measuring
  ClusterMark mark = {};
  std::vector<JobId> held = {};  // jobs of which a checkpoint is on its disk
  // As peer_endpoint, over further networks; what is large goes over all of them.
  std::vector<std::string> more_peer_endpoints = {};
};

// Answers to PrepareJob.
struct JobPrepared {
  JobId job;
  JobFacts facts;
  // What the job's layers take on its devices, if the job's islands are of several devices.
  std::vector<DeviceProfile> profiles = {};
};
struct JobRefused {
  JobId job;
  std::string reason;  // names the file, the field and the remedy
};

// The island requests data until it holds leases for `wanted` sequences that it has not used.
struct LeaseRequest {
  JobId job;
  IslandId island = 0;
  Generation generation = 0;
  int64_t request = 0;  // number of this request; an answer repeats it
  int64_t wanted = 0;   // sequences, more than it holds
};

// The island has made its steps and requests to push. Sent again until the round is committed.
struct PushRequest {
  JobId job;
  ContributionId contribution;
  int64_t inner_steps = 0;
  int64_t tokens = 0;
  double train_loss = 0;
  std::vector<PositionRange> consumed;  // what the pseudo-gradient was trained on
  int64_t masked_tokens = 0;            // of `tokens`, that the loss does not count
};

// Loss of a version over a named validation set, or over the held-out data of one site.
struct ValidationLoss {
  std::string name;
  Version version = 0;
  double loss = 0;  // nats a token
  int64_t tokens = 0;
  double accuracy = 0;  // of images: share of them that are classified right

  bool operator==(const ValidationLoss&) const = default;
};

struct ValidationResult {
  JobId job;
  Version version = 0;
  double loss = 0;  // nats a token
  int64_t tokens = 0;
  double accuracy = 0;                    // of images: share of them that are classified right
  std::vector<ValidationLoss> sets = {};  // data.validation's
};

// The worker ends on purpose (SIGTERM): it is evicted at once.
struct Leaving {
  std::string reason;
};

// For `atoll logs`.
struct WorkerLog {
  JobId job;
  std::string text;
};

// Answers MeasureLinks, from the measurer.
struct LinksMeasured {
  JobId job;
  int64_t request = 0;
  std::vector<LinkProfile> links;        // from this worker
  std::string trouble;                   // why there are no links at all; empty: nothing hindered
  std::vector<LinkFailure> unreachable;  // workers that did not answer
  std::vector<LinkFailure> unmeasured;   // that answered, and could not be measured now
  bool probe = false;                    // the answer to one: nothing was measured
  std::vector<NodeId> reached;           // by a probe
};

// Answers TraceNextStep, from the leader.
struct StepTraced {
  JobId job;
  int64_t request = 0;
  std::string trouble;  // why there is no trace; empty: there is one
  StepTrace trace;
};

using WorkerMessage =
    std::variant<WorkerHello, WorkerHeartbeat, JobPrepared, JobRefused, LeaseRequest, PushRequest,
                 ValidationResult, Leaving, WorkerLog, LinksMeasured, StepTraced>;

// ---------------------------------------------------------------------------------- -> worker ----

// First answer on a connection. Also sent to parameter servers.
struct Welcome {
  Duration heartbeat_interval = kHeartbeatInterval;
  Duration lease = kHeartbeatInterval * kMissedHeartbeatsBeforeEviction;
};

// The connection cannot be served, now or ever: a newer incarnation is attached, the software
// differs, the name is bad.
struct Refused {
  std::string reason;
  bool final = false;  // true: do not try again
};

// Open the job's model and data, check them, answer JobPrepared or JobRefused.
struct PrepareJob {
  JobId job;
  JobSpec spec;
};

enum class RunState { kRun, kPause, kStop };

// What became of the island's newest decided contribution.
struct ContributionOutcome {
  ContributionId contribution;
  Version version = kNoVersion;  // the round that decided it
  bool accepted = false;
  bool warm_up_again = false;  // rejected three times in a row: re-pull, forget local progress
  std::string reason;
  double share = 0;  // of its pseudo-gradient, in the round's step; 0: not known, or not accepted

  bool operator==(const ContributionOutcome&) const = default;
};

// All that the coordinator wants of an island, now. A larger sequence replaces a smaller one.
struct IslandOrder {
  JobId job;
  JobSpec spec;
  IslandId island = 0;
  Generation generation = 0;
  int64_t sequence = 0;
  RunState run = RunState::kRun;
  std::string reason;  // of a pause or stop

  std::vector<LayerSize> layers;
  std::vector<ShardPlacement> shards;
  std::vector<ShardId> pull_order;  // in which to pull, so that servers are evenly busy

  // Make the initial weights and push them as version 0's only contribution (base kNoVersion).
  bool initialize = false;
  Version committed_version = kNoVersion;  // newest version that can be pulled
  // Go on from this saved state of the island, of committed_version.
  std::optional<LocalCheckpoint> resume = std::nullopt;
  std::optional<ContributionOutcome> outcome;

  int64_t steps_this_round = 0;           // H of this island
  int64_t tokens_committed = 0;           // by all islands up to committed_version
  int64_t active_islands = 1;             // for the learning rate between rounds
  Version validate_version = kNoVersion;  // evaluate this version when it is pulled

  // How the island's devices work together, with the programs of this worker's devices alone
  // (WithProgramsOf). Number 0: this worker's own devices, as it sees fit.
  // A larger number than the one in force ends the step under way; within one generation the
  // island's training state then moves to the new layout.
  IslandPlan plan;
  // All who work under the plan before are there: the step under way is finished first. Else it is
  // interrupted.
  bool at_boundary = false;
  // In the names of this generation's contributions: the incarnation of who led it first.
  Incarnation author = 0;
  // This member of the plan has led the island so far, and hands over its control state. Empty:
  // none.
  NodeId takes_over_from;
  // Other workers share the island, with a part in the plan or without: one of them can lead it
  // when this one ends.
  bool shared = false;
};

// All that the coordinator wants of a worker that follows an island's leader, now: serve the leader
// over the peer link under this plan. A larger sequence replaces a smaller one.
struct MemberOrder {
  JobId job;
  JobSpec spec;
  IslandId island = 0;
  Generation generation = 0;
  int64_t sequence = 0;
  RunState run = RunState::kRun;  // kStop: follow no more; kPause is not used
  std::string reason;             // of a stop
  IslandPlan plan;                // its first member leads; programs as in IslandOrder
  // As in IslandOrder. To a worker that leads the island in this generation: hand over to the
  // plan's first member, then follow it.
  bool at_boundary = false;
};

struct LeaseGrant {
  JobId job;
  IslandId island = 0;
  Generation generation = 0;
  int64_t request = 0;
  std::vector<PositionRange> ranges;
  bool exhausted = false;  // the job's token budget is leased out: push what there is
};

// Elements [begin, begin + elements) of a shard.
struct GrantedPush {
  ShardId shard = 0;
  int64_t begin = 0;
  int64_t elements = 0;  // 0: the whole shard
  NodeId sender;         // member of the island that is to push it; empty: the leader

  bool operator==(const GrantedPush&) const = default;
};

// Push what is not staged yet of the contribution, each sender its part in this order. Granted only
// where the servers have room.
struct PushGrant {
  JobId job;
  ContributionId contribution;
  std::vector<GrantedPush> order;
};

// Open peer links to these workers, for this request alone, until another one or an order comes.
// The measurer times messages to others, which take them: LinksMeasured. In islands only these are
// answered, on connections of their own: a probe, which finds the reachable ones, and `beside`.
struct MeasureLinks {
  JobId job;
  int64_t request = 0;  // grows; a larger one replaces a smaller one
  std::vector<IslandMember> members;
  NodeId measurer;
  std::vector<NodeId> to;  // to whom; empty: all
  bool probe = false;
  bool beside = false;
};

// Record one coming step of the island that the worker leads, on all its members: StepTraced. A
// step that fails meanwhile ends it with the reason.
struct TraceNextStep {
  JobId job;
  IslandId island = 0;
  Generation generation = 0;
  int64_t request = 0;  // grows; a larger one replaces a smaller one
};

// The job was removed: delete its checkpoint.
struct ForgetJob {
  JobId job;
};

// Push theta_base of these shards, which were lost, to where they are placed now. Only if it is of
// this version. Their base version is FillBase(version).
struct FillShards {
  JobId job;
  IslandId island = 0;
  Generation generation = 0;
  Version version = 0;
  std::vector<ShardPlacement> shards;
};

// Base version in the name of a push that is no pseudo-gradient, but the parameters of `version`.
inline Version FillBase(Version version) { return -2 - version; }
inline bool IsFill(Version base_version) { return base_version < kNoVersion; }

using ToWorkerMessage =
    std::variant<Welcome, Refused, PrepareJob, IslandOrder, MemberOrder, LeaseGrant, PushGrant,
                 MeasureLinks, TraceNextStep, ForgetJob, FillShards>;

// --------------------------------------------------------------- what servers keep of a job ----

// What a job is, fixed when its model is placed. Each server logs it with its shards.
struct JobCharter {
  JobSpec spec;
  JobFacts facts;  // no layers: none was reported
  IslandScope extent = IslandScope::kWorker;
  std::string grouping;   // as in the coordinator's JobRecord
  int64_t placement = 0;  // number of the placement; grows when shards move

  bool operator==(const JobCharter&) const = default;
};

// An island's part in a JobImage.
struct IslandAccount {
  IslandId island = 0;
  NodeId worker;  // newest
  int64_t rounds_accepted = 0;
  int64_t rounds_rejected = 0;
  int64_t tokens_committed = 0;
  PenaltyState penalty;

  bool operator==(const IslandAccount&) const = default;
};

// What the decisions up to a version were about, so that servers' logs give the coordinator's part
// of a job back. Servers keep the newest and read nothing in it.
struct JobImage {
  int64_t round = 0;   // decisions made; 0: there is no image
  int64_t tokens = 0;  // of the newest
  int64_t tokens_committed = 0;
  Generation plan_generation = 0;
  std::vector<PositionRange> committed;  // sequences in the model
  std::vector<IslandAccount> islands;
  Version validated_version = kNoVersion;
  double validation_loss = 0;
  double first_validation_loss = 0;

  bool operator==(const JobImage&) const = default;
};

// ------------------------------------------------------------------------- parameter server ->
// ----

// What a parameter server holds of a job.
struct HeldJob {
  JobId job;
  Version version = kNoVersion;           // newest version applied and logged
  Version snapshot_version = kNoVersion;  // newest durable snapshot
  std::vector<PushId> staged;             // logged, neither applied nor dropped
  Generation generation = 0;              // newest that an island was fenced with
  bool ended = false;                     // EndJob was carried out
  int64_t placement = 0;                  // as in the newest assignment
  std::vector<ShardId> shards;            // it has, or has received whole with their momentum
  std::vector<ShardId> filled;            // received whole from an island
};

struct ServerHello {
  std::string software_version;
  std::string endpoint;      // its tensor link, as workers reach it
  int64_t memory_bytes = 0;  // it may use, for parameters, momentum and staged pseudo-gradients
  std::vector<HeldJob> jobs;
  std::string public_key;  // of its tensor link; empty: plaintext
  ClusterMark mark = {};
  std::string site = {};   // as its operator says
  bool site_only = false;  // it holds shards of its site's jobs alone
};

struct ServerHeartbeat {
  int64_t parameter_bytes = 0;  // parameters and momentum
  int64_t staged_bytes = 0;
  int64_t log_bytes = 0;
  int64_t received_bytes = 0;
  int64_t sent_bytes = 0;
  std::vector<HeldJob> jobs;  // without their lists
};

struct ShardsAssigned {
  JobId job;
  int64_t placement = 0;  // of the assignment
};

// The push's bytes are in the log and the log is on the disk.
struct PushStaged {
  PushId push;
};

// Inner products of the staged pseudo-gradients on this server: for each of its layers, in the
// order of the request's contributions, a k-by-k symmetric matrix, row by row.
struct LayerGram {
  int32_t layer = 0;
  std::vector<double> values;
};
struct Statistics {
  JobId job;
  Version version = 0;  // the round's
  std::vector<ContributionId> contributions;
  std::vector<LayerGram> layers;
  std::vector<ShardId> shards = {};  // as in the request
};

struct RoundApplied {
  JobId job;
  Version version = 0;
};

// Something keeps the server from going on with a job: its log is damaged, a staged push is
// missing. A passing one it will get over by itself (its disk is full): the job waits.
struct ServerFault {
  JobId job;
  std::string reason;
  bool passing = false;
};

// Nothing of the job is on this server any more, in memory or on its disk.
struct JobRemoved {
  JobId job;
  int64_t placement = 0;  // as in RemoveJob
};

// These shards of ReceiveShards are durable here, whole, at this version.
struct ShardsReceived {
  JobId job;
  Version version = 0;
  std::vector<ShardId> shards;
};

// All of FetchBase that concerns the shards held here is durable.
struct BaseFetched {
  JobId job;
  Version version = 0;  // of the job above
};

struct OwnedShard {
  ShardId shard = 0;
  int32_t layer = 0;
  int64_t elements = 0;
  int64_t begin = 0;  // first element within the layer

  bool operator==(const OwnedShard&) const = default;
};

// ------------------------------------------------------------------------- -> parameter server
// ----

// Another server holds this shard too: what is staged of it here is pushed there.
struct ForwardTo {
  ShardId shard = 0;
  std::string endpoint;
  std::string public_key;
  Incarnation incarnation = 0;  // of that server: what another one had may be lost

  bool operator==(const ForwardTo&) const = default;
};

// Hold these shards. Sent again after every reconnect; a repetition changes nothing.
struct AssignShards {
  JobId job;
  std::vector<OwnedShard> shards;
  double outer_learning_rate = 0;
  double outer_momentum = 0;
  int64_t snapshot_every_rounds = 0;
  JobCharter charter = {};
  std::vector<ForwardTo> forwards = {};  // of this moment: not kept in the log
};

// Which generation and incarnation of each island may push: older ones are refused (N7).
struct IslandFence {
  IslandId island = 0;
  Generation generation = 0;
  Incarnation incarnation = 0;
};
struct FenceIslands {
  JobId job;
  std::vector<IslandFence> islands;
};

struct CollectStatistics {
  JobId job;
  Version version = 0;  // of the round to be decided
  std::vector<ContributionId> contributions;
  std::vector<ShardId> shards = {};  // of these; empty: of all that the server holds
};

// Apply a decided round. The pseudo-gradient is g = sum of weight_i * delta_i (token shares, clip
// and rejections are already in the weights), and then the job's outer optimizer makes a step.
// Version 0 instead sets theta <- delta_0 * weight_0 and every slot to 0: the initial weights.
struct RoundTerm {
  ContributionId contribution;
  double weight = 0;

  bool operator==(const RoundTerm&) const = default;
};
// How one layer's pseudo-gradient is made, in place of the terms' weights.
struct LayerStep {
  int32_t layer = 0;
  std::vector<double> weights;  // of the terms' pseudo-gradients
  double reference = 0;         // of the outer optimizer's reference slot

  bool operator==(const LayerStep&) const = default;
};
// What the merge and the optimizer add to a round's terms. In the job of a site's servers
// (JobSpec.outer.contributes_to) also its exchange with the job above, after the step:
//  * adopts: version v of the job above, which FetchBase brought. The round has no terms. Version
//  0:
//    theta = base = theta_v. Later: theta += theta_v - contributed, or theta_v - base if nothing
//    was contributed since base came; then base = theta_v.
//  * contributes: contributed = theta. base - contributed is the pseudo-gradient for the job above,
//    the same bits however often it is pushed (PushContribution).
struct RoundStep {
  double learning_rate = 0;       // of the outer step; 0: the job's
  std::vector<LayerStep> layers;  // others: by the terms' weights
  Version adopts = kNoVersion;    // kNoVersion: none
  bool contributes = false;

  bool operator==(const RoundStep&) const = default;
};
struct CommitRound {
  JobId job;
  Version version = 0;  // applied by a server that is exactly at version - 1
  std::vector<RoundTerm> terms;
  std::vector<ContributionId> dropped;  // rejected: forget their staged pushes
  JobImage image = {};
  RoundStep step = {};
};

// Answers DescribeJob: all that the server holds of the job but its tensors.
struct JobDescribed {
  HeldJob held;
  AssignShards assignment;
  CommitRound newest;  // applied; version kNoVersion: none
};

using ServerMessage =
    std::variant<ServerHello, ServerHeartbeat, ShardsAssigned, PushStaged, Statistics, RoundApplied,
                 ServerFault, JobRemoved, JobDescribed, ShardsReceived, BaseFetched>;

// Contributions that no round will use: their island died half way, or is fenced.
struct DropContributions {
  JobId job;
  std::vector<ContributionId> contributions;
  std::string reason;
};

// All tokens of the job are in the model: take a last snapshot, keep serving pulls from it, take no
// more pushes, free the momentum.
struct EndJob {
  JobId job;
};

// Forget the job, in memory and on the disk, its parameters too: JobRemoved, also of a job that the
// server does not know. No job of this id ever comes again.
struct RemoveJob {
  JobId job;
  // Not 0: the job goes on, without this server from this placement on; one that has a part in it
  // again ignores it.
  int64_t placement = 0;
};

// Where a shard comes from. `fill`: from an island, which pushes its theta_base.
struct ShardSource {
  OwnedShard shard;
  std::string endpoint = {};
  std::string public_key = {};
  bool fill = false;

  bool operator==(const ShardSource&) const = default;
};
// Fetch these shards at this version, make them durable, say ShardsReceived. The next assignment
// may name them. A server that holds nothing of the job takes the version over from `newest`.
struct ReceiveShards {
  JobId job;
  int64_t placement = 0;
  Version version = 0;
  std::vector<ShardSource> sources;
  CommitRound newest = {};                   // that made the version
  std::vector<ContributionId> decided = {};  // no push of them is wanted any more
  int32_t slots = 1;                         // of the outer optimizer, all of which come along
  int64_t fill_age = 0;  // filled from theta_base of so many versions before `version`
};

// To a server of a site: fetch the parameters of this version of the job above, of all shards held
// here (both jobs cut the model alike), make them durable, say BaseFetched; again if it is there
// already. A newer version replaces an older one, which may not be there to pull any more.
struct FetchBase {
  JobId job;
  JobId from_job;  // the one above
  Version version = 0;
  std::vector<ShardSource> sources;
};

// To a server of a site: push these parts of base - contributed to the servers of the job above, in
// its push encoding, as that job's contribution; again and again until they are there, or another
// order comes. Ignored unless `version` made the newest contribution.
struct PushContribution {
  JobId job;
  Version version = 0;  // of the site's job
  JobId to_job;         // the one above
  ContributionId contribution;
  std::vector<ShardSource> targets;  // of the shards that `order` has
  std::vector<GrantedPush> order;    // senders are empty
};

// Say what you hold of the job: JobDescribed, or nothing where that is nothing.
struct DescribeJob {
  JobId job;
};

using ToServerMessage =
    std::variant<Welcome, Refused, AssignShards, FenceIslands, CollectStatistics, CommitRound,
                 DropContributions, EndJob, RemoveJob, DescribeJob, ReceiveShards, FetchBase,
                 PushContribution>;

// ------------------------------------------------------------------------------- envelopes ----

struct FromWorker {
  NodeId worker;
  Incarnation incarnation = 0;
  WorkerMessage message;
};

struct FromServer {
  NodeId server;
  Incarnation incarnation = 0;
  ServerMessage message;
};

// The coordinator's epoch grows with every restart of it.
struct ToWorker {
  NodeId worker;
  Incarnation incarnation = 0;  // of the addressee; others ignore the message
  int64_t epoch = 0;
  ToWorkerMessage message;
  ClusterId cluster = {};  // the coordinator's
  int64_t sequence = 0;    // of the newest change of its store; 0: not said
};

struct ToServer {
  NodeId server;
  Incarnation incarnation = 0;
  int64_t epoch = 0;
  ToServerMessage message;
  ClusterId cluster = {};
  int64_t sequence = 0;
};

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_CONTROL_H_

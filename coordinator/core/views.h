// What the coordinator shows users: copies of its state as plain structs. Every state comes with
// its reason.

#ifndef ATOLL_COORDINATOR_CORE_VIEWS_H_
#define ATOLL_COORDINATOR_CORE_VIEWS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/protocol/control.h"
#include "common/time.h"
#include "coordinator/core/records.h"

namespace atl {

struct MemberView {
  MemberKind kind = MemberKind::kWorker;
  NodeId name;
  Incarnation incarnation = 0;
  bool attached = false;
  std::string reason;           // "attached", or why it is not
  Duration since_heartbeat{0};  // while attached
  std::string software_version;
  // Workers.
  std::vector<DeviceInfo> devices;
  JobId job;  // that it runs or prepares; empty: idle
  std::string peer_endpoint;
  std::vector<std::string> more_peer_endpoints;
  std::string site;
  std::string site_source;  // "declared", or how it was measured; empty: there is none yet
  std::string measuring;    // "measures the link to w3 (2 of 5)"; empty: nothing
  std::optional<IslandProgress> progress;
  // Parameter servers.
  std::string endpoint;
  std::string public_key;  // of the tensor link; empty: plaintext
  int64_t memory_bytes = 0;
  ServerHeartbeat load;
  std::string draining;  // what it still has; empty: it is not drained
  bool site_only = false;
};

// A job that members hold and the coordinator does not know.
struct OrphanView {
  JobId job;
  Version version = kNoVersion;  // newest that a server holds
  std::vector<NodeId> servers;
  std::vector<NodeId> workers;  // with a saved state
  std::string missing;          // why it cannot be adopted; empty: it can
};

// A member of another cluster, which follows no order of this coordinator.
struct ForeignMemberView {
  MemberKind kind = MemberKind::kWorker;
  NodeId name;
  ClusterId cluster;
  Duration since_seen{0};
};

// A plan that an island was given.
struct PlanChange {
  int64_t number = 0;
  bool at_step_end = false;  // no step was interrupted for it
  std::string reason;        // why it was made
};

// One worker of an island.
struct IslandWorkerView {
  NodeId worker;
  Incarnation incarnation = 0;
  bool leads = false;
  bool in_plan = false;  // else a spare one, for which the plan has no part
  bool attached = false;
  std::string activity;
  int64_t plan_number = 0;  // that it is set up for
};

struct IslandView {
  IslandRecord record;
  std::vector<IslandWorkerView> workers;  // the leader first; empty: vacant
  IslandPlan plan;                        // in force; number 0: none
  // What the next plan waits for; if none is wanted, why the newest one was not taken; empty: it
  // was.
  std::string planning;
  std::vector<PlanChange> plan_changes;  // the newest, oldest first, since the coordinator's start
  int64_t steps_interrupted = 0;         // abandoned under way
  int64_t steps_redone = 0;              // finished and replayed
  bool attached = false;
  std::string activity;  // as the worker reports it, or why there is none
  std::optional<IslandProgress> progress;
  PenaltyState penalty;
  int64_t leased_sequences = 0;  // leased and not pushed
  JobId site_job;                // of an island that represents a site's servers: their job
};

struct PendingContribution {
  ContributionRecord record;
  int64_t shards_staged = 0;
  int64_t shards = 0;
};

enum class RoundPhase { kIdle, kWindowOpen, kCollecting, kCommitting };

struct RoundView {
  RoundPhase phase = RoundPhase::kIdle;
  Version next_version = 0;
  std::string reason;       // what the round waits for
  IslandId opened_by = -1;  // while the window is open
  Duration closes_in{0};    // while the window is open; 0: when all islands are in
  std::vector<PendingContribution> contributions;
};

struct LedgerView {
  int64_t budget = 0;  // sequences, all of them
  int64_t committed = 0;
  int64_t pushed = 0;
  int64_t leased = 0;
  int64_t free = 0;
};

struct JobSummary {
  JobId job;
  int64_t number = 0;
  JobState state = JobState::kQueued;
  std::string reason;
  std::string waiting_for;  // empty: for nothing
  Version version = kNoVersion;
  int64_t tokens_committed = 0;
  int64_t tokens_budget = 0;
  double tokens_per_s = 0;  // of all islands now
  double train_loss = 0;    // mean over the islands, weighted by tokens_per_s; 0: unknown
  Version validated_version = kNoVersion;
  double validation_loss = 0;
  double validation_accuracy = 0;  // of images
  double first_validation_loss = 0;
  std::vector<ValidationLoss> validation_sets;  // newest of each named set or site
  int64_t active_islands = 0;
  JobId contributes_to;    // of a site's job: the job above
  std::string token_unit;  // what a token is, plural
};

struct JobView {
  JobSummary summary;
  JobSpec spec;
  std::optional<JobFacts> facts;
  std::vector<ShardPlacement> shards, copies;
  double placement_max_over_mean = 1;  // bytes of the fullest server over the mean
  std::string placement;               // which server holds how much, and how far it is
  std::vector<IslandView> islands;
  RoundView round;
  LedgerView ledger;
  std::vector<DecisionRecord> decisions;  // oldest first
  std::string moves;                      // shards that move, and why others do not; empty: none
  std::string grouping;  // why islands are of these workers, where measurements decide it
  std::optional<SiteJob> exchange;  // of a site's job
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_VIEWS_H_

// The state of WorkerCore, by its tasks; included by its sources only. Each part is plain data that
// the named source changes.

#ifndef ATOLL_WORKER_CORE_PARTS_H_
#define ATOLL_WORKER_CORE_PARTS_H_

#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "worker/core/core.h"
#include "worker/core/leases.h"
#include "worker/core/save_cost.h"

namespace atl::worker {

// Mean of the last values; of the last steps, for display.
class RecentMean {
 public:
  void Add(double value) {
    values_.push_back(value);
    if (values_.size() > 32) values_.pop_front();
  }
  double Get() const {
    double sum = 0;
    for (double value : values_) sum += value;
    return values_.empty() ? 0 : sum / static_cast<double>(values_.size());
  }

 private:
  std::deque<double> values_;
};

// Norms of the newest steps' gradients, and which one is no more like them.
class GradientNorms {
 public:
  void Add(double norm) {
    norms_.push_back(norm);
    if (norms_.size() > 64) norms_.pop_front();
  }
  void Clear() { norms_.clear(); }
  // Returns the norm that is so many deviations above the mean; 0: `deviations` is, or too few
  // steps are known. Norms that hardly vary count as if they varied by a tenth.
  double Limit(double deviations) const {
    if (deviations <= 0 || norms_.size() < 16) return 0;
    const auto count = static_cast<double>(norms_.size());
    double sum = 0, squares = 0;
    for (const double norm : norms_) sum += norm;
    const double mean = sum / count;
    for (const double norm : norms_) squares += (norm - mean) * (norm - mean);
    return mean + deviations * std::max(std::sqrt(squares / count), 0.1 * mean);
  }

 private:
  std::deque<double> norms_;
};

// One plan of one generation of the island.
struct PlanName {
  Generation generation = 0;
  int64_t number = 0;
  bool operator==(const PlanName&) const = default;
};

// The Attach stream and the coordinator at its other end: core.cc.
struct Session {
  enum class State { kDisconnected, kConnected, kWelcomed };

  bool welcomed() const { return state == State::kWelcomed; }

  State state = State::kDisconnected;
  ClusterMark mark;        // of the coordinator that it follows
  ClusterMark remembered;  // as it is on the disk
  Instant remember_at = kNever;
  Duration heartbeat_interval = kHeartbeatInterval;
  Instant hello_at;
  Instant heartbeat_at, heartbeat_sent;
  std::string refused;             // why, until it is welcomed
  std::vector<RelayPlace> relays;  // that it is reached through
};

// Jobs that are opened before an order comes: core.cc.
struct Preparation {
  JobId opening;                     // by the outstanding command
  int64_t request = 0;               // PrepareJob::request that it carries out; 0: of an order
  std::optional<JobPrepared> done;   // what the trainer holds
  std::optional<JobRefused> failed;  // newest job that could not be opened
  Instant again_at;
  std::optional<PrepareJob> requested;  // to be opened when the trainer is free
};

// Following another worker, instead of an island of its own: group.cc.
struct Following {
  std::optional<MemberOrder> order;
  bool begun = false;  // Follow was given for `order`
  FollowerState state;
  bool holds_layers = false;  // layers of the order's island, perhaps
  Instant leave_by = kNever;  // unless Leaving was sent
  Instant leave_last;         // kLeaveLimitMax after that, or before this worker has to end
  Instant ends_at = kNever;
};

// The contribution in flight: exchange.cc.
struct InFlight {
  enum class Shard { kWanted, kPushing, kStaged, kRefused };
  struct Push {
    GrantedPush part;
    Shard state = Shard::kWanted;
    Instant retry_at;
  };

  ContributionId id;
  Work work;
  bool moments = false;                    // its pushes have the optimizer's, too
  bool captured = false;                   // its pseudo-gradient is there
  std::vector<PartDigest> parts = {};      // of it, where they are wanted
  Instant began_at;                        // its capture
  Instant staged_at;                       // the newest of its pushes that was staged
  Instant request_at;                      // when to send PushRequest (again)
  Duration repeat_after = kRetryInterval;  // grows while grants are the same
  std::vector<Push> pushes;                // in the granted order, and what is still in flight
  // The trouble of one shard that failed and was not pushed yet: others most often have the same.
  struct Trouble {
    ShardId shard = 0;
    std::string reason;
  };
  std::optional<Trouble> trouble;
  bool withdrawn = false;  // some of it is lost
  bool moved = false;      // shards have moved since: what was staged may be granted again
};

// Data that the island may train on: exchange.cc.
struct LeasedData {
  Leases ranges;
  bool exhausted = false;  // no more is free
  int64_t request = 1;     // number of the next request, or of the unanswered one
  Instant request_at;
};

// The pull of a version: exchange.cc.
struct Pull {
  enum class State { kNone, kPulling, kPulled };  // kPulled: complete and not adopted

  bool pulling() const { return state == State::kPulling; }
  bool pulled() const { return state == State::kPulled; }

  State state = State::kNone;
  int64_t number = 0;  // of the newest pull
  Version version = kNoVersion;
  int64_t tokens = 0;                  // committed by all islands, at `version`
  std::vector<ShardPlacement> shards;  // of layers that had a turn since; empty: of all
  bool moments = false;                // averaged ones, too
  Instant retry_at;
  Instant began_at;
  Duration took{};         // from there until it was complete
  Instant adopting_since;  // the newest AdoptPulled
  std::string trouble;
};

// Saved states: what is being saved, from when to when, and what that costs: saving.cc.
struct Saving {
  std::set<Tier> under_way;           // during the steps
  std::map<Tier, int64_t> newest_at;  // inner step of the newest save in each tier
  Tier tier = Tier::kMemory;          // of the command under way
  bool due = false;         // the newest save in memory is of another base, or of another plan
  PlanName no_copies;       // under this plan no member can keep copies
  PlanName kept_by_owners;  // under this plan every element has another owner
  Instant began;
  SaveCost cost;                                          // of copies in memory
  std::vector<std::shared_ptr<const SavedState>> states;  // shared by copies of a core
  bool report_due = false;                                // in the next heartbeat
  // The order's state to resume, which the devices have, until its base is adopted.
  std::optional<LocalCheckpoint> resumed;
  bool resume_tried = false;
};

// For display.
struct Counters {
  int64_t inner_step = 0;
  int64_t tokens = 0;
  int64_t steps_interrupted = 0;
  int64_t steps_redone = 0;
  int64_t pushed_bytes = 0;
  int64_t pulled_bytes = 0;
  double learning_rate = 0;
  double exchange_seconds = 0;  // of the newest round
  RecentMean loss, gradient_norm, tokens_per_s, idle_link_seconds, overlap_seconds;
  RecentMean router_balance, router_z;
  std::vector<double> router_losses;   // see IslandProgress
  std::vector<int64_t> expert_tokens;  // likewise, and since the newest capture
  std::vector<int64_t> expert_tokens_since;
};

// The end of this process: core.cc, plan.cc.
struct Shutdown {
  enum class State { kNone, kRequested, kStopped };

  State state = State::kNone;
  std::string reason;
  Instant by;
  bool checkpoint_requested = false;  // the last one
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_CORE_PARTS_H_

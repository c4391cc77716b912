// The state of an island that is not stored: orders sent to it, the making of its plan and going
// over to it, how it gets on. Values; what decides is in islands.h, plans.h, switching.h and
// stalls.h. Private to the core.

#ifndef ATOLL_COORDINATOR_CORE_ISLANDS_ISLAND_STATE_H_
#define ATOLL_COORDINATOR_CORE_ISLANDS_ISLAND_STATE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/islands/changes.h"

namespace atl::coord {

// When an order is sent again that its worker has not acknowledged: after kRetryInterval; with many
// members, then after twice as long each time. A coordinator that is late has acknowledgements in
// its queue, and what it repeats makes it later.
class Resending {
 public:
  bool Due(Instant now) const { return now - sent_at_ >= kRetryInterval * (1 << times_); }
  void Sent(Instant now) { SentAgain(now, /*many_members=*/false); }
  void SentAgain(Instant now, bool many_members) {
    sent_at_ = now;
    times_ = many_members ? std::min(times_ + 1, kMostDoublings) : 0;
  }

  template <class V>
  void VisitFields(V& v) {
    v(sent_at_, times_);
  }

 private:
  static constexpr int kMostDoublings = 3;

  Instant sent_at_{};
  int times_ = 0;
};

// A follower's order.
struct SentMemberOrder {
  IslandId island = -1;
  Generation generation = 0;
  Incarnation incarnation = 0;
  int64_t plan_number = 0;
  int64_t sequence = 0;  // of the first time; those sent again have larger ones
  Resending resending = {};
};

// Going over to an island's newest plan; see switching.h.
struct Switch {
  int64_t plan_number = 0;
  Instant since{};
  Duration limit{};                    // how long it may wait
  Duration step_limit{};               // under this plan
  std::vector<IslandMember> stepping;  // members under the old plan; empty: its step is abandoned
  std::vector<PlanChange> changes;     // the newest, for display
  int64_t unpushed_steps = 0;          // of the leader that hands over
};

// Making an island's next plan.
struct Planning {
  std::string reason;      // why one is wanted; empty: none is
  bool urgent = false;     // the island cannot train by the plan in force, if there is one
  int64_t request = 0;     // under way; 0: none
  Instant requested_at{};  // the request
  Instant not_before{};    // of the next one
  std::string trouble;     // why the newest request changed nothing
  std::optional<Instant> awaits_until;  // for a worker that holds its saved state on its disk
  NodeId awaits;
  std::vector<IslandMember> requested_members;  // the workers of the newest request
  std::vector<IslandMember> considered;         // those of the newest request that was answered
  Instant replan_not_before{};                  // when its next replan request is considered
  int failed_replans = 0;                       // without effect, in a row
  // Changes that the shell reported: the next plan that is requested considers them.
  Changes changed;
  Changes requested_changes;               // `changed` of the newest request
  std::string requested_reason;            // `reason` of the newest request
  std::map<NodeId, std::string> left_out;  // by the newest plan, and why
  // The newest plan that was set up: where the state is, until another one is.
  int64_t ran_number = 0;
  std::vector<PlanReplica> ran;
};

// The progress of an island at the last look, to see whether it makes progress; see stalls.h.
struct ProgressWatch {
  Generation generation = 0;
  int64_t inner_step = 0;
  // Base version, number of the plan, what is set up, bytes pushed and pulled.
  std::array<int64_t, 5> others{};
  Instant since{};       // the newest progress
  bool stalled = false;  // rounds do not wait for it
};

// When an island's next contribution should be there.
struct NextPush {
  Generation generation = 0;
  Instant at{};
};

// The part of an IslandOrder that changes, to see whether a new one has to be sent: without what
// follows from the job's record and, but for its number, its plan.
struct OrderHead {
  IslandOrder order;
  Incarnation incarnation = 0;
  int64_t placement_revision = 0;
  int64_t settings_revision = 0;
  bool awaits_own_push = false;  // the order has no pull_order

  bool operator==(const OrderHead&) const = default;
};

struct SentOrder {
  OrderHead head;
  int64_t sequence = 0;
  Resending resending = {};
};

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ISLANDS_ISLAND_STATE_H_

// The state of a level of outer rounds: how far it is, what is pushed, decided and owed by its
// servers. A value; the functions that decide are in rounds.h, round_decision.h and servers.h.
// Private to the core.
//
// What is stored is changed through the Edit functions, so that the end of the Step can write it.

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_ROUND_STATE_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_ROUND_STATE_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/rounds/staged.h"

namespace atl::coord {

// Facts about one parameter server's part in one job. Not stored: servers report them.
struct ServerLink {
  bool known = false;     // its ServerHello listed its holdings, all is there, and it is attached
  bool assigned = false;  // ShardsAssigned came since
  bool end_sent = false;
  bool ended = false;  // it said so
  // Staged there, and not known here: dropped when every server has said what it holds.
  std::set<ContributionId> unknown;
  // Not empty: what it holds is not what the job needs, and what to do; the job waits.
  std::string problem;
  bool empty = false;         // the problem is that it has nothing of the job
  std::set<ShardId> lacking;  // the problem is that it has none of these
  HeldJob held;               // what it said that it holds, while it lacks some
  bool ahead = false;         // the problem is that the store is older than what the server holds
  std::optional<JobDescribed> described;  // requested while a link of the job is ahead
  Version version = kNoVersion;
  Version snapshot_version = kNoVersion;
  Instant again_at{};  // when what it still owes is requested again
  // For a site's job: the version of the job above that it has fetched; when requests for the
  // exchange are repeated.
  Version base_fetched = kNoVersion;
  Instant exchange_again_at{};
  std::string trouble;  // a fault that it reported and that has not ended yet
  std::string logged_trouble;
};

// Makes the term that servers take in a round.
inline RoundTerm MakeTerm(const DecisionParticipant& p) {
  return {p.contribution, p.weight, p.tokens, p.expert_tokens};
}

struct Window {
  IslandId opened_by = -1;
  Instant opened_at{};
  Duration grace{0};
};

struct Collecting {
  Version version = 0;
  std::vector<ContributionId> contributions;
  IslandId opened_by = -1;
  std::string closed_because;
  std::map<NodeId, std::vector<LayerGram>> grams;  // by server
  std::set<ContributionId> unfit;  // some server has staged something else than what was signed
};

// The order in which the senders of all islands push, by the islands' plans at the time.
struct PushPlan {
  std::map<IslandId, std::pair<Generation, int64_t>> made_for;  // generation, number of the plan
  std::map<IslandId, std::vector<GrantedPush>> order;           // all of the model
};

struct RoundsDirty {
  std::set<ContributionId> contributions;
  std::set<int64_t> decisions;
  std::set<IslandId> penalties;
};

struct Rounds {
  std::map<ContributionId, ContributionRecord> contributions;
  std::map<int64_t, DecisionRecord> decisions;  // by round
  std::map<IslandId, PenaltyState> penalties;
  RoundsDirty dirty;

  // Not stored.
  std::map<NodeId, ServerLink> links;  // of the servers that hold shards
  std::map<ContributionId, StagedByServer> staged;
  std::vector<ContributionId> complete;  // undecided, in order of completion
  int not_finite_rounds = 0;             // in a row, void because no pseudo-gradient was finite
  bool skipped_more = false;             // data, since the newest commit of the job
  std::map<IslandId, PushRequest> early_requests;  // before all servers were known; answered then
  // Requested to push; granted when servers have memory (backpressure).
  std::set<IslandId> waits_for_room;
  std::optional<Instant> round_closed_at;   // of the round under way
  std::optional<Instant> commit_logged_at;  // the newest line of a commit that is not for debugging
  Duration round_took{0};  // from the end of the newest round's window until it was committed
  std::optional<Window> window;
  std::optional<Collecting> collecting;
  bool fences_changed = false;                                          // servers need new fences
  std::map<int32_t, std::vector<std::vector<ShardId>>> transfer_plans;  // by number of senders
  PushPlan push_plan;
  Version adopting = kNoVersion;  // of a site's job: the version of the job above to be adopted
  int superseded = 0;             // of a branch: versions to be adopted that were not fetched

  ContributionRecord& EditContribution(const ContributionId& id) {
    dirty.contributions.insert(id);
    return contributions[id];
  }
  void EraseContribution(const ContributionId& id) {
    dirty.contributions.insert(id);
    contributions.erase(id);
    staged.erase(id);
    std::erase(complete, id);
  }
  PenaltyState& EditPenalty(IslandId id) {
    dirty.penalties.insert(id);
    return penalties[id];
  }
  DecisionRecord& EditDecision(int64_t round) {
    dirty.decisions.insert(round);
    return decisions[round];
  }

  // Null: not decided, or not kept any more.
  const DecisionRecord* FindDecision(Version version) const {
    for (auto it = decisions.rbegin(); it != decisions.rend(); ++it) {
      if (it->second.version == version) return &it->second;
    }
    return nullptr;
  }
  // The island's contributions that are not dropped, as `is(contribution)` selects them.
  template <class Is>
  bool HasContribution(IslandId island, Is is) const {
    for (auto it = contributions.lower_bound({island, std::numeric_limits<Generation>::min()});
         it != contributions.end() && it->first.island == island; ++it) {
      if (!it->second.dropped && is(it->first)) return true;
    }
    return false;
  }
};

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_ROUND_STATE_H_

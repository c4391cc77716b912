// Applies a round's decision to records, penalties, ledger and islands, and its application by all
// servers.

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_ROUND_DECISION_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_ROUND_DECISION_H_

#include "coordinator/core/state.h"

namespace atl::coord {

// Version 0 is this contribution alone.
void DecideInitial(State& s, Job& job, Rounds& rounds, const ContributionId& id);

// REQUIRES: rounds.collecting has the statistics of every server.
void DecideRound(State& s, Job& job, Rounds& rounds);

// Decides that the next version is the same as the committed one: no island has pushed its
// fragment. `why` the window is closed. REQUIRES: a window.
void PassTurn(State& s, Job& job, Rounds& rounds, const std::string& why);

// Passes a round for any other reason. `opened_by`: -1: no island did. REQUIRES: nothing is decided
// that is not committed.
void PassRound(State& s, Job& job, Rounds& rounds, IslandId opened_by, const std::string& why);

// The newest decided version becomes the committed one. REQUIRES: every server has applied it, but
// for those that are being filled.
void FinishRound(State& s, Job& job, Rounds& rounds);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_ROUND_DECISION_H_

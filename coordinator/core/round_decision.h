// What a round's decision changes: records, penalties, ledger, islands; and what its application by
// all servers changes.

#ifndef ATOLL_COORDINATOR_CORE_ROUND_DECISION_H_
#define ATOLL_COORDINATOR_CORE_ROUND_DECISION_H_

#include "coordinator/core/state.h"

namespace atl::coord {

// Version 0 is this contribution alone.
void DecideInitial(State& s, Job& job, const ContributionId& id);

// REQUIRES: job.collecting has the statistics of every server.
void DecideRound(State& s, Job& job);

// The newest decided version becomes the committed one. REQUIRES: every server has applied it.
void FinishRound(State& s, Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ROUND_DECISION_H_

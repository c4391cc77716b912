// Views of the state; see views.h.

#ifndef ATOLL_COORDINATOR_CORE_VIEW_MAKERS_H_
#define ATOLL_COORDINATOR_CORE_VIEW_MAKERS_H_

#include "coordinator/core/state.h"
#include "coordinator/core/views.h"

namespace atl::coord {

// Returns what a token of the job's data is called, plural: "tokens", or "images".
const char* TokenUnit(const Job& job);

MemberView MakeView(const State& s, const Worker& worker, Instant now);
MemberView MakeView(const State& s, const Server& server, Instant now);
JobSummary MakeSummary(const State& s, const Job& job);
JobView MakeView(const State& s, const Job& job, Instant now);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_VIEW_MAKERS_H_

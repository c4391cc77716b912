// Jobs that a user removes: forgotten at once, but for what parameter servers still hold of them.

#ifndef ATOLL_COORDINATOR_CORE_REMOVAL_H_
#define ATOLL_COORDINATOR_CORE_REMOVAL_H_

#include "coordinator/core/state.h"

namespace atl::coord {

// Erases all that is stored of the job but its name and which servers hold its shards. REQUIRES: it
// has ended, and is not removed yet.
void RemoveTheJob(State& s, Job& job, absl::string_view how = "is removed by a user");

// Removes a job that only servers and workers know.
void RemoveOrphan(State& s, const JobId& job, absl::string_view how = "is removed by a user");

// Removes, of the jobs that only servers know, those of the job's sites; also called by the two
// above.
void RemoveOrphansBelow(State& s, const JobId& above,
                        absl::string_view how = "is of a site of a removed job");

// A server holds nothing of the job any more.
void OnJobRemoved(State& s, Server& server, const JobRemoved& message);

// Forgets the removed jobs of which no server holds anything.
void ForgetRemoved(State& s);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_REMOVAL_H_

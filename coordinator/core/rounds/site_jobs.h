// Jobs of sites' parameter servers, below a user's job: HALoS's local servers, and the user's job
// is the global one (docs/decisions/site-servers.md). Of a job with outer.site.rounds, a site whose
// operator runs parameter servers for it alone has a job of its own: its workers train there, its
// rounds are any job's rounds, and it takes part in the job above as one island, which
// IslandRecord::site marks. site_exchange.h is what the two exchange.
//
//  * Data: both have the ledger of the job above; numbers of islands are unique over them. What a
//    round of the site has trained on is leased to its island of the job above until that is
//    pushed.
//  * A site's job is ended, and another one begun, where anything of it is lost, and where its
//    island of the job above has begun a new generation. What it had not pushed is lost then (N4).
//  * ProgressRecord::tokens_committed of a site's job is how far the job above is, with this site's
//    rounds since the version that it has adopted, as if the other islands were as fast.
//
// Private to the core.

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_SITE_JOBS_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_SITE_JOBS_H_

#include <string>

#include "coordinator/core/state.h"

namespace atl::coord {

// The job above a site's job. Null: there is none any more.
Job* JobAbove(State& s, const Job& job);
const Job* JobAbove(const State& s, const Job& job);

// For a user's job, begins the jobs of sites that may have one. A site's job follows the state of
// the job above, and ends with it. True if anything changed.
bool AdvanceSiteJobs(State& s, Job& job);
Instant NextSiteJobDeadline(const State& s, const Job& job);

// Returns whether the job is of a site's servers, below this job, and not removed: another one
// begins when it is.
bool IsSiteJobBelow(const Job& job, const Job& above);
// The job of this site's servers, which its workers belong to; null: none.
const Job* FindSiteJob(const State& s, const Job& above, const std::string& site);
// Returns the number of a new island.
IslandId NextIslandId(const State& s, const Job& job);
// Islands of workers, of this job and of those that share its data.
int64_t TrainingIslands(const State& s, const Job& job);
// Jobs of sites and the jobs above are looked at together.
void TouchRelatedJobs(State& s);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_SITE_JOBS_H_

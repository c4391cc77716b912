// The exchange between a site's job and the job above (site_jobs.h): after outer.site.rounds rounds
// the site contributes what they have changed, and when a version of the job above follows, adopts
// that. Its own rounds go on meanwhile, at most three times as many. Private to the core.

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_SITE_EXCHANGE_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_SITE_EXCHANGE_H_

#include <vector>

#include "common/status.h"
#include "coordinator/core/state.h"

namespace atl::coord {

// All of a site's job, or of one that is branching.

// A contribution that a round has accepted is in the site's parameters: its data is now what the
// site is to contribute.
void ReassignData(Job& job, const ContributionRecord& contribution);
// The round's version is decided; the site may contribute it. REQUIRES: its data is handed over.
void NoteSiteRound(State& s, Job& job, DecisionRecord& decision);
// The round is applied everywhere.
void FinishSiteRound(Job& job, const DecisionRecord& decision);
// Rounds of the site's own: a version to adopt, what is left when there is no more data. REQUIRES:
// nothing is decided that is not applied, no statistics are collected.
bool AdvanceExchange(State& s, Job& job);
// Returns whether the job is to begin with parameters of the job that model.initial_job names, and
// has not yet; it exchanges nothing else.
bool IsBranching(const Job& job);
// Says why a job of this specification cannot begin with the parameters that it names now; OK: it
// can, or names none.
absl::Status CheckOrigin(const State& s, const JobSpec& spec);
// Shards cut as those of the job that it begins with. INVALID_ARGUMENT: that has another model.
absl::StatusOr<std::vector<ShardDescriptor>> CutAsOrigin(const State& s, const JobSpec& spec,
                                                         const JobFacts& facts);
// The server of a job has ended it, or not; branches may have waited for that.
void NoteEnded(State& s, ServerLink& link, bool ended);
// Version 0 is applied everywhere: the job names the version that it began with.
void FinishBranching(State& s, Job& job, const DecisionRecord& decision);

// Not another round until a version of the job above is adopted.
bool HoldsForExchange(const Job& job);

void OnBaseFetched(State& s, Server& server, const BaseFetched& message);
// Sends what its servers are to do for the exchange.
void PumpExchange(State& s, Job& job);
Instant NextExchangeDeadline(const State& s, const Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_SITE_EXCHANGE_H_

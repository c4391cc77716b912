// Restore of jobs that servers and workers hold and this coordinator does not know, or knows less
// of than they do: its store is empty, or an older copy. What servers log with every round
// (JobDefinition, JobImage) gives the coordinator's part back.

#ifndef ATOLL_COORDINATOR_CORE_ADOPTION_H_
#define ATOLL_COORDINATOR_CORE_ADOPTION_H_

#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/state.h"

namespace atl::coord {

JobDefinition MakeJobDefinition(const Job& job);
// Builds the image of the newest decision. REQUIRES: it is not applied everywhere yet, or nothing
// followed it.
JobImage BuildJobImage(const Job& job, const DecisionRecord& decision);

// An attached server holds a job that is not placed on it here: it is kept, and requested.
void NoteHeld(State& s, const NodeId& server, const HeldJob& held);
// Again, if it has not answered.
void RequestJobDescription(State& s, const NodeId& server, const JobId& job);
void ForgetHeld(State& s, const NodeId& server);
void OnJobDescribed(State& s, Server& server, const JobDescribed& message);

// Nothing is decided of the job any more until it is adopted: the store lacks changes, as `why`
// says. A job that this process has made or rebuilt, or that is done, stays as it is.
void SetOutdated(State& s, Job& job, const std::string& why);
// False: nothing is decided here that another coordinator with a better store could lack. Members
// then remember none of this store's changes, so that the better one goes on as if nothing had
// been.
bool HasDecided(const State& s);
// Returns the remedy for an outdated job; empty: it is not outdated.
std::string OutdatedText(const Job& job);
// Returns what a restored job waits for.
std::string RestoredText(const State& s, const Job& job);

// Takes over the job, orphaned or outdated. An error says what is missing.
absl::Status Adopt(State& s, const JobId& job);
// Rebuilds a stale job that is not outdated as soon as all its servers have described it; true if
// anything changed.
bool RebuildIfWhole(State& s, Job& job);

std::vector<OrphanView> Orphans(const State& s);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ADOPTION_H_

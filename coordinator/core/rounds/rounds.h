// Outer rounds (DiLoCo): pushes of pseudo-gradients, the window, statistics, the decision of the
// outer step, and what follows from it.

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_ROUNDS_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_ROUNDS_H_

#include "coordinator/core/state.h"
#include "coordinator/core/views.h"

namespace atl::coord {

void OnPushRequest(State& s, Worker& worker, const PushRequest& message);
// Makes what is to be pushed a contribution; its data is leased no longer. An error says what
// contradicts the ledger. REQUIRES: its island is the job's, and has none under way.
absl::Status TakeContribution(Job& job, const PushRequest& message);

// Answers the requests that came while servers had not reported yet what they hold.
void AnswerEarlyPushes(State& s, Job& job, Rounds& rounds);
// Moves the contribution into or out of rounds.complete as its staged shards say.
void NoteStaged(const Job& job, Rounds& rounds, const ContributionId& id);

// Returns whether a round under way or to come may use the contribution.
bool MayCount(const Rounds& rounds, const ContributionId& id);

// Contributions that take memory on the servers: granted, or decided and not yet applied.
int64_t StagedContributions(const Job& job);

// Carries the round as far as it goes; true if anything changed (call again).
bool AdvanceRound(State& s, Job& job, Rounds& rounds);

// Drops contributions of evicted or renewed islands that are not complete, where that is certain;
// true if there were any.
bool DropIncomplete(State& s, Job& job, Rounds& rounds);

// When AdvanceRound has to be called even if nothing comes in.
Instant WindowDeadline(const Job& job, const Rounds& rounds);

enum class RoundPhase { kIdle, kWindowOpen, kCollecting, kCommitting };
RoundPhase GetRoundPhase(const Job& job);
const char* Name(RoundPhase phase);
std::string RoundReason(const State& s, const Job& job, const Rounds& rounds);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_ROUNDS_H_

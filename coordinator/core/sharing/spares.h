// Spare workers that evaluate. A job with [[evaluation]] whose islands are of one worker each has a
// worker that no island uses open it, too: each version that is due goes to that one, and islands
// train on. It stays idle to the scheduler, which may have it for an island at any time. Nothing of
// it is stored: after a restart of the coordinator a spare worker is found anew. Without one, or
// when it dies, refuses the job or has no result in time, islands evaluate in turn
// (rounds/validation.h). Private to the core.

#ifndef ATOLL_COORDINATOR_CORE_SHARING_SPARES_H_
#define ATOLL_COORDINATOR_CORE_SHARING_SPARES_H_

#include <string>
#include <vector>

#include "common/protocol/limits.h"
#include "coordinator/core/state.h"

namespace atl::coord {

// In place of an island's number; no island has it.
inline constexpr IslandId kSpareIsland = kMaxIsland;

// The job takes the first of these idle workers that may evaluate for it, where it wants one.
void TakeSpare(State& s, Job& job, const std::vector<Worker*>& idle);
// The worker evaluates no more, if it did; `reason` is for the log. What it was at is evaluated by
// an island.
void DropSpare(State& s, Worker& worker, const std::string& reason);
// The same in order: the worker is to stop what it does of the job.
void ReleaseSpare(State& s, Worker& worker, const std::string& reason);
// Releases the job's spare worker, if it has one.
void ReleaseSpareFrom(State& s, Job& job, const std::string& reason);

// The spare worker's answers: those to a PrepareJob, and heartbeats.
void OnSparePrepared(State& s, Job& job, Worker& worker, const JobFacts& facts);
void OnSpareHeartbeat(State& s, Job& job, const Worker& worker);

// Returns whether the spare worker is to evaluate the version that is to be validated.
bool SpareEvaluates(const Job& job);
// Gives it that version. False: there is none that could.
bool GiveToSpare(State& s, Job& job);
// Returns whether it has pulled that version.
bool SpareHasVersion(const State& s, const Job& job);

// Dismisses a spare worker that has no result in time; true if it did.
bool AdvanceSpare(State& s, Job& job);
Instant NextSpareDeadline(const State& s, const Job& job);
// Sends the spare worker its order if it has changed.
void RefreshSpareOrder(State& s, Job& job);

// "w3, spare: evaluating version 8 in arc"; empty: there is none.
std::string DescribeSpare(const State& s, const Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_SHARING_SPARES_H_

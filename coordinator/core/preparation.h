// From the queue to a placed model: candidates, their facts, shards.

#ifndef ATOLL_COORDINATOR_CORE_PREPARATION_H_
#define ATOLL_COORDINATOR_CORE_PREPARATION_H_

#include <string>

#include "coordinator/core/state.h"

namespace atl::coord {

// State preparing: places the model and makes the islands once enough candidates agree.
bool AdvancePreparing(State& s, Job& job);

// The worker is none of the job's candidates any more, until it or the job starts again.
void RefuseWorker(State& s, Job& job, Worker& worker, const std::string& reason);
// Returns which parameter servers are missing to place the model; "" if none are.
std::string TooFewServers(const State& s, const Job& job);

// Candidates of an active job that have answered become islands, or are refused.
bool AdmitLateWorkers(State& s, Job& job);

// Fails an active job that no worker holds any more because each that held it has refused it; true
// if it did.
bool FailIfRefused(State& s, Job& job);

// "; refused by w1: ...", of the attached workers that cannot run the job; "" if there are none.
std::string RefusedBy(const State& s, const Job& job);

// Until when unanswered candidates are waited for; kNever: for none.
Instant PreparingDeadline(const State& s, const Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_PREPARATION_H_

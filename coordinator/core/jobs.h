// The states of a job: queue, preparation, placement, running, end.

#ifndef ATOLL_COORDINATOR_CORE_JOBS_H_
#define ATOLL_COORDINATOR_CORE_JOBS_H_

#include <string>

#include "coordinator/core/state.h"

namespace atl::coord {

void OnSubmit(State& s, const SubmitJob& request);
void OnControl(State& s, const ControlJob& request);
void OnJobPrepared(State& s, Worker& worker, const JobPrepared& message);
void OnJobRefused(State& s, Worker& worker, const JobRefused& message);

// Ends the job: its workers stop, what was not committed is free again.
void StopJob(State& s, Job& job, JobState state, const std::string& reason);
void FailJob(State& s, Job& job, const std::string& reason);
// State::crashed.
void FailCrashed(State& s);

// Carries the job as far as it goes; true if anything changed (call again).
bool AdvanceJob(State& s, Job& job);
// Repeats requests to candidates that have not answered.
void PumpCandidates(State& s);

Instant NextJobDeadline(const State& s, const Job& job);
// Returns what the job cannot go on without; "" if nothing.
std::string WaitingFor(const State& s, const Job& job);

int64_t ComputeSequenceBudget(const JobSpec& spec);  // sequences

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_JOBS_H_

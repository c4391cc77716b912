// Which workers serve which job: divide.h decides it, from the state. Idle workers become
// candidates; islands that others are to have are called: they get no more data, push what they
// have trained, and leave (drain.h), so that no step is lost. Nothing of it is stored: after a
// restart of the coordinator the same state gives the same division. Private to the core.

#ifndef ATOLL_COORDINATOR_CORE_SHARING_SCHEDULING_H_
#define ATOLL_COORDINATOR_CORE_SHARING_SCHEDULING_H_

#include <string>

#include "coordinator/core/state.h"

namespace atl::coord {

// Divides all workers among all jobs.
void Schedule(State& s);
// Returns why the job leaves the worker out, whatever that finds; "" if it does not.
std::string WhyLeftOut(const State& s, const Job& job, const Worker& worker);
// Gives idle workers to jobs that were touched. REQUIRES: no job is queued.
void ScheduleTouched(State& s);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_SHARING_SCHEDULING_H_

// Settings of a job that change while it runs.

#ifndef ATOLL_COORDINATOR_CORE_SETTINGS_H_
#define ATOLL_COORDINATOR_CORE_SETTINGS_H_

#include "coordinator/core/core.h"
#include "coordinator/core/state.h"

namespace atl::coord {

// The job goes on with the request's specification, which differs from its own in fields that
// job.proto marks `live` and is valid: islands get it with their next order, servers with a new
// assignment; steps and grace of the round under way follow, and pushes under way are judged by the
// larger of both rates. Refused, and nothing changes, where the job is not there, has ended or all
// its tokens are committed, where no more tokens than it has handed out are to be trained, and
// where steps_per_round begins or ceases to be 0.
void OnChangeSettings(State& s, const ChangeSettings& request);

// The job's specification from now on: islands get it with their next order, and all its servers
// log its new definition.
void ReplaceSpec(State& s, Job& job, const JobSpec& spec);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_SETTINGS_H_

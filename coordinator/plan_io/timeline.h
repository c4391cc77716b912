// Converts what the simulator recorded to the form of a recorded step
// (common/protocol/step_trace.h), so that both are shown by the same means and can be laid side by
// side.

#ifndef ATOLL_COORDINATOR_PLAN_IO_TIMELINE_H_
#define ATOLL_COORDINATOR_PLAN_IO_TIMELINE_H_

#include <functional>
#include <string>
#include <vector>

#include "common/protocol/step_trace.h"
#include "coordinator/planner/layout.h"
#include "coordinator/simulator/simulate.h"

namespace atl {

// Names of a stage's devices in the trace.
using DeviceNames = std::function<std::vector<std::string>(const plan::Stage& stage)>;

// Adds replica `index`, which is this pipeline of a problem with a chunk per stage, as it was
// played with Options::record: its stages, a device for each name (those of one stage do the same),
// and messages from rank to rank. Waiting is what lies between a device's operations. The step
// lasts at least as long as this replica. The problem has no all-reduces and commit votes, so it
// has the optimizer's steps too early: see predicted_step.cc.
void AddReplica(const plan::Replica& replica, int index, const sim::Problem& problem, int pipeline,
                const sim::Result& played, const DeviceNames& names, StepTrace* trace);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_TIMELINE_H_

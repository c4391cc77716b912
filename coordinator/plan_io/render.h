// Renders plans and simulated steps: a table, a trace for Perfetto, a picture.

#ifndef ATOLL_COORDINATOR_PLAN_IO_RENDER_H_
#define ATOLL_COORDINATOR_PLAN_IO_RENDER_H_

#include <string>

#include "coordinator/planner/planner.h"

namespace atl {

// One line per entity of each kind of replica (stages, devices, layers, memory, busy share), then
// the time, the bounds, the alternatives that lost and by how much, and the reason.
std::string RenderTable(const plan::Cluster& cluster, const plan::Plan& plan);

// When each device of a replica of each kind begins and ends its part of the step, how long that is
// (its period) and how much of it is work; then the makespan and the period of the step.
std::string RenderTimes(const plan::Cluster& cluster, const plan::Plan& plan);

// Chrome trace events (step_picture.h), one process per kind of replica, one thread per entity.
std::string RenderTrace(const plan::Cluster& cluster, const plan::Plan& plan);

// Gantt chart (step_picture.h) of the slowest kind of replica, a row per entity.
std::string RenderSvg(const plan::Cluster& cluster, const plan::Plan& plan);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_RENDER_H_

// Renders plans and simulated steps: a table, a trace for Perfetto, a chart.

#ifndef ATOLL_COORDINATOR_PLAN_IO_RENDER_H_
#define ATOLL_COORDINATOR_PLAN_IO_RENDER_H_

#include <string>
#include <vector>

#include "coordinator/planner/planner.h"

namespace atl {

// One line per entity of each kind of replica (stages, devices, layers, memory, busy share), then
// the time, the bounds, the alternatives that lost and by how much, and the reason.
std::string RenderTable(const plan::Cluster& cluster, const plan::Plan& plan);

// When each device of a replica of each kind begins and ends its part of the step, how long that is
// (its period) and how much of it is work; then the makespan and the period of the step.
std::string RenderTimes(const plan::Cluster& cluster, const plan::Plan& plan);

// A plan to be drawn: one island's, of the cluster that it is for.
struct PlanToDraw {
  std::string island;  // empty: there is one only
  const plan::Cluster* cluster = nullptr;
  const plan::Plan* plan = nullptr;
};

// Chrome trace events (step_picture.h), one process for each kind of replica of every island, one
// thread per entity.
std::string RenderTrace(const std::vector<PlanToDraw>& plans);

// Gantt charts (step_picture.h): one for each kind of replica of every island, a row per entity.
std::string RenderSvg(const std::vector<PlanToDraw>& plans);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_RENDER_H_

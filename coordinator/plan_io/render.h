// Shows plans and simulated steps to people: a table, a trace for Perfetto, a picture.

#ifndef ATOLL_COORDINATOR_PLAN_IO_RENDER_H_
#define ATOLL_COORDINATOR_PLAN_IO_RENDER_H_

#include <string>

#include "coordinator/planner/planner.h"

namespace atl {

// One line per entity of each kind of replica (stages, devices, layers, memory, busy share), then
// the time, the bounds, the alternatives that lost and by how much, and the reason.
std::string RenderTable(const plan::Cluster& cluster, const plan::Plan& plan);

// Chrome trace events, one process per kind of replica, one thread per entity, and one for the
// messages that it sends. Opens in Perfetto and chrome://tracing.
std::string RenderTrace(const plan::Cluster& cluster, const plan::Plan& plan);

// Gantt chart of the slowest kind of replica: forward, backward, weight gradient and optimizer in
// four colours, a row per entity; the later of two stages of a device is paler.
std::string RenderSvg(const plan::Cluster& cluster, const plan::Plan& plan);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_RENDER_H_

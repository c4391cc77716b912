// Renders plans and simulated steps: a table, a trace for Perfetto, a chart.

#ifndef ATOLL_CLI_PICTURES_PLAN_TABLES_H_
#define ATOLL_CLI_PICTURES_PLAN_TABLES_H_

#include <string>
#include <vector>

#include "coordinator/planner/islands.h"

namespace atl::cli {

// Renders what stands before the tables: what the run comes to (tokens a second, `totals` in words,
// bytes a day by link), and why its islands are these.
std::string RenderRun(const plan::Cluster& cluster, const plan::IslandChoice& choice,
                      int64_t tokens_per_sample, const std::string& totals);

// Returns when each device of a replica of each kind begins and ends its part of the step, how long
// that is (its period) and how much of it is work; then the makespan and the period of the step.
std::string RenderTimes(const plan::Cluster& cluster, const plan::Plan& plan);

// A table for each island, one for those that are alike: a line per entity of each kind of replica,
// or of several that are alike (stages, devices, layers, recomputed blocks, memory, busy share),
// then what the step is made of and the bounds. After them the slowest one's unlike alternatives
// with why they take longer, and its reason. REQUIRES: there are islands.
std::string RenderIslands(const std::vector<plan::IslandOfSite>& islands);

// Chrome trace events (step_picture.h), one process for each kind of replica of every island, one
// thread per entity.
std::string RenderTrace(const std::vector<plan::IslandOfSite>& islands);

// Gantt charts (step_picture.h): one for each kind of replica of every island, a row per entity.
std::string RenderSvg(const std::vector<plan::IslandOfSite>& islands);

}  // namespace atl::cli

#endif  // ATOLL_CLI_PICTURES_PLAN_TABLES_H_

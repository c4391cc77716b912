// Steps, simulated or recorded, as a chart (SVG).

#ifndef ATOLL_COORDINATOR_PLAN_IO_STEP_PICTURE_H_
#define ATOLL_COORDINATOR_PLAN_IO_STEP_PICTURE_H_

#include <string>
#include <vector>

#include "coordinator/plan_io/step_view.h"

namespace atl {

// A Gantt chart: a row for each device of the first view, and under it the same device's in the
// others, all from the start of the step; with several views, the messages below.
struct StepChart {
  std::string title;
  std::vector<StepView> views;
};

// Charts one below the other, on one scale of time, with round ticks. Forward, backward, weight
// gradient and optimizer in four colours, waiting and idle time in greys; the later of two stages
// of a device is paler. The legend has every colour that is used.
std::string StepsAsSvg(const std::vector<StepChart>& charts);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_STEP_PICTURE_H_

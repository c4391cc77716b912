// Renders steps, simulated or recorded: the one writer of traces and timelines.

#ifndef ATOLL_COORDINATOR_PLAN_IO_STEP_PICTURE_H_
#define ATOLL_COORDINATOR_PLAN_IO_STEP_PICTURE_H_

#include <string>
#include <vector>

#include "common/protocol/step_trace.h"

namespace atl {

// A step to be shown under a name: "predicted".
struct StepView {
  std::string name;
  const StepTrace* trace = nullptr;
};

// "forward", "waiting for a gradient": for pictures and tables.
std::string NameOf(const TraceSpan& span);

// Chrome trace events: a process for each view; in it a thread for each device, one for its
// all-reduces, and one for the messages from one device to another, whose slices end when the
// message has arrived or the next one leaves. Categories are work, wait, sum and message. Opens in
// Perfetto and chrome://tracing.
std::string StepsAsPerfetto(const std::vector<StepView>& views);

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

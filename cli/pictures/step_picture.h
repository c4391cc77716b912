// Steps, simulated or recorded: what their parts are called, as a chart (SVG), and as Chrome trace
// events.

#ifndef ATOLL_CLI_PICTURES_STEP_PICTURE_H_
#define ATOLL_CLI_PICTURES_STEP_PICTURE_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/step_trace.h"

namespace atl::cli {

// A step to be shown under a name: "predicted".
struct StepView {
  std::string name;
  const StepTrace* trace = nullptr;
};

// "forward", "waiting for a gradient".
std::string GetDisplayName(const TraceSpan& span);
// "send gradient".
std::string GetDisplayName(const TraceMessage& message);

// The device and its layers: "w1/0: 0-4, 29-33".
std::string MakeDeviceLabel(const StepTrace& trace, const std::string& device);

// Groups messages by sender and receiver; those of a link in the order in which they leave.
std::map<std::pair<std::string, std::string>, std::vector<const TraceMessage*>> ByStageLink(
    const StepTrace& trace);

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

// Opens in Perfetto and chrome://tracing: a process for each view; in it a thread for each device,
// one for its all-reduces, and one for the messages from one device to another, whose slices end
// when the message has arrived or the next one leaves. Categories are work, wait, sum and message.
std::string StepsAsPerfetto(const std::vector<StepView>& views);

}  // namespace atl::cli

#endif  // ATOLL_CLI_PICTURES_STEP_PICTURE_H_

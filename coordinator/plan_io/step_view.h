// A step to be shown, simulated or recorded, and what its parts are called.

#ifndef ATOLL_COORDINATOR_PLAN_IO_STEP_VIEW_H_
#define ATOLL_COORDINATOR_PLAN_IO_STEP_VIEW_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/step_trace.h"

namespace atl {

// Under a name: "predicted".
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

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_STEP_VIEW_H_

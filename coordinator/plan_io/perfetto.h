// Steps, simulated or recorded, as Chrome trace events: opens in Perfetto and chrome://tracing.

#ifndef ATOLL_COORDINATOR_PLAN_IO_PERFETTO_H_
#define ATOLL_COORDINATOR_PLAN_IO_PERFETTO_H_

#include <string>
#include <vector>

#include "coordinator/plan_io/step_view.h"

namespace atl {

// A process for each view; in it a thread for each device, one for its all-reduces, and one for the
// messages from one device to another, whose slices end when the message has arrived or the next
// one leaves. Categories are work, wait, sum and message.
std::string StepsAsPerfetto(const std::vector<StepView>& views);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_PERFETTO_H_

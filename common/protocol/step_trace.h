// One inner step of an island, device by device: as it was done (the workers record it on request),
// or as the plan in force says it would be (the simulator plays it). Both have one form, so that
// they can be laid side by side. proto/trace.proto has the messages.
//
// Times are nanoseconds since the step's start: predicted, when the first device begins; measured,
// when the leader begins to call the island. A measured trace holds all workers' times on the
// leader's clock, each to within its TraceClock.

#ifndef ATOLL_COMMON_PROTOCOL_STEP_TRACE_H_
#define ATOLL_COMMON_PROTOCOL_STEP_TRACE_H_

#include "proto/trace.plain.h"

namespace atl {

// Spans and messages of one trace together; what is beyond is left out and counted.
inline constexpr int kTraceEntriesMax = 1 << 17;

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_STEP_TRACE_H_

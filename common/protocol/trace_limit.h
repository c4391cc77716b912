// Traces that are too long to be sent (kTraceEntriesMax) lose their ends.

#ifndef ATOLL_COMMON_PROTOCOL_TRACE_LIMIT_H_
#define ATOLL_COMMON_PROTOCOL_TRACE_LIMIT_H_

#include <cstdint>

#include "common/protocol/step_trace.h"

namespace atl {

// Spans and messages together.
int64_t CountEntries(const StepTrace& trace);

// Leaves at most `most` of them, and counts the others in left_out: of every device and of the
// messages the same share goes, the latest first.
void LimitEntries(int64_t most, StepTrace* trace);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_TRACE_LIMIT_H_

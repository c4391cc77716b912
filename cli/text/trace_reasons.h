// Why a recorded step differs from its prediction. Internal to trace_text.

#ifndef ATOLL_CLI_TEXT_TRACE_REASONS_H_
#define ATOLL_CLI_TEXT_TRACE_REASONS_H_

#include <cstdint>
#include <string>

#include "common/protocol/step_trace.h"

namespace atl::cli {

const TraceDevice* FindDevice(const StepTrace& trace, const std::string& device);

// Returns whether some B of the device did W too.
bool JoinsWeights(const TraceDevice& device);

std::string Ms(int64_t ns);  // "12.34"

}  // namespace atl::cli

#endif  // ATOLL_CLI_TEXT_TRACE_REASONS_H_

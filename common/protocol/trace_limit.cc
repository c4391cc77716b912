#include "common/protocol/trace_limit.h"

#include <cstddef>

namespace atl {

int64_t CountEntries(const StepTrace& trace) {
  auto entries = static_cast<int64_t>(trace.messages.size());
  for (const TraceDevice& device : trace.devices) {
    entries += static_cast<int64_t>(device.spans.size());
  }
  return entries;
}

void LimitEntries(int64_t most, StepTrace* trace) {
  const int64_t entries = CountEntries(*trace);
  if (entries <= most) return;
  const auto keep = [&](auto& list) {
    const auto kept = static_cast<size_t>(static_cast<int64_t>(list.size()) * most / entries);
    trace->left_out += static_cast<int64_t>(list.size() - kept);
    list.resize(kept);
  };
  for (TraceDevice& device : trace->devices) keep(device.spans);
  keep(trace->messages);
}

}  // namespace atl

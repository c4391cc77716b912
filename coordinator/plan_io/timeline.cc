#include "coordinator/plan_io/timeline.h"

#include <algorithm>

#include "common/protocol/tensor_groups.h"

namespace atl {
namespace {

TraceKind ToTraceKind(sim::OpKind kind) {
  switch (kind) {
    case sim::OpKind::kForward:
      return TraceKind::kForward;
    case sim::OpKind::kBackward:
      return TraceKind::kInputGradient;
    case sim::OpKind::kWeight:
      return TraceKind::kWeightGradient;
    case sim::OpKind::kOptimizer:
      break;
  }
  return TraceKind::kOptimizer;
}

// Builds the spans of what a device did, and of what it waited for in between: the next operation's
// message.
std::vector<TraceSpan> BuildTraceSpans(const sim::Problem& problem, int first_chunk,
                                       const std::vector<sim::OpSpan>& ops) {
  std::vector<TraceSpan> spans;
  int64_t free_ns = 0;
  for (const sim::OpSpan& op : ops) {
    TraceSpan span;
    span.kind = ToTraceKind(op.op.kind);
    span.stage = op.op.chunk - first_chunk;
    span.micro_batch = op.op.micro_batch;
    span.start_ns = op.start_ns;
    span.end_ns = op.end_ns;
    span.with_weights =
        span.kind == TraceKind::kInputGradient && !sim::IsSplit(problem.chunks[op.op.chunk]);
    if (op.start_ns > free_ns &&
        (span.kind == TraceKind::kForward || span.kind == TraceKind::kInputGradient)) {
      TraceSpan wait = span;
      wait.kind = TraceKind::kWait;
      wait.gradient = span.kind == TraceKind::kInputGradient;
      wait.with_weights = false;
      wait.start_ns = free_ns;
      wait.end_ns = op.start_ns;
      spans.push_back(wait);
    }
    free_ns = std::max<int64_t>(free_ns, op.end_ns);
    spans.push_back(span);
  }
  return spans;
}

}  // namespace

void AddReplica(const plan::Replica& replica, int index, const sim::Problem& problem, int pipeline,
                const sim::Result& played, const DeviceNames& names, StepTrace* trace) {
  for (size_t s = 0; s < replica.stages.size(); ++s) {
    const plan::Stage& stage = replica.stages[s];
    trace->stages.push_back({index, static_cast<int32_t>(s), stage.first_layer,
                             stage.last_layer - stage.first_layer, names(stage)});
  }
  const int first = problem.pipelines[pipeline].first_chunk;
  const int end = first + static_cast<int>(replica.stages.size());
  const std::vector<std::vector<int>> chunks = sim::ListChunksByDevice(problem);
  for (size_t d = 0; d < played.timeline.size(); ++d) {
    if (chunks[d][0] < first || chunks[d][0] >= end) continue;
    TraceDevice device;
    device.spans = BuildTraceSpans(problem, first, played.timeline[d]);
    device.end_ns = played.devices[d].last_ns;
    trace->step_ns = std::max<int64_t>(trace->step_ns, device.end_ns);
    for (const std::string& name : names(replica.stages[chunks[d][0] - first])) {
      device.device = name;
      trace->devices.push_back(device);
    }
  }
  for (const sim::MessageSpan& sent : played.messages) {
    if (sent.chunk < first || sent.chunk >= end) continue;
    const int to_chunk = sent.chunk + (sent.forward ? 1 : -1);
    const std::vector<std::string> from = names(replica.stages[sent.chunk - first]);
    const std::vector<std::string> to = names(replica.stages[to_chunk - first]);
    TraceMessage message;
    message.stage = to_chunk - first;
    message.micro_batch = sent.micro_batch;
    message.gradient = !sent.forward;
    message.bytes = sent.forward ? problem.chunks[sent.chunk].forward_bytes
                                 : problem.chunks[to_chunk].backward_bytes;
    message.ready_ns = sent.ready_ns;
    message.start_ns = sent.start_ns;
    message.arrive_ns = sent.arrive_ns;
    for (const auto& [sends, receives] : MessagePairs(from.size(), to.size())) {
      message.from = from[sends];
      message.to = to[receives];
      trace->messages.push_back(message);
    }
  }
}

}  // namespace atl

#include "worker/island/tracing.h"

#include <algorithm>
#include <utility>

#include "common/protocol/trace_limit.h"
#include "common/protocol/wire.h"
#include "proto/trace.pb.h"

namespace atl::worker {
namespace {

constexpr int64_t kFrameReserve = 64 << 10;  // for what else a frame holds

int64_t Nanos(Instant at) { return at.time_since_epoch().count(); }

std::optional<TraceKind> ToTraceKind(PlanOpKind kind) {
  switch (kind) {
    case PlanOpKind::kForward:
      return TraceKind::kForward;
    case PlanOpKind::kInputGradient:
      return TraceKind::kInputGradient;
    case PlanOpKind::kWeightGradient:
      return TraceKind::kWeightGradient;
    case PlanOpKind::kReceive:
      return TraceKind::kWait;
    case PlanOpKind::kSync:
      return TraceKind::kSync;
    case PlanOpKind::kOptimizer:
      return TraceKind::kOptimizer;
    case PlanOpKind::kSend:
      break;  // has no time of its own; MessageLog knows it
  }
  return std::nullopt;
}

class DeviceTracer {
 public:
  DeviceTracer(int64_t base_ns, TraceDevice* out) : base_ns_(base_ns), out_(out) {}

  void Add(const OpSpan& span) {
    const std::optional<TraceKind> kind = ToTraceKind(span.op.kind);
    if (!kind) return;
    TraceSpan& added = AddSpan(*kind, span.start, span.end);
    added.stage = span.op.stage;
    added.micro_batch = span.op.micro_batch;
    added.layer = *kind == TraceKind::kSync ? span.op.layer : span.layer;
    added.gradient = span.op.gradient;
    added.with_weights = span.with_weights;
    added.chunk = span.chunk;
    added.chunks = span.chunks;
  }
  TraceSpan& AddSpan(TraceKind kind, Instant start, Instant end) {
    TraceSpan& added = out_->spans.emplace_back();
    added.kind = kind;
    added.start_ns = Nanos(start) - base_ns_;
    added.end_ns = std::max(added.start_ns, Nanos(end) - base_ns_);
    return added;
  }

 private:
  const int64_t base_ns_;
  TraceDevice* const out_;
};

TraceDevice TraceOfDevice(const DeviceStep& step, int64_t base_ns) {
  TraceDevice device;
  device.device = step.device;
  device.begin_ns = Nanos(step.begun) - base_ns;
  device.end_ns = Nanos(step.ended) - base_ns;
  DeviceTracer tracer(base_ns, &device);
  for (const OpSpan& span : step.spans) tracer.Add(span);
  for (const OpSpan& span : step.sync_spans) tracer.Add(span);
  if (!step.sync_spans.empty()) tracer.AddSpan(TraceKind::kSyncWait, step.worked, step.summed);
  tracer.AddSpan(TraceKind::kCommit, step.summed, step.committed);
  std::stable_sort(device.spans.begin(), device.spans.end(),
                   [](const TraceSpan& a, const TraceSpan& b) { return a.start_ns < b.start_ns; });
  return device;
}

void Shift(int64_t by_ns, StepTrace* trace) {
  for (TraceDevice& device : trace->devices) {
    device.begin_ns += by_ns;
    device.end_ns += by_ns;
    for (TraceSpan& span : device.spans) {
      span.start_ns += by_ns;
      span.end_ns += by_ns;
    }
  }
  for (TraceMessage& message : trace->messages) {
    message.ready_ns += by_ns;
    message.start_ns += by_ns;
    message.arrive_ns += by_ns;
  }
}

}  // namespace

MemberTrace TraceOfMember(const StepOutcome& outcome, const std::vector<SentMessage>& messages,
                          int entries_max) {
  MemberTrace member;
  for (const DeviceStep& step : outcome.devices) {
    const int64_t begun = Nanos(step.begun);
    member.base_ns = member.trace.devices.empty() ? begun : std::min(member.base_ns, begun);
    member.trace.devices.emplace_back();
  }
  for (size_t d = 0; d < outcome.devices.size(); ++d) {
    member.trace.devices[d] = TraceOfDevice(outcome.devices[d], member.base_ns);
  }
  for (const SentMessage& sent : messages) {
    if (!sent.there) {
      ++member.trace.left_out;
      continue;
    }
    TraceMessage& message = member.trace.messages.emplace_back();
    message.from = sent.from;
    message.to = sent.to;
    message.stage = sent.tag.stage;
    message.micro_batch = sent.tag.micro_batch;
    message.gradient = sent.tag.gradient;
    message.chunk = sent.tag.chunk;
    message.chunks = sent.tag.chunks;
    message.bytes = sent.bytes;
    message.ready_ns = Nanos(sent.ready) - member.base_ns;
    message.start_ns = std::max(message.ready_ns, Nanos(sent.start) - member.base_ns);
    message.arrive_ns = std::max(message.start_ns, Nanos(sent.arrived) - member.base_ns);
  }
  LimitEntries(entries_max, &member.trace);
  return member;
}

void SetTrace(const MemberTrace& member, GroupReply* reply) {
  StepTrace trace = member.trace;
  reply->trace_base_ns = member.base_ns;
  for (;;) {
    v1::StepTrace wire;
    if (!Encode(trace, &wire).ok()) return;  // none is sent
    if (static_cast<int64_t>(wire.ByteSizeLong()) <= kFrameBytesMax - kFrameReserve) break;
    LimitEntries(CountEntries(trace) / 2, &trace);
  }
  reply->trace = std::move(trace);
}

absl::StatusOr<MemberTrace> ReadTrace(const NodeId& from, const GroupReply& reply) {
  const MemberTrace member{reply.trace.value_or(StepTrace()), reply.trace_base_ns};
  for (const TraceDevice& device : member.trace.devices) {
    if (WorkerFromDevice(device.device) == from) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(from, " reports ", device.device, ", which is not its device"));
  }
  for (const TraceMessage& message : member.trace.messages) {
    if (WorkerFromDevice(message.from) == from) continue;
    return absl::InvalidArgumentError(absl::StrCat(from, " reports a message from ", message.from));
  }
  return member;
}

void Merge(const MemberTrace& member, const ClockOffset& clock, int64_t start_ns,
           StepTrace* trace) {
  StepTrace part = member.trace;
  Shift(member.base_ns - clock.ahead_ns - start_ns, &part);
  trace->devices.insert(trace->devices.end(), part.devices.begin(), part.devices.end());
  trace->messages.insert(trace->messages.end(), part.messages.begin(), part.messages.end());
  trace->left_out += part.left_out;
  LimitEntries(kTraceEntriesMax, trace);
}

void Arrange(const IslandPlan& plan, StepTrace* trace) {
  std::map<std::string, size_t> order;
  for (size_t r = 0; r < plan.replicas.size(); ++r) {
    for (size_t s = 0; s < plan.replicas[r].stages.size(); ++s) {
      const PlanStage& stage = plan.replicas[r].stages[s];
      trace->stages.push_back({static_cast<int32_t>(r), static_cast<int32_t>(s), stage.first_layer,
                               stage.layers, stage.devices});
      for (const std::string& device : stage.devices) order.try_emplace(device, order.size());
    }
  }
  const auto position = [&](const std::string& device) {
    const auto it = order.find(device);
    return it == order.end() ? order.size() : it->second;
  };
  std::stable_sort(trace->devices.begin(), trace->devices.end(),
                   [&](const TraceDevice& a, const TraceDevice& b) {
                     return position(a.device) < position(b.device);
                   });
  std::stable_sort(
      trace->messages.begin(), trace->messages.end(),
      [](const TraceMessage& a, const TraceMessage& b) { return a.start_ns < b.start_ns; });
}

void StepTracer::Request(const TraceNextStep& request) {
  const std::lock_guard lock(mutex_);
  request_ = request;
  wanted_ = true;
}

void StepTracer::Answer(absl::StatusOr<StepTrace> trace) {
  StepTraced answer;
  {
    const std::lock_guard lock(mutex_);
    if (!request_) return;
    answer.job = request_->job;
    answer.request = request_->request;
    request_.reset();
    wanted_ = false;
  }
  if (trace.ok()) {
    answer.trace = *std::move(trace);
  } else {
    answer.trouble = std::string(trace.status().message());
  }
  if (on_traced_) on_traced_(std::move(answer));
}

}  // namespace atl::worker

// A step's trace, field by field. Only wire.cc files include this; see wire_visitor.h.

#ifndef ATOLL_COMMON_PROTOCOL_WIRE_TRACE_FIELDS_H_
#define ATOLL_COMMON_PROTOCOL_WIRE_TRACE_FIELDS_H_

#include "common/protocol/step_trace.h"
#include "common/protocol/wire_fields.h"
#include "proto/trace.pb.h"

namespace atl {

inline constexpr int kMaxTraceDevices = 4096;
inline constexpr int64_t kMaxTraceIndex = 1 << 24;  // of stages, layers, micro-batches, chunks

template <class V>
void Fields(V& v, Plain<V, TraceSpan>& s, v1::TraceSpan& m) {
  ATOLL_WIRE_ENUM(kind, TraceKind);
  ATOLL_WIRE_INT(stage, 0, kMaxTraceIndex);
  ATOLL_WIRE_INT(micro_batch, 0, kMaxTraceIndex);
  ATOLL_WIRE_INT(layer, -1, kMaxTraceIndex);
  ATOLL_WIRE_COPY(gradient);
  ATOLL_WIRE_COPY(with_weights);
  ATOLL_WIRE_INT(piece, 0, kMaxTraceIndex);
  ATOLL_WIRE_INT(pieces, 1, kMaxTraceIndex);
  ATOLL_WIRE_INT(start_ns, -kMaxIntervalNs, kMaxIntervalNs);
  ATOLL_WIRE_INT(end_ns, -kMaxIntervalNs, kMaxIntervalNs);
  v.Check(m.start_ns() <= m.end_ns(), "a span ends before it begins");
  v.Check(m.piece() < m.pieces(), "a chunk that its micro-batch does not have");
}

template <class V>
void Fields(V& v, Plain<V, TraceDevice>& s, v1::TraceDevice& m) {
  ATOLL_WIRE_COPY(device);
  ATOLL_WIRE_INT(begin_ns, -kMaxIntervalNs, kMaxIntervalNs);
  ATOLL_WIRE_INT(end_ns, -kMaxIntervalNs, kMaxIntervalNs);
  ATOLL_WIRE_MESSAGES(spans, kTraceEntriesMax);
  v.Check(IsDeviceName(m.device()), "a device of a trace has no name");
}

template <class V>
void Fields(V& v, Plain<V, TraceMessage>& s, v1::TraceMessage& m) {
  ATOLL_WIRE_COPY(from);
  ATOLL_WIRE_COPY(to);
  ATOLL_WIRE_INT(stage, 0, kMaxTraceIndex);
  ATOLL_WIRE_INT(micro_batch, 0, kMaxTraceIndex);
  ATOLL_WIRE_COPY(gradient);
  ATOLL_WIRE_INT(piece, 0, kMaxTraceIndex);
  ATOLL_WIRE_INT(pieces, 1, kMaxTraceIndex);
  ATOLL_WIRE_INT(bytes, 0, kMaxElements);
  ATOLL_WIRE_INT(ready_ns, -kMaxIntervalNs, kMaxIntervalNs);
  ATOLL_WIRE_INT(start_ns, -kMaxIntervalNs, kMaxIntervalNs);
  ATOLL_WIRE_INT(arrive_ns, -kMaxIntervalNs, kMaxIntervalNs);
  v.Check(IsDeviceName(m.from()) && IsDeviceName(m.to()), "a message has no ends");
  v.Check(m.ready_ns() <= m.start_ns() && m.start_ns() <= m.arrive_ns(),
          "a message arrives before it leaves");
}

template <class V>
void Fields(V& v, Plain<V, TraceStage>& s, v1::TraceStage& m) {
  ATOLL_WIRE_INT(replica, 0, kMaxTraceIndex);
  ATOLL_WIRE_INT(stage, 0, kMaxTraceIndex);
  ATOLL_WIRE_INT(first_layer, 0, kMaxTraceIndex);
  ATOLL_WIRE_INT(layers, 0, kMaxTraceIndex);
  v.Names("devices", s.devices, m.mutable_devices(), kMaxTraceDevices, IsDeviceName);
}

template <class V>
void Fields(V& v, Plain<V, TraceLink>& s, v1::TraceLink& m) {
  ATOLL_WIRE_COPY(from);
  ATOLL_WIRE_COPY(to);
  ATOLL_WIRE_INT(latency_ns, 0, kMaxIntervalNs);
  ATOLL_WIRE_COPY(bandwidth_bytes_per_s);
}

template <class V>
void Fields(V& v, Plain<V, TraceClock>& s, v1::TraceClock& m) {
  ATOLL_WIRE_COPY(worker);
  ATOLL_WIRE_INT(uncertainty_ns, 0, kMaxIntervalNs);
}

template <class V>
void Fields(V& v, Plain<V, StepTrace>& s, v1::StepTrace& m) {
  int64_t entries = m.messages_size();
  for (const v1::TraceDevice& device : m.devices()) entries += device.spans_size();
  if (!v.Check(entries <= kTraceEntriesMax,
               absl::StrCat("a trace of ", entries, " spans and messages"))) {
    return;
  }
  ATOLL_WIRE_COUNT(plan_number);
  ATOLL_WIRE_COUNT(step);
  ATOLL_WIRE_COUNT(sequences);
  ATOLL_WIRE_INT(step_ns, 0, kMaxIntervalNs);
  ATOLL_WIRE_MESSAGES(stages, kMaxTraceDevices);
  ATOLL_WIRE_MESSAGES(devices, kMaxTraceDevices);
  ATOLL_WIRE_MESSAGES(messages, kTraceEntriesMax);
  ATOLL_WIRE_MESSAGES(links, kTraceEntriesMax);
  ATOLL_WIRE_MESSAGES(clocks, kMaxTraceDevices);
  ATOLL_WIRE_COUNT(left_out);
  ATOLL_WIRE_COPY(about);
}

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_WIRE_TRACE_FIELDS_H_

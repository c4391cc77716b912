// One inner step of an island, device by device: as it was done (the workers record it on request),
// or as the plan in force says it would be (the simulator plays it). Both have one form, so that
// they can be laid side by side; proto/trace.proto is what travels.
//
// Times are nanoseconds since the step's start: predicted, when the first device begins; measured,
// when the leader begins to call the island. A measured trace holds all workers' times on the
// leader's clock, each to within its TraceClock.

#ifndef ATOLL_COMMON_PROTOCOL_STEP_TRACE_H_
#define ATOLL_COMMON_PROTOCOL_STEP_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"

namespace atl {

// Spans and messages of one trace together; what is beyond is left out and counted.
inline constexpr int kTraceEntriesMax = 1 << 17;

enum class TraceKind : uint8_t {
  kForward,         // F
  kInputGradient,   // B
  kWeightGradient,  // W
  kWait,            // for a message of a neighbouring stage; W that filled the gap lie within it
  kSync,            // all-reduce of gradients, beside the device's work
  kSyncWait,        // the device's work is done, its all-reduces are not
  kCommit,          // the exchange that commits the step: waits for every device
  kOptimizer,
};
inline constexpr int kTraceKinds = 8;

struct TraceSpan {
  TraceKind kind = TraceKind::kForward;
  int32_t stage = 0;          // of the device's replica
  int32_t micro_batch = 0;    // F, B, W, wait
  int32_t layer = -1;         // one layer's W, or all-reduce; -1: the whole stage's
  bool gradient = false;      // wait: for a gradient, else an activation
  bool with_weights = false;  // B: with W in the same operation
  int32_t piece = 0;          // F, B: of a micro-batch that is cut
  int32_t pieces = 1;
  int64_t start_ns = 0;
  int64_t end_ns = 0;

  bool operator==(const TraceSpan&) const = default;
};

struct TraceDevice {
  std::string device;
  int64_t begin_ns = 0;  // when it began with the step
  int64_t end_ns = 0;
  std::vector<TraceSpan> spans;

  bool operator==(const TraceDevice&) const = default;
};

// An activation or gradient from one worker's device to another's.
struct TraceMessage {
  std::string from;
  std::string to;
  int32_t stage = 0;  // that receives
  int32_t micro_batch = 0;
  bool gradient = false;
  int32_t piece = 0;
  int32_t pieces = 1;
  int64_t bytes = 0;
  int64_t ready_ns = 0;   // handed over
  int64_t start_ns = 0;   // its first byte left
  int64_t arrive_ns = 0;  // its last byte was there

  bool operator==(const TraceMessage&) const = default;
};

struct TraceStage {
  int32_t replica = 0;
  int32_t stage = 0;
  int32_t first_layer = 0;
  int32_t layers = 0;
  std::vector<std::string> devices;  // by tensor-parallel rank

  bool operator==(const TraceStage&) const = default;
};

// One direction between two workers.
struct TraceLink {
  NodeId from;
  NodeId to;
  int64_t latency_ns = 0;
  double bandwidth_bytes_per_s = 0;

  bool operator==(const TraceLink&) const = default;
};

// How far a worker's times may be off, against the leader's.
struct TraceClock {
  NodeId worker;
  int64_t uncertainty_ns = 0;

  bool operator==(const TraceClock&) const = default;
};

struct StepTrace {
  int64_t plan_number = 0;
  int64_t step = 0;  // its number within the island
  int64_t sequences = 0;
  int64_t step_ns = 0;
  std::vector<TraceStage> stages;
  std::vector<TraceDevice> devices;
  std::vector<TraceMessage> messages;
  std::vector<TraceLink> links;    // planned
  std::vector<TraceClock> clocks;  // measured
  int64_t left_out = 0;            // spans and messages beyond kTraceEntriesMax
  std::string about;               // source of the times, human-readable

  bool operator==(const StepTrace&) const = default;
};

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_STEP_TRACE_H_

// Records of what a device did in a step, and when.

#ifndef ATOLL_WORKER_PIPELINE_SPANS_H_
#define ATOLL_WORKER_PIPELINE_SPANS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/protocol/island_plan.h"
#include "common/time.h"

namespace atl::worker {

// One operation as it was done, for traces: F, B, W, receive (only if it waited), sync (with the
// layer) and optimizer. A chunk of a micro-batch has a span of its own, and so has W of each layer.
// A receive's span contains what was done meanwhile.
struct OpSpan {
  PlanOp op;
  Instant start, end;
  int32_t layer = -1;         // whose W it is alone; -1: the stage's
  bool with_weights = false;  // B that did W too
  int32_t chunk = 0;
  int32_t chunks = 1;
  int64_t bytes = 0;     // of an all-reduce over several devices
  Duration in_group{0};  // of it, in all-reduces over the tensor-parallel group: waiting, mostly
};

struct DeviceStep {
  std::string device;
  // The step's parts, one after the other: F, B and W; waiting for the device's all-reduces; the
  // exchange that commits the step; the optimizer.
  Instant begun, worked, summed, committed, ended;
  bool timed = false;  // spans say when the device did it, not only when it was enqueued
  std::vector<OpSpan> spans;
  std::vector<OpSpan> sync_spans;  // of the all-reduce thread
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_SPANS_H_

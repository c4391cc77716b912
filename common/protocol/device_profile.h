// Measurements of devices and links: DeviceProfile and LinkProfile of proto/control.proto. Workers
// report them, the coordinator keeps them and the planner uses them. Times are of one kind of layer
// on one device, under the code that training runs.

#ifndef ATOLL_COMMON_PROTOCOL_DEVICE_PROFILE_H_
#define ATOLL_COMMON_PROTOCOL_DEVICE_PROFILE_H_

#include <cstddef>
#include <cstdint>

#include "proto/control.plain.h"

namespace atl {

// Message times in one LinkProfile, at most.
inline constexpr size_t kMessageTimesMax = 64;

// Returns a digest of what decides how long the model's layers take: its numbers and the sequences'
// length, optimizer and adapter. It is the same on every machine.
uint64_t ComputeModelDigest(const ModelSpec& model, int64_t sequence_length,
                            InnerOptimizer optimizer = InnerOptimizer::kAdamW,
                            const AdapterSpec& adapter = {});
// The digest of a job whose model is found to be this.
inline uint64_t ComputeModelDigest(const ModelSpec& model, const JobSpec& job) {
  return ComputeModelDigest(model, job.data.sequence_length, job.inner.optimizer, job.adapter);
}

const char* Name(LayerKind kind);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_DEVICE_PROFILE_H_

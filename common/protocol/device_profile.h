// What was measured of devices and links: the plain form of what workers report, the coordinator
// keeps and the planner uses. Times are of one kind of layer on one device, under the code that
// training runs.

#ifndef ATOLL_COMMON_PROTOCOL_DEVICE_PROFILE_H_
#define ATOLL_COMMON_PROTOCOL_DEVICE_PROFILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/protocol/job_spec.h"

namespace atl {

enum class LayerKind : uint8_t {
  kEmbedding,
  kBlock,
  kHead,  // with the loss
};

// One kind of layer with one micro-batch, on one of `tensor_parallel` devices that share it.
// Medians of several runs; bytes are on each device.
struct LayerCost {
  LayerKind kind = LayerKind::kBlock;
  int32_t tensor_parallel = 1;
  int32_t micro_batch_sequences = 1;
  int64_t forward_ns = 0;
  int64_t input_gradient_ns = 0;     // B
  int64_t weight_gradient_ns = 0;    // W
  int64_t optimizer_ns = 0;          // clipping and AdamW, of the whole layer
  double spread_ratio = 0;           // interquartile range over median, the largest of the four
  int64_t parameter_bytes = 0;       // weights, gradient and both moments
  int64_t stash_bytes = 0;           // kept from F until W is done
  int64_t backward_stash_bytes = 0;  // of these, what B adds
  int64_t output_bytes = 0;          // handed to the next layer
  int64_t workspace_bytes = 0;       // while an operation runs

  bool operator==(const LayerCost&) const = default;
};

// Of one device and one model.
struct DeviceProfile {
  std::string device;            // "worker/index"
  std::string kind;              // DeviceInfo::kind
  std::string software_version;  // of the worker
  uint64_t model_digest = 0;     // DigestOf(model, sequence length, optimizer)
  std::vector<LayerCost> layers;

  bool operator==(const DeviceProfile&) const = default;
};

// How long a message of so many bytes takes, latency included.
struct MessageTime {
  int64_t bytes = 0;
  int64_t time_ns = 0;

  bool operator==(const MessageTime&) const = default;
};

// Of one link.
inline constexpr size_t kMessageTimesMax = 64;

// One direction between two workers: a message of n bytes takes latency + n / bandwidth (Hockney),
// or, where there are times, what those of the sizes around n say (coordinator/simulator/
// size_curve.h).
struct LinkProfile {
  NodeId from;
  NodeId to;
  int64_t latency_ns = 0;
  double bandwidth_bytes_per_s = 0;
  double residual_ratio = 0;  // root mean square of what the fit misses, over the measured times
  int64_t samples = 0;
  std::vector<MessageTime> times = {};  // rising in both

  bool operator==(const LinkProfile&) const = default;
};

// Of what decides how long the model's layers take: its numbers and the sequences' length. The same
// on every machine.
uint64_t DigestOf(const ModelSpec& model, int64_t sequence_length,
                  InnerOptimizer optimizer = InnerOptimizer::kAdamW);

const char* Name(LayerKind kind);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_DEVICE_PROFILE_H_

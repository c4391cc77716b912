// The simulator's input: pipelines of chunks on devices, and a schedule that orders their work.
//
// A chunk is consecutive layers that run as one operation. A plain pipeline has one chunk per
// device; interleaved and V-shaped placements have several. Every replica is a pipeline of its own,
// cut as it likes. Of replicas that are equal and share nothing one is enough: all take equally
// long.
//
// Micro-batch m passes chunk c as F (forward), B (gradient for the input) and W (gradient for the
// weights). F(c, m) needs the activation of chunk c-1, B(c, m) the gradient from chunk c+1 (at the
// last chunk: F(c, m)), W(c, m) needs B(c, m). A chunk takes its optimizer step when all its
// gradients (accumulated over all micro-batches) and all work of its device are done.
//
// Memory is reserved when F starts; a part of it is released when B ends and the rest when W ends,
// or, as in the runtime, kept in slots for later micro-batches (Problem::fixed_slots).

#ifndef ATOLL_COORDINATOR_SIMULATOR_PROBLEM_H_
#define ATOLL_COORDINATOR_SIMULATOR_PROBLEM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/simulator/network.h"

namespace atl::sim {

inline constexpr int kNoLink = -1;

struct Device {
  int64_t memory_bytes = INT64_MAX;  // for activations: what weights and optimizer leave
};

struct Chunk {
  int device = 0;
  Nanos forward_ns = 0;
  Nanos backward_ns = 0;  // gradient for the input
  Nanos weight_ns = 0;    // gradient for the weights; 0: unsplit, B does both and there is no W
  Nanos optimizer_ns = 0;
  int64_t activation_bytes = 0;  // reserved at F's start
  int64_t weight_bytes = 0;      // of these, what is still held from B's end to W's end

  // To and from the next chunk of the pipeline; kNoLink: at once (same device, or not modelled).
  int forward_link = kNoLink;   // activation, this chunk to the next
  int backward_link = kNoLink;  // gradient, the next chunk to this
  int64_t forward_bytes = 0;
  int64_t backward_bytes = 0;
  // For so long after F (B) the device does nothing else, while the next (previous) chunk already
  // can: it sends. The time to receive is then in that chunk's own F (B), and there are no links.
  Nanos forward_send_ns = 0, backward_send_ns = 0;
};

inline bool IsSplit(const Chunk& chunk) { return chunk.weight_ns > 0; }

// Chunks [first_chunk, first_chunk + chunk_count) in the order of the model.
struct Pipeline {
  int first_chunk = 0;
  int chunk_count = 0;
  int micro_batches = 1;
  int replica = 0;  // for the round-robin order of lanes
};

struct Problem {
  std::vector<Device> devices;
  Network network;
  std::vector<Chunk> chunks;
  std::vector<Pipeline> pipelines;
  // Memory as the runtime takes it: every chunk has as many slots as it ever has micro-batches
  // between the start of F and the end of W (memory_use.h). False: what ends is at once free for
  // other chunks, as published memory figures count. With one chunk per device both are the same,
  // but for what B would release.
  bool fixed_slots = false;
};

// Everything that makes a problem impossible to simulate: bad indices, a chunk in no or in two
// pipelines, negative times or bytes, more memory held after B than before, more than
// 2^24 micro-batch passes.
absl::Status Validate(const Problem& problem);

enum class OpKind : uint8_t { kForward = 0, kBackward = 1, kWeight = 2, kOptimizer = 3 };

struct Op {
  int32_t chunk = 0;
  int32_t micro_batch = 0;
  OpKind kind = OpKind::kForward;

  bool operator==(const Op&) const = default;
};

// The ordered operations of every device (F, B and W; optimizer steps run by themselves when their
// gradients are in and the device's list is done).
struct Schedule {
  std::vector<std::vector<Op>> device_ops;
};

// OK when every operation of the problem appears exactly once, on its own device.
absl::Status Validate(const Problem& problem, const Schedule& schedule);

// "F3.1": forward of micro-batch 1 in chunk 3.
std::string ToString(const Op& op);

// Chunks on a device, in the order of the model.
std::vector<std::vector<int>> ListChunksByDevice(const Problem& problem);

// The pipeline that each chunk belongs to.
std::vector<int> MapChunksToPipelines(const Problem& problem);

// AloneTransferNs over a link of the problem, or none.
Nanos TransferNs(const Problem& problem, int link, int64_t bytes);

// Makes B and W of a chunk one operation.
void UniteBackward(Chunk& chunk);

// The same problem with B and W in one operation: how frameworks without the split run, and what
// schedules such as 1F1B were designed for.
Problem WithUnsplitBackward(Problem problem);

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_PROBLEM_H_

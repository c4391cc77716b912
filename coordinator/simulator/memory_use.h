// Counts the memory that micro-batches under way hold on each device of a problem. Internal to the
// simulator.
//
// Without fixed slots, memory is reserved when F starts, a part of it released when B ends and the
// rest when W ends. With them (Problem::fixed_slots) a chunk takes a slot for every micro-batch
// between the start of F and the end of W and keeps it for later ones; where the next chunk is on
// the same device, F writes into that one's slot, which is therefore taken too.

#ifndef ATOLL_COORDINATOR_SIMULATOR_MEMORY_USE_H_
#define ATOLL_COORDINATOR_SIMULATOR_MEMORY_USE_H_

#include <algorithm>
#include <vector>

#include "coordinator/simulator/problem.h"

namespace atl::sim {

class MemoryUse {
 public:
  MemoryUse(const Problem& problem, const std::vector<int>& pipeline_of)
      : problem_(problem),
        used_(problem.devices.size(), 0),
        in_use_(problem.chunks.size(), 0),
        slots_(problem.chunks.size(), 0),
        opens_next_(problem.chunks.size(), false),
        later_(problem.chunks.size()) {
    const std::vector<std::vector<int>> chunks_of = ListChunksByDevice(problem);
    for (size_t c = 0; c < problem.chunks.size(); ++c) {
      const int device = problem.chunks[c].device;
      const auto next = static_cast<int>(c) + 1;
      opens_next_[c] = problem.fixed_slots && c + 1 < problem.chunks.size() &&
                       pipeline_of[next] == pipeline_of[c] && problem.chunks[next].device == device;
      for (const int other : chunks_of[device]) {
        if (other <= static_cast<int>(c) || pipeline_of[other] != pipeline_of[c]) continue;
        if (other == next && opens_next_[c]) continue;
        later_[c].push_back(other);
      }
    }
  }

  int64_t used(int device) const { return used_[device]; }

  void Start(const Op& op) {
    if (op.kind != OpKind::kForward) return;
    const int c = op.chunk;
    if (!problem_.fixed_slots) {
      used_[problem_.chunks[c].device] += problem_.chunks[c].activation_bytes;
      return;
    }
    if (c == 0 || !opens_next_[c - 1]) Open(c);
    if (opens_next_[c]) Open(c + 1);
  }

  void End(const Op& op) {
    const Chunk& chunk = problem_.chunks[op.chunk];
    if (problem_.fixed_slots) {
      if (op.kind == (IsSplit(chunk) ? OpKind::kWeight : OpKind::kBackward)) --in_use_[op.chunk];
    } else if (op.kind == OpKind::kBackward) {
      used_[chunk.device] -= chunk.activation_bytes - chunk.weight_bytes;
    } else if (op.kind == OpKind::kWeight) {
      used_[chunk.device] -= chunk.weight_bytes;
    }
  }

  // Returns the bytes that F of a micro-batch in chunk `c` would take now.
  int64_t ForForward(int c) const {
    if (!problem_.fixed_slots) return problem_.chunks[c].activation_bytes;
    const int64_t own = c == 0 || !opens_next_[c - 1] ? Lacking(c) : 0;
    return own + (opens_next_[c] ? Lacking(c + 1) : 0);
  }

  // Returns the bytes that must then stay free for the device's later chunks of the pipeline, so
  // that the oldest micro-batch can finish.
  int64_t ForLater(int c) const {
    int64_t bytes = 0;
    for (const int other : later_[c]) {
      if (!problem_.fixed_slots || slots_[other] == 0) {
        bytes += problem_.chunks[other].activation_bytes;
      }
    }
    return bytes;
  }

 private:
  int64_t Lacking(int c) const {
    return in_use_[c] < slots_[c] ? 0 : problem_.chunks[c].activation_bytes;
  }
  void Open(int c) {
    used_[problem_.chunks[c].device] += Lacking(c);
    slots_[c] = std::max(slots_[c], ++in_use_[c]);
  }

  const Problem& problem_;
  std::vector<int64_t> used_;            // by device
  std::vector<int> in_use_, slots_;      // by chunk
  std::vector<bool> opens_next_;         // F writes into the next chunk's slot
  std::vector<std::vector<int>> later_;  // chunks of the device and the pipeline, but for that one
};

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_MEMORY_USE_H_

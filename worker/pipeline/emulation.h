// Devices that only pretend to compute: for benchmarks on machines with fewer cores than an island
// has devices. Operations last as long as these say, whatever the cores are busy with: also in what
// the device says of its time. Who is woken up late, or not at all for a while, catches up with the
// operations that follow, until it waits for a message.

#ifndef ATOLL_WORKER_PIPELINE_EMULATION_H_
#define ATOLL_WORKER_PIPELINE_EMULATION_H_

#include <cstdint>
#include <functional>
#include <string>

#include "common/protocol/device_profile.h"
#include "common/protocol/island_plan.h"
#include "common/time.h"

namespace atl::worker {

struct Emulation {
  // How long a layer's F, B or W takes on a device for so many sequences, by sleeping for what the
  // computation leaves of it. Null: nothing is emulated.
  std::function<Duration(const std::string& device, LayerKind layer, PlanOpKind kind, int64_t rows)>
      duration;
  // Computes nothing: messages have their sizes, but their content, gradients and losses mean
  // nothing, and parameters stay as they are. Otherwise everything is computed as usual.
  bool only = false;
  // Every operation takes so many times as long, emulated or not; at least 1.
  double slowdown = 1;

  bool any() const { return duration != nullptr || slowdown > 1; }
};

// F, B and W of a block take `block` each for a sequence, at any tensor parallelism. The ends are
// light, as an embedding and a small vocabulary are: the embedding a tenth of a block (and no B),
// the head half of one. Nothing is computed.
Emulation EmulatedBlocks(Duration block);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_EMULATION_H_

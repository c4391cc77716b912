// A layer that a device holds, with its moments of this plan and of earlier ones.

#ifndef ATOLL_WORKER_PIPELINE_HELD_STATE_H_
#define ATOLL_WORKER_PIPELINE_HELD_STATE_H_

#include <vector>

#include "worker/model/stage.h"
#include "worker/pipeline/engine.h"

namespace atl::worker {

// A layer, or a tied head's copy of the embedding's table.
struct HeldState {
  LayerShard shard;
  bool table_only = false;
  bool surplus = false;
  bool written = false;
  bool whole = false;       // see HeldLayer
  bool has_frozen = false;  // its frozen tensors were written
  int64_t optimizer_step = 0;
  int64_t elements = 0;          // of the shard, also where only its table is here
  std::vector<Range> undivided;  // see common/model/optimizer_state.h
  LayerState state;
  // Moments that were owned under earlier plans, kept as a source until surplus is dropped. The
  // parameters are the same memory.
  struct Before {
    Moments moments;
    int64_t optimizer_step = 0;
    bool whole = false;
  };
  std::vector<Before> before = {};

  bool lacks_frozen() const { return state.layout().frozen_size > 0 && !has_frozen; }
  Tensor part(LayerPart part) const;
  // These elements of a part for reading. The last ones are the tensor's, and those before are
  // zero: the optimizer does not keep them.
  struct Values {
    bool here = false;
    Tensor tensor;
  };
  Values Readable(LayerPart part, Range range) const;
  // Returns the elements of a part that lie in its tensor.
  Range Elements(LayerPart part) const;
  // Owns this from now on, with what it owned before if it did once, else zero and not written.
  absl::Status Own(Stream& stream, Range range);
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_HELD_STATE_H_

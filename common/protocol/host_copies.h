// How much of its host's memory an island's leader keeps for the model.

#ifndef ATOLL_COMMON_PROTOCOL_HOST_COPIES_H_
#define ATOLL_COMMON_PROTOCOL_HOST_COPIES_H_

#include "common/protocol/job_spec.h"

namespace atl {

// Copies of the whole model in fp32, beside what its devices hold: theta_base, delta and pulled,
// and four while a checkpoint is written; of quantised pushes the residual, the encoded delta (a
// part of a copy), and the residual once more in a checkpoint. See worker/runtime/island.h.
inline int HostCopies(const JobSpec& spec) {
  return 7 + (IsQuantized(spec.outer.push_encoding) ? 3 : 0);
}

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_HOST_COPIES_H_

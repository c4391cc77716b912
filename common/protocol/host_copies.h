// How much of its host's memory a worker keeps for the model, besides what its devices hold: in
// copies of an element, in fp32.

#ifndef ATOLL_COMMON_PROTOCOL_HOST_COPIES_H_
#define ATOLL_COMMON_PROTOCOL_HOST_COPIES_H_

#include "common/protocol/job_spec.h"

namespace atl {

// Returns how many copies a worker's host has of what it owns or keeps copies of
// (common/model/outer_copies.h): theta_base, pseudo-gradient and pulled version; of quantised
// pushes the residuals before and after, and the encoded pseudo-gradient (a part of a copy); of
// averaged moments both as pulled, and the encoded ones. See worker/outer/outer_state.h.
inline int OuterCopies(const JobSpec& spec) {
  return 3 + (IsQuantized(spec.outer.push_encoding) ? 3 : 0) +
         (spec.outer.average_moments_steps > 0 ? 4 : 0);
}

// Returns how many parts one save has (worker/state/save_plan.h): parameters, two moments, and what
// quantised pushes owe.
inline int SavedParts(const JobSpec& spec) {
  return 3 + (IsQuantized(spec.outer.push_encoding) ? 1 : 0);
}

// Returns how many copies of what it owns a host has while that is written to its disk.
inline int SaveCopies(const JobSpec& spec) {
  return spec.schedule.checkpoint_every_steps == 0 ? 0 : SavedParts(spec);
}

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_HOST_COPIES_H_

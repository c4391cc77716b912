// The control protocol of workers, parameter servers and the coordinator: proto/control.proto has
// the messages. docs/concepts.md describes a round.
//
// Rules that make the protocol safe (they are what the seeded simulation attacks):
//  * Any message may be lost, repeated, delayed or reordered. Every message is idempotent, and
//    a sender that still needs an answer repeats its message (kRetryInterval).
//  * Orders are levels, not edges: an IslandOrder holds all that the coordinator requires of an
//    island, and a larger `sequence` replaces a smaller one.
//  * Everything sent by a worker or parameter server carries its incarnation; everything sent by
//    the coordinator carries its cluster and its epoch (fencing). Smaller ones than those already
//    seen are ignored, and so is another cluster than the member's own.
//  * Only RemoveJob and ForgetJob delete state.
//  * The coordinator persists a decision before it sends anything that follows from it, and a
//    parameter server logs a push (and a commit) before it acknowledges it.

#ifndef ATOLL_COMMON_PROTOCOL_CONTROL_H_
#define ATOLL_COMMON_PROTOCOL_CONTROL_H_

#include "common/ids.h"
#include "common/protocol/device_profile.h"
#include "common/protocol/intervals.h"
#include "common/protocol/island_plan.h"
#include "common/protocol/job_spec.h"
#include "common/protocol/saved_state.h"
#include "common/protocol/step_trace.h"
#include "proto/control.plain.h"

namespace atl {

// Base version in the name of a push that is no pseudo-gradient, but the parameters of `version`.
inline Version FillBase(Version version) { return -2 - version; }
inline bool IsFill(Version base_version) { return base_version < kNoVersion; }

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_CONTROL_H_

// The coordinator's views for users: its state, as the plain structs of proto/coordinator.proto.
// The shell adds what the wall clock says (times of jobs, of steps). Every state comes with its
// reason.

#ifndef ATOLL_COORDINATOR_CORE_VIEWS_H_
#define ATOLL_COORDINATOR_CORE_VIEWS_H_

#include <vector>

#include "common/protocol/control.h"
#include "coordinator/core/records.h"
#include "proto/coordinator.plain.h"

namespace atl {

inline const char* Name(MemberKind kind) {
  return kind == MemberKind::kWorker ? "worker" : "paramserver";
}

inline bool IsServer(const MemberView& member) { return member.load.has_value(); }

struct JobView : JobWithoutDecisions {
  std::vector<DecisionRecord> decisions;  // oldest first
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_VIEWS_H_

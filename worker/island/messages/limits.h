// Limits of what members of an island send to each other, and rules that whole messages have to
// pass (proto/plain.proto's `check`). Only wire.cc includes this.

#ifndef ATOLL_WORKER_ISLAND_MESSAGES_LIMITS_H_
#define ATOLL_WORKER_ISLAND_MESSAGES_LIMITS_H_

#include <cstdint>
#include <string>

#include "common/protocol/job_spec.h"
#include "common/protocol/wire_limits.h"
#include "proto/group.pb.h"
#include "worker/state/parts.h"

namespace atl {

inline constexpr int64_t kMaxCount = int64_t{1} << 56;  // of anything: counting on never overflows

// Returns what is wrong with a message; empty: nothing.
std::string FaultIn(const v1::ElementRange& m);
std::string FaultIn(const v1::EvaluateCall& m);
std::string FaultIn(const v1::GroupFrame& m);
std::string FaultIn(const v1::HeldLayer& m);
std::string FaultIn(const v1::HeldUnit& m);
std::string FaultIn(const v1::GetLayerCall& m);
std::string FaultIn(const v1::LayerShard& m);
std::string FaultIn(const v1::OuterRange& m);
std::string FaultIn(const v1::ReferenceCall& m);
std::string FaultIn(const v1::ShardPart& m);
std::string FaultIn(const v1::StateSource& m);
std::string FaultIn(const v1::StateTransfer& m);
std::string FaultIn(const v1::StepCall& m);
std::string FaultIn(const v1::TensorHeader& m);
std::string FaultIn(const v1::Unit& m);
std::string FaultIn(const v1::Work& m);

}  // namespace atl

#endif  // ATOLL_WORKER_ISLAND_MESSAGES_LIMITS_H_

// Limits of what is received, and rules that whole messages have to pass (plain.proto's `check`).

#ifndef ATOLL_COMMON_PROTOCOL_WIRE_LIMITS_H_
#define ATOLL_COMMON_PROTOCOL_WIRE_LIMITS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/protocol/control.h"

namespace atl {

namespace v1 {
class DeviceProgram;
class IslandMember;
class PlannedIsland;
class PositionRange;
class Statistics;
class StepTrace;
class TraceDevice;
class TraceMessage;
class TraceSpan;
}  // namespace v1

inline constexpr int64_t kMaxShardElements = int64_t{1} << 42;
inline constexpr int kMaxSavedUnits = 1 << 16;

inline constexpr int kMaxPlanMembers = 4096;
inline constexpr int kMaxPlanDevices = 65536;
inline constexpr int kMaxPlanStages = 1024;             // of all replicas
inline constexpr int64_t kMaxPlanOperations = 1 << 22;  // of all devices
inline constexpr int kMaxPlanLayers = 1 << 17;
inline constexpr int kMaxMicroBatches = 1 << 20;

inline constexpr int kMaxTraceDevices = 4096;
inline constexpr int64_t kMaxTraceIndex = 1 << 24;  // of stages, layers, micro-batches, chunks

// Letters of a worker's name, and '/' before a device's index. Whether there is such a device,
// island_plan.h's Validate says.
bool IsDeviceName(absl::string_view name);

// Returns what is wrong with a message; empty: nothing.
std::string FaultIn(const v1::DeviceProgram& m);
std::string FaultIn(const v1::IslandMember& m);
std::string FaultIn(const v1::PlannedIsland& m);
std::string FaultIn(const v1::PositionRange& m);
std::string FaultIn(const v1::Statistics& m);
std::string FaultIn(const v1::StepTrace& m);
std::string FaultIn(const v1::TraceDevice& m);
std::string FaultIn(const v1::TraceMessage& m);
std::string FaultIn(const v1::TraceSpan& m);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_WIRE_LIMITS_H_

// Plain structs to protobuf messages and back, for shells. Cores never see protobuf.
//
// Decode trusts nothing: numbers, counts, enums, text lengths and names are checked, and an error
// names the field. What Encode makes, Decode takes back unchanged: an error of it names a field
// that Decode would refuse, and the message must be neither sent nor stored. The receiver limits
// the size of a whole message to kMaxMessageBytes (a gRPC channel argument) before it is parsed.
//
// Thread-safe: no state.

#ifndef ATOLL_COMMON_PROTOCOL_WIRE_H_
#define ATOLL_COMMON_PROTOCOL_WIRE_H_

#include "absl/status/statusor.h"
#include "common/protocol/control.h"
#include "common/protocol/job_spec.h"

namespace atl {

namespace v1 {
class DeviceProfile;
class FromServer;
class FromWorker;
class JobDefinition;
class JobSpec;
class StepTrace;
class ToServer;
class ToWorker;
}  // namespace v1

inline constexpr int kMaxMessageBytes = 64 << 20;

absl::Status Encode(const FromWorker& message, v1::FromWorker* wire);
absl::Status Encode(const ToWorker& message, v1::ToWorker* wire);
absl::Status Encode(const FromServer& message, v1::FromServer* wire);
absl::Status Encode(const ToServer& message, v1::ToServer* wire);
absl::Status Encode(const JobSpec& spec, v1::JobSpec* wire);
absl::Status Encode(const DeviceProfile& profile, v1::DeviceProfile* wire);
absl::Status Encode(const StepTrace& trace, v1::StepTrace* wire);
absl::Status Encode(const JobDefinition& definition, v1::JobDefinition* wire);

// May take parts out of `wire`.
absl::StatusOr<FromWorker> Decode(v1::FromWorker* wire);
absl::StatusOr<ToWorker> Decode(v1::ToWorker* wire);
absl::StatusOr<FromServer> Decode(v1::FromServer* wire);
absl::StatusOr<ToServer> Decode(v1::ToServer* wire);

// Absent fields get their defaults. Does not Validate().
absl::StatusOr<JobSpec> Decode(v1::JobSpec* wire);

absl::StatusOr<DeviceProfile> Decode(v1::DeviceProfile* wire);
absl::StatusOr<StepTrace> Decode(v1::StepTrace* wire);
absl::StatusOr<JobDefinition> Decode(v1::JobDefinition* wire);

// OK if IsNodeName.
absl::Status CheckNodeName(absl::string_view name);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_WIRE_H_

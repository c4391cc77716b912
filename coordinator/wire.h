// The coordinator's records as bytes, and its views as the messages of proto/coordinator.proto.
// Thread-safe: no state.

#ifndef ATOLL_COORDINATOR_WIRE_H_
#define ATOLL_COORDINATOR_WIRE_H_

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/core/core.h"

namespace atl {

namespace v1 {
class ForeignMember;
class Job;
class JobSummary;
class Member;
class Orphan;
}  // namespace v1

// A record to bytes and back. Bytes that are damaged or break a limit give an error, never a crash,
// and so does a record that could not be read back: it names the record and the field.
// REQUIRES: not an EventRecord, which the store keeps in a table of its own.
absl::StatusOr<std::string> EncodeRecord(const StoreRecord& record);
absl::StatusOr<StoreRecord> DecodeRecord(absl::string_view bytes);

void EncodeView(const JobSummary& view, v1::JobSummary* wire);
void EncodeView(const JobView& view, v1::Job* wire);
void EncodeView(const MemberView& view, v1::Member* wire);
void EncodeView(const OrphanView& view, v1::Orphan* wire);
void EncodeView(const ForeignMemberView& view, v1::ForeignMember* wire);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_WIRE_H_

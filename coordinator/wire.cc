#include "coordinator/wire.h"

#include "common/check.h"
#include "common/status.h"
#include "coordinator/core/records.fields.h"
#include "coordinator/core/records.pb.h"

namespace atl {
namespace {

// The kinds of record with their field in v1::stored::Record.
template <class V, class Variant>
void RecordFields(V& v, Variant& record, v1::stored::Record& m) {
  v.template Alternative<EpochRecord>(record, m.has_epoch(), [&] { return m.mutable_epoch(); });
  v.template Alternative<MemberRecord>(record, m.has_member(), [&] { return m.mutable_member(); });
  v.template Alternative<JobRecord>(record, m.has_job(), [&] { return m.mutable_job(); });
  v.template Alternative<ProgressRecord>(record, m.has_progress(),
                                         [&] { return m.mutable_progress(); });
  v.template Alternative<IslandRecord>(record, m.has_island(), [&] { return m.mutable_island(); });
  v.template Alternative<ContributionRecord>(record, m.has_contribution(),
                                             [&] { return m.mutable_contribution(); });
  v.template Alternative<DecisionRecord>(record, m.has_decision(),
                                         [&] { return m.mutable_decision(); });
  v.template Alternative<PenaltyRecord>(record, m.has_penalty(),
                                        [&] { return m.mutable_penalty(); });
  v.template Alternative<LedgerRecord>(record, m.has_ledger(), [&] { return m.mutable_ledger(); });
  v.template Alternative<PlanRecord>(record, m.has_plan(), [&] { return m.mutable_plan(); });
  v.template Alternative<LinkRecord>(record, m.has_link(), [&] { return m.mutable_link(); });
  v.template Alternative<DeviceRecord>(record, m.has_device(), [&] { return m.mutable_device(); });
  v.template Alternative<RemovedRecord>(record, m.has_removed(),
                                        [&] { return m.mutable_removed(); });
}

}  // namespace

absl::StatusOr<std::string> EncodeRecord(const StoreRecord& record) {
  v1::stored::Record wire;
  MessageWriter encoder;
  RecordFields(encoder, record, wire);
  ATOLL_CHECK(wire.record_case() != v1::stored::Record::RECORD_NOT_SET);
  if (encoder.status().ok()) return wire.SerializeAsString();
  return absl::InternalError(
      absl::StrCat("the record ", MakeRecordKey(record),
                   " could not be read again: ", encoder.status().message()));
}

absl::StatusOr<StoreRecord> DecodeRecord(absl::string_view bytes) {
  v1::stored::Record wire;
  if (!wire.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ||
      wire.record_case() == v1::stored::Record::RECORD_NOT_SET) {
    return absl::DataLossError("not a record");
  }
  StoreRecord record;
  MessageReader decoder;
  RecordFields(decoder, record, wire);
  ATOLL_RETURN_IF_ERROR(decoder.status());
  return record;
}

}  // namespace atl

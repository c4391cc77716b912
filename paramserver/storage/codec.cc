#include "paramserver/storage/codec.h"

#include <xxhash.h>

#include <utility>

#include "common/protocol/wire_visitor.h"
#include "common/status.h"
#include "paramserver/core/records.fields.h"
#include "paramserver/core/records.pb.h"

namespace atl::ps {
namespace {

// The kinds of record with their field in v1::kept::Record.
template <class V, class Variant>
void RecordFields(V& v, Variant& record, v1::kept::Record& m) {
  v.template Alternative<AssignedRecord>(record, m.has_assigned(),
                                         [&] { return m.mutable_assigned(); });
  v.template Alternative<FencedRecord>(record, m.has_fenced(), [&] { return m.mutable_fenced(); });
  v.template Alternative<PushedRecord>(record, m.has_pushed(), [&] { return m.mutable_pushed(); });
  v.template Alternative<CommittedRecord>(record, m.has_committed(),
                                          [&] { return m.mutable_committed(); });
  v.template Alternative<DroppedRecord>(record, m.has_dropped(),
                                        [&] { return m.mutable_dropped(); });
  v.template Alternative<EndedRecord>(record, m.has_ended(), [&] { return m.mutable_ended(); });
  v.template Alternative<JoinedRecord>(record, m.has_joined(), [&] { return m.mutable_joined(); });
  v.template Alternative<ReceivedRecord>(record, m.has_received(),
                                         [&] { return m.mutable_received(); });
}

template <class Wire>
absl::StatusOr<std::vector<std::byte>> ToBytes(const MessageWriter& encoder, const Wire& wire) {
  ATOLL_RETURN_IF_ERROR(encoder.status());
  std::vector<std::byte> bytes(wire.ByteSizeLong());
  wire.SerializeToArray(bytes.data(), static_cast<int>(bytes.size()));
  return bytes;
}

template <class Wire>
bool Parse(std::span<const std::byte> bytes, Wire* wire) {
  return wire->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

absl::Status Malformed(absl::string_view why) {
  return absl::DataLossError(absl::StrCat("its fields are malformed", why));
}

}  // namespace

uint64_t Checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

absl::StatusOr<std::vector<std::byte>> EncodeRecord(const LogRecord& record) {
  v1::kept::Record wire;
  MessageWriter encoder;
  RecordFields(encoder, record, wire);
  return ToBytes(encoder, wire);
}

std::span<const std::byte> GetPayload(const LogRecord& record) {
  if (const auto* push = std::get_if<PushedRecord>(&record)) return push->payload.bytes;
  if (const auto* received = std::get_if<ReceivedRecord>(&record)) return received->payload.bytes;
  return {};
}

absl::StatusOr<LogRecord> DecodeRecord(std::span<const std::byte> bytes, SharedBytes payload) {
  v1::kept::Record wire;
  if (!Parse(bytes, &wire) || wire.record_case() == v1::kept::Record::RECORD_NOT_SET) {
    return Malformed("");
  }
  LogRecord record;
  MessageReader decoder;
  RecordFields(decoder, record, wire);
  if (!decoder.status().ok()) return Malformed(absl::StrCat(": ", decoder.status().message()));
  if (auto* push = std::get_if<PushedRecord>(&record)) {
    push->payload = std::move(payload);
  } else if (auto* received = std::get_if<ReceivedRecord>(&record)) {
    if (received->begin >= received->shard.elements) {
      return absl::DataLossError("its elements are not of its shard");
    }
    received->payload = std::move(payload);
  } else if (!payload.bytes.empty()) {
    return absl::DataLossError("it has a payload, which its type has not");
  }
  return record;
}

absl::StatusOr<std::vector<std::byte>> EncodeHead(const SnapshotHead& head) {
  v1::kept::SnapshotHead wire;
  MessageWriter encoder;
  Fields(encoder, head, wire);
  return ToBytes(encoder, wire);
}

absl::StatusOr<SnapshotHead> DecodeHead(std::span<const std::byte> bytes) {
  v1::kept::SnapshotHead wire;
  if (!Parse(bytes, &wire)) return Malformed("");
  SnapshotHead head;
  MessageReader decoder;
  Fields(decoder, head, wire);
  if (!decoder.status().ok()) return Malformed(absl::StrCat(": ", decoder.status().message()));
  return head;
}

}  // namespace atl::ps

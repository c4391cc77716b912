#include "coordinator/etcd/stored.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr int kMaxBatches = 1 << 20;

absl::Status NotACoordinators(const std::string& key) {
  return absl::DataLossError(absl::StrCat(key, ": is not an Atoll coordinator's"));
}

absl::StatusOr<StoredTotals> DecodeTotals(const std::string& bytes, const std::string& key) {
  etcd::Totals wire;
  const bool parsed = wire.ParseFromString(bytes);
  if (parsed && wire.schema_version() > kEtcdSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        key, ": has schema version ", wire.schema_version(), ", this coordinator knows ",
        kEtcdSchemaVersion, "; start it with the Atoll that wrote it, or newer"));
  }
  const StoredTotals decoded{{wire.sequence(), wire.records(), wire.digest()},
                             wire.staged_batches()};
  if (!parsed || wire.checksum() != ComputeChecksum(decoded.totals) || decoded.staged_batches < 0 ||
      decoded.staged_batches > kMaxBatches) {
    return absl::DataLossError(absl::StrCat(
        key, ": is damaged, or not an Atoll coordinator's; give --store another /PREFIX"));
  }
  return decoded;
}

}  // namespace

absl::StatusOr<std::optional<etcd::Leader>> LeaderIn(const etcdserverpb::RangeResponse& answer,
                                                     const std::string& key) {
  if (answer.kvs_size() == 0) return std::nullopt;
  etcd::Leader leader;
  if (!leader.ParseFromString(answer.kvs(0).value()) || leader.address().empty()) {
    return NotACoordinators(key);
  }
  return leader;
}

absl::StatusOr<std::optional<StoredTotals>> TotalsIn(const etcdserverpb::RangeResponse& answer,
                                                     const std::string& key) {
  if (answer.kvs_size() == 0) return std::nullopt;
  return DecodeTotals(answer.kvs(0).value(), key);
}

std::string EncodeTotals(const StoreTotals& totals, int staged_batches) {
  etcd::Totals wire;
  wire.set_schema_version(kEtcdSchemaVersion);
  wire.set_sequence(totals.sequence);
  wire.set_records(totals.records);
  wire.set_digest(totals.digest);
  wire.set_checksum(ComputeChecksum(totals));
  wire.set_staged_batches(staged_batches);
  return wire.SerializeAsString();
}

absl::StatusOr<EtcdOperations> BatchIn(const etcdserverpb::RangeResponse& answer,
                                       const std::string& key) {
  etcd::Batch batch;
  if (answer.kvs_size() != 1 || !batch.ParseFromString(answer.kvs(0).value())) {
    return absl::DataLossError(absl::StrCat(key, ": is missing or damaged"));
  }
  return EtcdOperations(batch.operations().begin(), batch.operations().end());
}

absl::StatusOr<TakenKey> TakenIn(const etcdserverpb::TxnResponse& answer, const std::string& key,
                                 const etcd::Leader& self, int64_t lease) {
  if (answer.succeeded()) return TakenKey{answer.header().revision(), self};
  if (answer.responses_size() != 1 || answer.responses(0).response_range().kvs_size() != 1) {
    return absl::InternalError("etcd's answer is not of the request");
  }
  const etcdserverpb::KeyValue& found = answer.responses(0).response_range().kvs(0);
  // An earlier attempt may have been carried out without an answer.
  if (found.lease() == lease) return TakenKey{found.create_revision(), self};
  TakenKey taken;
  if (!taken.leader.ParseFromString(found.value())) return NotACoordinators(key);
  return taken;
}

std::string EncodeLines(const std::vector<LogEntry>& lines) {
  etcd::Lines wire;
  for (const LogEntry& line : lines) {
    etcd::Line* one = wire.add_lines();
    one->set_sequence(line.event.sequence);
    one->set_unix_time_ms(line.unix_time_ms);
    one->set_job(line.event.job);
    one->set_severity(static_cast<int>(line.event.severity));
    one->set_text(line.event.text);
    one->set_checksum(ComputeLineChecksum(line.event.sequence, line.unix_time_ms, line.event.job,
                                          one->severity(), line.event.text));
  }
  return wire.SerializeAsString();
}

// Decodes the lines that can be read; `damaged` counts the others.
std::vector<LogEntry> DecodeLines(const std::string& bytes, int64_t* damaged) {
  etcd::Lines wire;
  std::vector<LogEntry> lines;
  if (!wire.ParseFromString(bytes)) {
    ++*damaged;
    return lines;
  }
  for (const etcd::Line& one : wire.lines()) {
    LogEntry line{{one.sequence(), one.job(),
                   one.severity() == 1   ? Severity::kWarning
                   : one.severity() == 2 ? Severity::kError
                                         : Severity::kInfo,
                   one.text()},
                  one.unix_time_ms()};
    if (one.checksum() != ComputeLineChecksum(one.sequence(), one.unix_time_ms(), one.job(),
                                              one.severity(), one.text())) {
      ++*damaged;
      line.event.text.insert(0, "(this line is damaged) ");
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace atl

#include "coordinator/etcd/stored.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "coordinator/store_seal.h"

namespace atl {
namespace {

constexpr size_t kPartBytes = size_t{1} << 20;  // etcd takes 1.5 MB a request

absl::Status NotACoordinators(const std::string& key) {
  return absl::DataLossError(absl::StrCat(key, ": is not an Atoll coordinator's"));
}

uint64_t ComputeEntryChecksum(int64_t number, const etcd::Entry& entry, uint64_t chain) {
  return ComputeRecordChecksum(absl::StrCat(number, "/", entry.sequence(), "/", entry.snapshot(),
                                            "/", entry.parts_left(), "/", chain),
                               entry.data());
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

absl::Status LoggedState::Add(int64_t number, const std::string& bytes) {
  const auto damaged = [&](absl::string_view how) {
    return absl::DataLossError(absl::StrCat("its entry ", number, " ", how));
  };
  etcd::Entry entry;
  const bool parsed = entry.ParseFromString(bytes);
  const int64_t version = parsed ? entry.schema_version() : 0;
  if (version != 0 && version != kEtcdSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("has schema version ", version, ", this coordinator knows ",
                     kEtcdSchemaVersion, "; start it with the Atoll that wrote it, or newer"));
  }
  const bool is_first = next_ == 1 && tail_.next == 1;
  const bool begins = tail_.parts_left == 0;
  if (is_first && entry.snapshot()) tail_.next = number;
  if (number != tail_.next) return damaged("is there, and those before are missing");
  const uint64_t chain =
      ComputeEntryChecksum(number, entry, entry.snapshot() && begins ? 0 : tail_.chain);
  if (!parsed || entry.checksum() != chain || entry.parts_left() < 0 ||
      (!begins && entry.parts_left() != tail_.parts_left - 1)) {
    return damaged("fails its checksum, is an older one, or not an Atoll coordinator's");
  }
  tail_ = {number + 1, chain, entry.parts_left(), std::move(tail_.data) + entry.data()};
  if (entry.parts_left() > 0) return absl::OkStatus();
  etcd::Step step;
  if (!step.ParseFromString(tail_.data)) return damaged("holds no step");
  const auto size = static_cast<int64_t>(tail_.data.size());
  tail_.data.clear();
  if (entry.snapshot()) {
    values_.clear();
    log_bytes_ = 0;
    snapshot_bytes_ = size;
  }
  for (etcd::Write& write : *step.mutable_writes()) {
    if (write.erase()) {
      values_.erase(write.key());
    } else {
      values_[write.key()] = std::move(*write.mutable_value());
    }
  }
  log_bytes_ += size;
  sequence_ = entry.sequence();
  next_ = tail_.next;
  chain_ = chain;
  return absl::OkStatus();
}

std::vector<std::string> LoggedState::Append(const etcd::Step& step, bool snapshot) {
  const std::string data = step.SerializeAsString();
  const size_t parts = data.empty() ? 1 : (data.size() + kPartBytes - 1) / kPartBytes;
  tail_ = {next_, snapshot ? 0 : chain_};
  const int64_t sequence = sequence_ + (snapshot ? 0 : 1);
  std::vector<std::string> entries;
  for (size_t i = 0; i < parts; ++i) {
    etcd::Entry entry;
    entry.set_schema_version(kEtcdSchemaVersion);
    entry.set_sequence(sequence);
    entry.set_snapshot(snapshot);
    entry.set_parts_left(static_cast<int32_t>(parts - 1 - i));
    entry.set_data(data.substr(i * kPartBytes, kPartBytes));
    entry.set_checksum(ComputeEntryChecksum(tail_.next, entry, tail_.chain));
    entries.push_back(entry.SerializeAsString());
    const absl::Status added = Add(tail_.next, entries.back());
    ATOLL_CHECK(added.ok(), added.message());
  }
  return entries;
}

std::vector<std::string> LoggedState::AppendSnapshot() {
  etcd::Step all;
  for (const auto& [key, value] : values_) {
    etcd::Write* write = all.add_writes();
    write->set_key(key);
    write->set_value(value);
  }
  return Append(all, /*snapshot=*/true);
}

}  // namespace atl

#include "coordinator/etcd/values.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/status.h"
#include "coordinator/etcd/values.pb.h"
#include "coordinator/store.h"
#include "coordinator/store_seal.h"

namespace atl {
namespace {

constexpr int64_t kFewestKeys = 64, kMostKeys = 512;  // of a page
constexpr size_t kSmallPageBytes = size_t{1} << 20;
constexpr int kMaxParts = static_cast<int>(kMaxRecordBytes / kPartBytes) + 1;

// The key of a part: behind the first one's, and before any other value's.
std::string MakePartKey(const std::string& key, int part) {
  if (part == 0) return key;
  return absl::StrCat(key, absl::string_view("\0", 1), absl::StrFormat("%04d", part));
}

}  // namespace

absl::Status ValueParts::Add(absl::string_view key, const std::string& stored) {
  const size_t end = std::min(key.find('\0'), key.size());
  etcd::Part part;
  const bool parsed = part.ParseFromString(stored);
  if (end == key.size()) {
    ATOLL_RETURN_IF_ERROR(Finish());
    value_ = EtcdValue{std::string(key), "", 1, part.checksum(), parsed};
    parts_ = part.parts();
  } else if (!value_ || value_->key != key.substr(0, end)) {
    return on_value_({std::string(key.substr(0, end)), "", 0, 0, false});  // its first one is lost
  } else {
    value_->whole = value_->whole && parsed && key == MakePartKey(value_->key, value_->parts);
    ++value_->parts;
  }
  if (value_->parts > kMaxParts) value_->whole = false;
  if (value_->whole) value_->bytes += part.data();
  return absl::OkStatus();
}

absl::Status ValueParts::Finish() {
  if (!value_) return absl::OkStatus();
  EtcdValue value = *std::move(value_);
  value_.reset();
  value.whole = value.whole && value.parts == parts_ &&
                value.checksum == ComputeRecordChecksum(value.key, value.bytes);
  return on_value_(std::move(value));
}

std::string ComputePrefixEnd(std::string prefix) {
  ++prefix.back();
  return prefix;
}

int PutValue(const std::string& folder, const std::string& key, absl::string_view bytes,
             int parts_before, EtcdOperations* operations) {
  const int parts =
      std::max<int>(1, static_cast<int>((bytes.size() + kPartBytes - 1) / kPartBytes));
  for (int i = 0; i < parts; ++i) {
    etcd::Part part;
    part.set_data(std::string(bytes.substr(i * kPartBytes, kPartBytes)));
    if (i == 0) part.set_parts(parts);
    if (i == 0) part.set_checksum(ComputeRecordChecksum(key, bytes));
    etcdserverpb::PutRequest* put = operations->emplace_back().mutable_request_put();
    put->set_key(folder + MakePartKey(key, i));
    put->set_value(part.SerializeAsString());
  }
  if (parts_before > parts) {
    auto* erase = operations->emplace_back().mutable_request_delete_range();
    erase->set_key(folder + MakePartKey(key, parts));
    erase->set_range_end(folder + MakePartKey(key, parts_before));
  }
  return parts;
}

void EraseValue(const std::string& folder, const std::string& key, EtcdOperations* operations) {
  auto* erase = operations->emplace_back().mutable_request_delete_range();
  erase->set_key(folder + key);
  erase->set_range_end(absl::StrCat(folder, key, "\x01"));
}

absl::Status ReadValues(EtcdClient* client, const std::string& folder,
                        const EtcdClient::GoOn& go_on, int64_t* revision,
                        const std::function<absl::Status(EtcdValue)>& on_value) {
  ValueParts parts(on_value);
  etcdserverpb::RangeRequest request;
  request.set_key(folder);
  request.set_range_end(ComputePrefixEnd(folder));
  request.set_limit(kFewestKeys);
  for (;;) {
    request.set_revision(*revision);
    ATOLL_ASSIGN_OR_RETURN(const auto page, client->Range(request, go_on));
    if (*revision == 0) *revision = page.header().revision();
    for (const etcdserverpb::KeyValue& kv : page.kvs()) {
      if (kv.key().compare(0, folder.size(), folder) != 0) {
        return absl::InternalError("etcd's answer is not of the request");
      }
      ATOLL_RETURN_IF_ERROR(
          parts.Add(absl::string_view(kv.key()).substr(folder.size()), kv.value()));
    }
    if (!page.more() || page.kvs_size() == 0) return parts.Finish();
    request.set_key(absl::StrCat(page.kvs(page.kvs_size() - 1).key(), absl::string_view("\0", 1)));
    request.set_limit(page.ByteSizeLong() < kSmallPageBytes
                          ? std::min(request.limit() * 2, kMostKeys)
                          : kFewestKeys);
  }
}

}  // namespace atl

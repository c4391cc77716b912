#include "coordinator/etcd/registry_value.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr char kKey[] = "registry";

}  // namespace

RegistryValue::RegistryValue(EtcdClient* client, Leadership* leadership, const std::string& prefix)
    : client_(client),
      leadership_(leadership),
      folder_(absl::StrCat(prefix, "/trust/value/")),
      journal_(client, leadership, prefix + "/trust") {}

absl::StatusOr<std::optional<std::string>> RegistryValue::Read() {
  ATOLL_ASSIGN_OR_RETURN(totals_, journal_.Recover());
  if (totals_.sequence == 0) return std::nullopt;
  std::optional<EtcdValue> found;
  int64_t revision = 0;
  ATOLL_RETURN_IF_ERROR(ReadValues(
      client_, folder_, [this] { return leadership_->Check().ok(); }, &revision,
      [&](EtcdValue value) {
        found = std::move(value);
        return absl::OkStatus();
      }));
  if (!found || !found->whole || found->key != kKey || found->checksum != totals_.digest) {
    return absl::DataLossError(absl::StrCat(
        folder_, kKey,
        ": is damaged or missing; restore a snapshot of etcd, or delete the keys of ", folder_,
        " and beside: tokens, revocations and the list of CURVE keys are then lost"));
  }
  parts_ = found->parts;
  return std::move(found->bytes);
}

absl::Status RegistryValue::Write(const std::string& bytes) {
  ATOLL_RETURN_IF_ERROR(failure_);
  EtcdOperations operations;
  parts_ = PutValue(folder_, kKey, bytes, parts_, &operations);
  ++totals_.sequence;
  totals_.records = 1;
  totals_.digest = ComputeRecordChecksum(kKey, bytes);
  failure_ = journal_.Commit(std::move(operations), totals_);
  return failure_;
}

}  // namespace atl

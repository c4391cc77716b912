#include "common/trust/records.h"

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/trust/pki.h"

namespace atl {
namespace {

constexpr size_t kDigestBytes = 32;
constexpr int64_t kRegistryBytesMax = int64_t{64} << 20;

}  // namespace

absl::StatusOr<std::string> EncodeTrustRecords(const v1::TrustRecords& records) {
  std::string text;
  if (!records.SerializeToString(&text)) {
    return absl::InternalError("the registry cannot be stored");
  }
  text += Sha256(text);
  return text;
}

absl::StatusOr<v1::TrustRecords> DecodeTrustRecords(const std::string& where,
                                                    const std::string& bytes) {
  v1::TrustRecords records;
  const size_t size = bytes.size() < kDigestBytes ? 0 : bytes.size() - kDigestBytes;
  if (bytes.size() < kDigestBytes || bytes.substr(size) != Sha256(bytes.substr(0, size)) ||
      !records.ParseFromString(bytes.substr(0, size))) {
    return absl::DataLossError(absl::StrCat(
        where,
        ": is damaged; restore it from a copy, or delete it: tokens, revocations and the "
        "list of CURVE keys are then lost"));
  }
  return records;
}

absl::StatusOr<v1::TrustRecords> ReadTrustRecords(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(const auto bytes, RealFiles().Read(path, kRegistryBytesMax));
  return DecodeTrustRecords(path,
                            std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace atl

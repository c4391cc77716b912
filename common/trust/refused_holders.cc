#include "common/trust/refused_holders.h"

#include "absl/strings/str_cat.h"
#include "common/trust/pki.h"

namespace atl {

void RefusedHolders::Set(const google::protobuf::RepeatedPtrField<v1::RefusedHolder>& holders) {
  std::map<std::pair<std::string, std::string>, v1::RefusedHolder> next;
  for (const v1::RefusedHolder& holder : holders) next[{holder.role(), holder.name()}] = holder;
  const std::lock_guard lock(mutex_);
  holders_ = std::move(next);
}

absl::Status RefusedHolders::Check(const std::string& certificate_pem) const {
  ATOLL_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(certificate_pem));
  if (!facts.identity.ok()) return absl::OkStatus();  // no name that could be revoked
  const std::lock_guard lock(mutex_);
  const auto found =
      holders_.find({std::string(RoleName(facts.identity->role)), facts.identity->name});
  if (found == holders_.end()) return absl::OkStatus();
  const v1::RefusedHolder& holder = found->second;
  if (!holder.key_digest().empty() && EqualSecrets(holder.key_digest(), facts.key_digest)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat("revoked: ", ToText(*facts.identity), " was revoked on ",
                   FormatUtc(holder.revoked_unix_s()), " by ", holder.revoked_by(),
                   holder.key_digest().empty() ? "" : "; another key has joined since"));
}

}  // namespace atl

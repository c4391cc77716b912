#include "coordinator/trust/known_certificates.h"

#include <utility>

namespace atl {

absl::StatusOr<std::shared_ptr<const KnownCertificate>> KnownCertificates::Look(
    const std::string& pem, const std::string& authority) {
  {
    const std::lock_guard lock(mutex_);
    for (const Map* map : {&newer_, &older_}) {
      if (const auto found = map->find(pem); found != map->end()) return found->second;
    }
  }
  auto known = std::make_shared<KnownCertificate>();
  ATOLL_ASSIGN_OR_RETURN(known->facts, ReadCertificate(pem));
  known->is_ours = authority.empty() || IsSignedBy(pem, authority);
  if (!known->is_ours) return known;
  const std::lock_guard lock(mutex_);
  if (newer_.size() >= kKeptMin) older_ = std::exchange(newer_, {});
  newer_.insert_or_assign(pem, known);
  return known;
}

size_t KnownCertificates::size() const {
  const std::lock_guard lock(mutex_);
  return newer_.size() + older_.size();
}

}  // namespace atl

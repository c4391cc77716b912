// Whose certificates are refused although they have not expired, as the coordinator's list has it:
// for what a member serves itself. Thread-safe.

#ifndef ATOLL_COMMON_TRUST_REFUSED_HOLDERS_H_
#define ATOLL_COMMON_TRUST_REFUSED_HOLDERS_H_

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "common/status.h"
#include "proto/keys.pb.h"

namespace atl {

class RefusedHolders {
 public:
  // Replaces the list; before the first one no holder is refused.
  void Set(const google::protobuf::RepeatedPtrField<v1::RefusedHolder>& holders);

  // Checks a certificate that the authority has signed. PERMISSION_DENIED: its holder is revoked;
  // the message says when and by whom.
  absl::Status Check(const std::string& certificate_pem) const;

 private:
  mutable std::mutex mutex_;
  // Refused holders by role and name; guarded by mutex_.
  std::map<std::pair<std::string, std::string>, v1::RefusedHolder> holders_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_TRUST_REFUSED_HOLDERS_H_

// A cluster's authority on the coordinator's disk: authority.pem and authority.key, the
// coordinator's own identity in coordinator/, and in `hosts` the names by which it is dialled.
// A reader of authority.key can make any certificate of the cluster, so its owner alone may.

#ifndef ATOLL_COMMON_TRUST_AUTHORITY_H_
#define ATOLL_COMMON_TRUST_AUTHORITY_H_

#include <string>
#include <vector>

#include "common/status.h"
#include "common/trust/identity_folder.h"
#include "common/trust/pki.h"

namespace atl {

class AuthorityFolder {
 public:
  // `path`: STATE_DIR/trust of the coordinator.
  explicit AuthorityFolder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // The path of the list of tokens and members (records.h).
  std::string RegistryPath() const { return path_ + "/registry"; }
  IdentityFolder coordinator() const { return IdentityFolder(path_ + "/coordinator"); }
  absl::StatusOr<bool> Exists() const;

  // Makes an authority for ten years, and the coordinator's identity. ALREADY_EXISTS: there is one.
  absl::Status Make(const std::string& cluster, const std::vector<std::string>& hosts,
                    int64_t now_unix_s) const;
  // Its key and certificate; an error where others than its owner may read the key.
  absl::StatusOr<KeyAndCertificate> Read() const;
  // A new certificate for the coordinator when half of the old one's year is over, or when it was
  // signed by a clock that was ahead of this one. An error where the authority's own is not valid
  // now: what it signed would be believed by no member.
  absl::Status RenewCoordinator(int64_t now_unix_s) const;
  // The coordinator's certificate names these hosts, too, from now on.
  absl::Status AddHosts(const std::vector<std::string>& hosts, int64_t now_unix_s) const;
  // A certificate for a holder on this machine, with new keys, in the folder.
  absl::Status Issue(const Identity& identity, const IdentityFolder& folder, int64_t now_unix_s,
                     int64_t lifetime_s) const;

 private:
  absl::Status CheckDates(int64_t now_unix_s) const;
  absl::Status SignCoordinator(int64_t now_unix_s) const;

  std::string path_;
};

// OK if a certificate may name the host.
absl::Status CheckHostName(const std::string& host);

}  // namespace atl

#endif  // ATOLL_COMMON_TRUST_AUTHORITY_H_

// Remembers what certificates say, and that the cluster's authority signed them. Reading and
// verifying one takes OpenSSL a millisecond, and every call shows the same one again, so what the
// authority signed is kept: with ten thousand members a revocation looks at all of them at once.
//
// Thread-safe. What others signed is not kept: any client can make any number of those.

#ifndef ATOLL_COORDINATOR_TRUST_KNOWN_CERTIFICATES_H_
#define ATOLL_COORDINATOR_TRUST_KNOWN_CERTIFICATES_H_

#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "common/status.h"
#include "common/trust/pki.h"

namespace atl {

struct KnownCertificate {
  CertificateFacts facts;
  bool is_ours = false;  // the authority signed it, or OpenSSL has verified it in the handshake
};

class KnownCertificates {
 public:
  static constexpr size_t kKeptMin = 16'384;  // the newest ones; at most twice as many

  // INVALID_ARGUMENT: it cannot be read. `authority`: PEM, the same in every call; empty:
  // handshakes verify.
  absl::StatusOr<std::shared_ptr<const KnownCertificate>> Look(const std::string& pem,
                                                               const std::string& authority);
  size_t size() const;

 private:
  using Map = absl::flat_hash_map<std::string, std::shared_ptr<const KnownCertificate>>;
  mutable std::mutex mutex_;
  Map newer_, older_;  // guarded by mutex_
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_TRUST_KNOWN_CERTIFICATES_H_

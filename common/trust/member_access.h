// How a member or a person gets into a cluster and stays in it: by a join token once, then by the
// certificate that it got, which it renews by itself.

#ifndef ATOLL_COMMON_TRUST_MEMBER_ACCESS_H_
#define ATOLL_COMMON_TRUST_MEMBER_ACCESS_H_

#include <memory>
#include <string>

#include "common/net/control/identity.h"
#include "common/net/control/tls.h"
#include "common/status.h"
#include "common/time.h"
#include "common/trust/identity_folder.h"
#include "proto/trust.pb.h"

namespace grpc {
class Channel;
}

namespace atl {

// The flags of a member that say where it goes and who it is.
struct AccessFlags {
  std::string* coordinator;  // "host:port", or a list of them (common/net/control/leader.h)
  TlsOptions* tls;
  std::string* curve_key_path;
};

// `App` is CLI::App.
template <class App>
void AddJoinFlag(App& app, std::string* join) {
  app.add_option("--join", *join,
                 "TOKEN@HOST:PORT[,HOST:PORT...] of the coordinator, as printed by `atoll token "
                 "create`: joins the cluster; the certificate is kept in --state-dir");
}

// Fills in what the flags leave open. Files that flags name are used as they are. Else the
// certificate in `folder` is, if there is one; else `join`, if it is given, gets one; else there is
// none, and connections are plaintext. With `join`, a certificate that has expired, or whose holder
// is revoked, is replaced. Errors name the flag.
absl::Status EnterCluster(const Identity& self, const IdentityFolder& folder,
                          const std::string& join, const AccessFlags& flags);

// Gets a certificate; tries for `patience` to reach the coordinator.
absl::Status Join(const Identity& self, const IdentityFolder& folder, const std::string& join,
                  Duration patience);

// Replaces the certificate in the folder by a new one for the same key.
absl::Status RenewCertificate(const IdentityFolder& folder, const std::string& coordinator);

// Renews the certificate in the folder when half of its time is over; a thread of its own.
class CertificateRenewer {
 public:
  CertificateRenewer(IdentityFolder folder, std::string coordinator);
  ~CertificateRenewer();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

// A renewer if the certificate in use is the folder's; else null.
std::unique_ptr<CertificateRenewer> StartRenewer(const IdentityFolder& folder,
                                                 const TlsOptions& in_use,
                                                 const std::string& coordinator);

}  // namespace atl

#endif  // ATOLL_COMMON_TRUST_MEMBER_ACCESS_H_

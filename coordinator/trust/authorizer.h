// Access control at gRPC's ends: every call is checked before its handler runs, and handlers learn
// who calls. For the coordinator's service files only.

#ifndef ATOLL_COORDINATOR_TRUST_AUTHORIZER_H_
#define ATOLL_COORDINATOR_TRUST_AUTHORIZER_H_

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <memory>

#include "coordinator/trust/access_control.h"

namespace atl {

// Metadata by which the page's own calls, in this process, say who uses the page.
inline constexpr char kPageUserKey[] = "atoll-page-user";

// Makes an authorizer for ServerCredentials. `access` outlives the server.
std::shared_ptr<grpc::AuthMetadataProcessor> NewAuthorizer(AccessControl* access);

Caller CallerFrom(AccessControl* access, const grpc::CallbackServerContext& context);

// Ends calls under way whose caller is revoked: looks again after each revocation.
class AccessWatch {
 public:
  AccessWatch(AccessControl* access, const grpc::CallbackServerContext& context)
      : access_(access), certificate_(GetPeerCertificate(*context.auth_context())) {}

  Verdict Check() {
    if (access_->revocations() == seen_) return {};
    seen_ = access_->revocations();
    return access_->StillAllowed(certificate_);
  }

 private:
  AccessControl* const access_;
  const std::string certificate_;
  int64_t seen_ = 0;  // the first look is the call's own
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_TRUST_AUTHORIZER_H_

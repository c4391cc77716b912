// The Trust service: joining, renewal, tokens, revocation, the audit log (proto/trust.proto).

#ifndef ATOLL_COORDINATOR_TRUST_TRUST_SERVICE_H_
#define ATOLL_COORDINATOR_TRUST_TRUST_SERVICE_H_

#include <memory>

#include "coordinator/trust/access_control.h"

namespace grpc {
class Service;
}

namespace atl {

class TrustService {
 public:
  // `access` must outlive the gRPC server.
  explicit TrustService(AccessControl* access);
  ~TrustService();

  // Returns the service to be registered with the server, which must be shut down before this is
  // destroyed.
  grpc::Service* service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_TRUST_TRUST_SERVICE_H_

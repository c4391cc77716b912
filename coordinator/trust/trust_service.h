// The Trust service: joining, renewal, tokens, revocation, the audit log (proto/trust.proto).

#ifndef ATOLL_COORDINATOR_TRUST_TRUST_SERVICE_H_
#define ATOLL_COORDINATOR_TRUST_TRUST_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <memory>

#include "coordinator/trust/access_control.h"

namespace atl {

// `access` outlives the service.
std::unique_ptr<grpc::Service> NewTrustService(AccessControl* access);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_TRUST_TRUST_SERVICE_H_

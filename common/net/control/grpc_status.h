// Statuses of gRPC calls and our own have the same codes. For shells; includes gRPC.

#ifndef ATOLL_COMMON_NET_CONTROL_GRPC_STATUS_H_
#define ATOLL_COMMON_NET_CONTROL_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace atl {

inline grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

inline absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace atl

#endif  // ATOLL_COMMON_NET_CONTROL_GRPC_STATUS_H_

// The coordinator's client services: Jobs and Status of proto/coordinator.proto.
// Every call is answered from the loop's thread; streams get a new message when something has
// changed, no faster than they are read, and less often where they would delay other calls.

#ifndef ATOLL_COORDINATOR_CLIENT_SERVICE_H_
#define ATOLL_COORDINATOR_CLIENT_SERVICE_H_

#include <memory>
#include <vector>

#include "coordinator/loop.h"
#include "coordinator/trust/access_control.h"

namespace grpc {
class Service;
}

namespace atl {

inline constexpr size_t kMaxWatchers = 256;

class ClientService {
 public:
  // Takes over the loop's between_tasks. Both must outlive the gRPC server.
  ClientService(CoordinatorLoop* loop, AccessControl* access);
  ~ClientService();

  // Returns services to be registered with the server, which must be shut down before this is
  // destroyed.
  std::vector<grpc::Service*> services();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CLIENT_SERVICE_H_

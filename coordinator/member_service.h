// The coordinator's end of the Attach streams: messages of members become tasks of the loop, and
// what the core sends finds its stream by name and incarnation. A stream reads its next message
// only when the loop is done with the last, so a member cannot flood the coordinator.

#ifndef ATOLL_COORDINATOR_MEMBER_SERVICE_H_
#define ATOLL_COORDINATOR_MEMBER_SERVICE_H_

#include <memory>

#include "coordinator/loop.h"

namespace grpc {
class Service;
}

namespace atl {

class MemberService {
 public:
  // Takes over the loop's send_to_worker and send_to_server. `loop` must outlive the gRPC server.
  explicit MemberService(CoordinatorLoop* loop);
  ~MemberService();

  // To be registered with the server, which must be shut down before this goes.
  std::vector<grpc::Service*> services();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_MEMBER_SERVICE_H_

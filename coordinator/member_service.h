// The coordinator's end of the Attach streams: messages of members become tasks of the loop, and
// what the core sends finds its stream by name and incarnation. A stream reads its next message
// only when the loop is done with the last, so a member cannot flood the coordinator
// (backpressure).

#ifndef ATOLL_COORDINATOR_MEMBER_SERVICE_H_
#define ATOLL_COORDINATOR_MEMBER_SERVICE_H_

#include <memory>

#include "coordinator/loop.h"
#include "coordinator/trust/access_control.h"

namespace grpc {
class Service;
}

namespace atl {

class MemberService {
 public:
  // Takes over the loop's send_to_worker and send_to_server. Both must outlive the gRPC server.
  MemberService(CoordinatorLoop* loop, AccessControl* access);
  ~MemberService();

  // Returns services to be registered with the server, which must be shut down before this is
  // destroyed.
  std::vector<grpc::Service*> services();

  // Ends the streams of members that are revoked, with a last message that is final. Any thread.
  void EndRevoked();
  // Sends the list of keys where it has changed: all of it to servers, refused holders to workers.
  // Who attaches gets it by itself. Any thread.
  void SendKeys();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_MEMBER_SERVICE_H_

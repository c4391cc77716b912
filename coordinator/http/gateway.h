// The web page and its data over HTTP: each path under /api/ is one call of the gRPC services, made
// in this process, whose answer is sent as protobuf's JSON. README.md lists the paths. Thread-safe.

#ifndef ATOLL_COORDINATOR_HTTP_GATEWAY_H_
#define ATOLL_COORDINATOR_HTTP_GATEWAY_H_

#include <memory>
#include <string>

#include "common/http/http_server.h"

namespace grpc {
class Channel;
}

namespace atl {

class Gateway {
 public:
  // `actions`: whether jobs may be paused, resumed and cancelled.
  Gateway(std::shared_ptr<grpc::Channel> channel, bool actions);
  ~Gateway();

  HttpReply Answer(const HttpRequest& request);

 private:
  struct Stubs;

  HttpReply Api(const std::string& call, const HttpRequest& request);
  HttpReply Act(const std::string& call, const HttpRequest& request);
  HttpReply Logs(const HttpRequest& request);
  HttpReply Events(const HttpRequest& request);

  const std::shared_ptr<Stubs> stubs_;  // streams may outlive a request
  const bool actions_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_HTTP_GATEWAY_H_

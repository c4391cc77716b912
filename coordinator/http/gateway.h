// The web page and its data over HTTP: each path under /api/v1/ is one call of the gRPC services,
// made in this process, whose answer is sent as protobuf's JSON, cut to what the page lists.
// README.md lists the paths. Thread-safe.

#ifndef ATOLL_COORDINATOR_HTTP_GATEWAY_H_
#define ATOLL_COORDINATOR_HTTP_GATEWAY_H_

#include <functional>
#include <memory>
#include <string>

#include "common/http/http_server.h"

namespace grpc {
class Channel;
}

namespace atl {

class Gateway {
 public:
  // Returns whether the sender of a request may make a call of the gRPC services
  // ("/atl.v1.Jobs/Pause"), and under what name it is audited. `try_only`: checked only, by a page
  // that offers it or a stream that goes on; a denial is not logged.
  struct User {
    absl::Status allowed;
    std::string name;
  };
  using Permit =
      std::function<User(const HttpRequest& request, const std::string& call, bool try_only)>;

  Gateway(std::shared_ptr<grpc::Channel> channel, Permit permit);
  ~Gateway();

  HttpReply Answer(const HttpRequest& request);

  // Ends the calls under way; no call begins afterwards. To be called before the channel's server
  // is shut down.
  void Close();

 private:
  struct Stubs;

  HttpReply Api(const std::string& call, const HttpRequest& request);
  HttpReply Act(const std::string& call, const HttpRequest& request);
  HttpReply History(const HttpRequest& request);
  HttpReply Sites(const HttpRequest& request);
  HttpReply Logs(const HttpRequest& request);
  HttpReply Events(const HttpRequest& request);

  const std::shared_ptr<Stubs> stubs_;  // streams may outlive a request
  const Permit permit_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_HTTP_GATEWAY_H_

// Where a gRPC server listens: a Listener of ours in place of gRPC's, which takes connections until
// no descriptor is left, and then none any more.

#ifndef ATOLL_COMMON_NET_CONTROL_GRPC_LISTENER_H_
#define ATOLL_COMMON_NET_CONTROL_GRPC_LISTENER_H_

#include <memory>
#include <string>

#include "common/net/listener.h"
#include "common/status.h"

namespace grpc {
class ServerBuilder;
class ServerCredentials;
namespace experimental {
class ExternalConnectionAcceptor;
}  // namespace experimental
}  // namespace grpc

namespace atl {

class GrpcListener {
 public:
  // Binds `address` ("host:port", checked before), and adds it to the server. A connection has ten
  // seconds for its handshake. Errors name the flag.
  static absl::StatusOr<std::unique_ptr<GrpcListener>> Bind(
      const std::string& flag, const std::string& address,
      const std::shared_ptr<grpc::ServerCredentials>& credentials, grpc::ServerBuilder* builder);
  ~GrpcListener();

  int port() const { return listener_->port(); }
  // Starts listening; once, when the server is built.
  void Start();
  // Stops listening, before the server shuts down; the port is free afterwards.
  void Stop() { listener_->Stop(); }

 private:
  GrpcListener() = default;

  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<Listener> listener_;  // last: its thread uses the above
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_CONTROL_GRPC_LISTENER_H_

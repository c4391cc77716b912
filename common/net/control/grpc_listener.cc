#include "common/net/control/grpc_listener.h"

#include <grpcpp/server_builder.h>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace atl {
namespace {

constexpr int kConnectionsMax = 1 << 15;
constexpr int kHandshakeLimitMs = 10'000;

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::Bind(
    const std::string& flag, const std::string& address,
    const std::shared_ptr<grpc::ServerCredentials>& credentials, grpc::ServerBuilder* builder) {
  const size_t colon = address.rfind(':');
  absl::string_view host = absl::string_view(address).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port)) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", address, ": must be HOST:PORT"));
  }
  std::unique_ptr<GrpcListener> listener(new GrpcListener);
  ATOLL_ASSIGN_OR_RETURN(listener->listener_,
                         Listener::Bind(absl::StrCat(flag, " ", address), std::string(host), port,
                                        ShareOfDescriptors(kConnectionsMax)));
  using Experimental = grpc::ServerBuilder::experimental_type;
  listener->acceptor_ = builder->experimental().AddExternalConnectionAcceptor(
      Experimental::ExternalConnectionType::FROM_FD, credentials);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeLimitMs);
  return listener;
}

GrpcListener::~GrpcListener() {
  if (listener_ != nullptr) listener_->Stop();
}

void GrpcListener::Start() {
  listener_->Start([this](int connection, const std::string&) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
    parameters.fd = connection;
    acceptor_->HandleNewConnection(&parameters);
  });
}

}  // namespace atl

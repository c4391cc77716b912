#include "common/net/control/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "common/http/proxy.h"
#include "common/protocol/wire.h"

namespace atl {
namespace {

constexpr int kConnectMs = 5000;

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const TlsOptions& tls,
                                                           const std::string& address,
                                                           const ChannelTimes& times) {
  ATOLL_ASSIGN_OR_RETURN(const auto credentials, ClientCredentials(tls, address));
  return OpenChannelWith(credentials, address, times);
}

std::shared_ptr<grpc::Channel> OpenChannelWith(
    const std::shared_ptr<grpc::ChannelCredentials>& credentials, const std::string& address,
    const ChannelTimes& times) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, times.keepalive_ms);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, times.keepalive_timeout_ms);
  if (times.reconnect_ms > 0) {
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, times.reconnect_ms);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, times.reconnect_ms);
  }
  // A name's addresses are tried one after the other, each for so long; by default for 20 s.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  const bool by_proxy = !FindProxy(address.substr(0, address.rfind(':'))).empty();
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, by_proxy ? 1 : 0);
  // A channel that shared its connection would also share an earlier one's backoff.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

}  // namespace atl

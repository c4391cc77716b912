// The settings of every gRPC channel of Atoll's, in one place. For shells; includes gRPC.

#ifndef ATOLL_COMMON_NET_CONTROL_CHANNEL_H_
#define ATOLL_COMMON_NET_CONTROL_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>

#include "common/net/control/tls.h"

namespace atl {

// Pings of a silent peer: a dead one is noticed within kKeepaliveMs + kKeepaliveTimeoutMs.
inline constexpr int kKeepaliveMs = 5000;
inline constexpr int kKeepaliveTimeoutMs = 5000;

// The same between a member and its only coordinator. Heartbeats show a dead peer earlier, so pings
// would double what a member costs.
inline constexpr int kMemberKeepaliveMs = 60'000;

// The same among several coordinators, one of which takes over when another one is dead.
inline constexpr int kShortKeepaliveMs = 1000;
inline constexpr int kShortKeepaliveTimeoutMs = 1500;

struct ChannelTimes {
  int keepalive_ms = kKeepaliveMs;
  int keepalive_timeout_ms = kKeepaliveTimeoutMs;
  int reconnect_ms = 0;  // the longest time between two attempts to connect; 0: gRPC's own
};

// A channel of its own connection, which takes messages of up to kMaxMessageBytes, notices dead
// peers, and uses no proxy of the environment.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const TlsOptions& tls,
                                                           const std::string& address,
                                                           const ChannelTimes& times = {});

// The same with these credentials.
std::shared_ptr<grpc::Channel> OpenChannelWith(
    const std::shared_ptr<grpc::ChannelCredentials>& credentials, const std::string& address,
    const ChannelTimes& times = {});

}  // namespace atl

#endif  // ATOLL_COMMON_NET_CONTROL_CHANNEL_H_

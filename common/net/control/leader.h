// Which of several coordinators leads: the failover of clients and members, which are given the
// addresses of all. A single one is used as it is.

#ifndef ATOLL_COMMON_NET_CONTROL_LEADER_H_
#define ATOLL_COMMON_NET_CONTROL_LEADER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/net/control/channel.h"
#include "common/time.h"

namespace atl {

inline constexpr size_t kMaxCoordinators = 16;

// A coordinator that does not lead answers every call with UNAVAILABLE and a text that begins so.
inline constexpr char kStandbyText[] = "this coordinator is a standby";

// Splits "HOST:PORT[,HOST:PORT...]".
std::vector<std::string> SplitAddresses(absl::string_view list);
// OK if it is such a list, of at most kMaxCoordinators.
absl::Status CheckAddresses(absl::string_view list);

struct LeaderChannel {
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
};

// A channel to the coordinator that leads: the first of the list that answers a health check. All
// are polled at once, and repeatedly within `limit`, as one may be about to take over; of a
// list of one, it is that one, without a check, pinged after `keepalive_ms` of silence. A channel
// from a longer list notices a dead peer within kShortKeepaliveMs + kShortKeepaliveTimeoutMs.
// Unavailable, with what each one replies: none led within `limit`, or `stop`, which is polled
// several times a second, was true.
absl::StatusOr<LeaderChannel> OpenLeaderChannel(
    const TlsOptions& tls, const std::string& list, Duration limit,
    const std::function<bool()>& stop = [] { return false; }, int keepalive_ms = kKeepaliveMs);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_CONTROL_LEADER_H_

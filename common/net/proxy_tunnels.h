// Links through an HTTP proxy (common/http/proxy.h), for networks that let nothing else out, and
// through relays (relay/relay.h), which are proxies whose targets are words.

#ifndef ATOLL_COMMON_NET_PROXY_TUNNELS_H_
#define ATOLL_COMMON_NET_PROXY_TUNNELS_H_

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/net/relay/words.h"
#include "common/status.h"

namespace atl {

// Carries connections through the proxy, 1,024 at most, on a thread of its own: each that comes to
// a local endpoint is connected, by CONNECT, to the endpoint that this stands for; after a failure
// the next one, a second later. Bytes pass unchanged, so links are as sealed as without it. Where
// one end has closed, the other has 10 s to do so. The socket at the local endpoint measures the
// way to the tunnel, not that to the far end. Thread-safe.
class ProxyTunnels {
 public:
  ProxyTunnels();
  // Ends all connections.
  ~ProxyTunnels();
  ProxyTunnels(const ProxyTunnels&) = delete;
  ProxyTunnels& operator=(const ProxyTunnels&) = delete;

  // Returns where to connect for a tcp:// endpoint, which may begin with a source address
  // ("tcp://source;to"): itself, or an endpoint of this process on 127.0.0.1, which any user of the
  // machine may connect to. With a word the endpoint is a relay's, with kOwnRelay and a word's text
  // that of UseOwnRelay (FAILED_PRECONDITION: there is none). It is the same each time, unless
  // 1,024 others were used since and no connection is left. An error: no descriptor, port or thread
  // is left, or 1,024 are in use.
  absl::StatusOr<std::string> Route(const std::string& endpoint, const std::string& word = "");

  // Sets the relay at which members wait that this process cannot reach: "host:port" and secret.
  void UseOwnRelay(const std::string& address, const std::string& secret);

  // Keeps some connections waiting at each of these relays, and more where some are in use; what
  // comes of them is connected to this port of 127.0.0.1. Replaces the port's list; connections
  // through relays that are not on it any more end.
  absl::Status Await(int port, const std::vector<LinkWay>& relays);

 private:
  class Carrier;
  absl::StatusOr<Carrier*> GetCarrier();
  absl::StatusOr<std::string> RouteToOwnRelay(const std::string& text);
  absl::StatusOr<std::string> FindRelay(const std::string& endpoint);

  std::mutex mutex_;
  std::unique_ptr<Carrier> carrier_;    // from the first tunnel on; guarded by mutex_
  std::string own_relay_, own_secret_;  // empty: none; guarded by mutex_
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_PROXY_TUNNELS_H_

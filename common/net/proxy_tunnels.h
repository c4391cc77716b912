// Links through an HTTP proxy (common/proxy.h), for networks that let nothing else out.

#ifndef ATOLL_COMMON_NET_PROXY_TUNNELS_H_
#define ATOLL_COMMON_NET_PROXY_TUNNELS_H_

#include <memory>
#include <mutex>
#include <string>

#include "common/status.h"

namespace atl {

// Carries the connections of one process through the proxy: each that comes to a local endpoint is
// connected, by CONNECT, to the endpoint that this stands for. Bytes pass unchanged, so links are
// as sealed as without it. Thread-safe.
class ProxyTunnels {
 public:
  ProxyTunnels();
  // Ends all connections.
  ~ProxyTunnels();
  ProxyTunnels(const ProxyTunnels&) = delete;
  ProxyTunnels& operator=(const ProxyTunnels&) = delete;

  // Returns where to connect for a tcp:// endpoint: itself, or an endpoint of this process on
  // 127.0.0.1, the same one each time. An error: no descriptor or port is left,
  // or there are more than 1,024 endpoints.
  absl::StatusOr<std::string> Route(const std::string& endpoint);

 private:
  class Tunnel;
  struct State;
  std::mutex mutex_;
  std::unique_ptr<State> state_;  // from the first tunnel on; guarded by mutex_
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_PROXY_TUNNELS_H_

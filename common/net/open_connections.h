// Which accepted connections are open, by descriptor and peer, and whether there is room for one
// more. Refusals are named in the log. Not thread-safe.

#ifndef ATOLL_COMMON_NET_OPEN_CONNECTIONS_H_
#define ATOLL_COMMON_NET_OPEN_CONNECTIONS_H_

#include <cstdint>
#include <map>
#include <string>

#include "common/time.h"

namespace atl {

struct ConnectionLimits {
  int connections = 0;  // in all
  int by_peer = 0;      // of one address
};

// A part of the descriptors that this process may open: the rest is for its files and its own
// connections. At most `most`; of one address half of them.
ConnectionLimits ShareOfDescriptors(int most);

class OpenConnections {
 public:
  struct Peer {
    std::string address;  // "": the descriptor is no connection any more
    int port = 0;
    bool operator==(const Peer&) const = default;
  };
  static Peer FindPeer(int descriptor);

  // `what`: for the log, "--http-listen 127.0.0.1:0".
  OpenConnections(std::string what, ConnectionLimits limits)
      : what_(std::move(what)), limits_(limits) {}

  // Forgets those that have been closed meanwhile, at times: their descriptors are free, or
  // something else.
  bool HasRoom(const std::string& peer);
  void Add(int descriptor, const Peer& peer) { open_[descriptor] = peer; }
  void Remove(int descriptor) { open_.erase(descriptor); }
  bool Has(int descriptor, const Peer& peer) const {
    const auto found = open_.find(descriptor);
    return found != open_.end() && found->second == peer;
  }
  // Counts those of the peer; "": all.
  int Count(const std::string& peer) const;

  // The log has one line for the refusals of ten seconds.
  void NoteRefusal(const std::string& why);
  void NoteFull(const std::string& peer);

 private:
  bool Fits(const std::string& peer) const;

  const std::string what_;
  const ConnectionLimits limits_;
  std::map<int, Peer> open_;
  Instant look_again_at_{};  // at all of them
  int64_t refused_ = 0;
  Instant noted_{};
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_OPEN_CONNECTIONS_H_

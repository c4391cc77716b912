// The end of a link that is connected to, reached through relays (relay.h): keeps some connections
// waiting at each, and more where some are in use. libzmq makes lost ones again. Used by the
// socket's thread.

#ifndef ATOLL_COMMON_NET_RELAY_STANDBY_H_
#define ATOLL_COMMON_NET_RELAY_STANDBY_H_

#include <map>
#include <string>
#include <vector>

#include "common/net/relay/words.h"
#include "common/net/socket.h"
#include "common/time.h"

namespace atl {

class Standby {
 public:
  static constexpr int kSpareMin = 2, kSpareMax = 16;

  // Both outlive it.
  Standby(ZmqContext* context, Socket* socket) : context_(context), socket_(socket) {}

  // Relays, each with the word to wait with. Connections through those that are not listed any more
  // end.
  void Set(const std::vector<LinkWay>& relays);
  // `used`: the socket's own connections that have been answered, by where to.
  void Turn(const std::map<std::string, int>& used, Instant now);

 private:
  struct Place {
    LinkWay way;
    std::string route;    // as `used` names it
    std::string dialled;  // as the socket knows it
    int made = 0;         // connections
    Instant next_try{};
    Instant renewed_at{};
  };
  void End(Place& place);
  bool Dial(Place& place);

  ZmqContext* const context_;
  Socket* const socket_;
  std::vector<Place> places_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_RELAY_STANDBY_H_

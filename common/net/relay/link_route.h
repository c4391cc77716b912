// The end of a link that connects: to which way of its endpoint (words.h).
//
// The ways, and all addresses of a name that does not answer, are tried in turn, each for a while;
// connections made later begin with the one that led there last, or with our own relay before any
// other one: it answers at once. An address that leads nowhere for kUnreachedAfter, or where
// another way did, is noted for the coordinator. Used by the socket's thread.

#ifndef ATOLL_COMMON_NET_RELAY_LINK_ROUTE_H_
#define ATOLL_COMMON_NET_RELAY_LINK_ROUTE_H_

#include <string>
#include <vector>

#include "common/net/relay/words.h"
#include "common/net/socket.h"
#include "common/status.h"
#include "common/time.h"

namespace atl {

class LinkRoute {
 public:
  // Connects by the way that is likely to lead there.
  absl::Status Connect(ZmqContext& context, Socket& socket, const std::string& endpoint);
  // Makes the connection again, by the same way.
  absl::Status ConnectAgain(ZmqContext& context, Socket& socket);
  // Connects by the next way where nothing has come of the present one in its time; true: it did.
  bool TryNext(ZmqContext& context, Socket& socket, Instant now);

  // Notes what has become of the connection.
  void NoteConnected(Instant now);  // TCP is there, to a tunnel perhaps
  void NoteUp(ZmqContext& context, Instant now);
  void NoteFailed(Instant now);  // no answer, or not the right one
  void NoteLost(Instant now);    // after it was up; libzmq makes it again

  // The relay of the present way, "host:port", "*" for our own; empty: none.
  std::string relay() const;

 private:
  static constexpr size_t kWaysMax = 12;
  static constexpr Duration kUnreachedAfter = std::chrono::seconds(3);

  bool is_direct() const { return ways_[present_].word.empty(); }
  size_t ChooseFirst(ZmqContext& context);
  void AddAddresses(ZmqContext& context, Instant now);
  void StartWay(Instant now);
  absl::Status Dial(ZmqContext& context, Socket& socket);

  std::string endpoint_;
  std::vector<LinkWay> ways_;
  size_t present_ = 0;
  std::string dialled_;  // as the socket knows it
  Instant give_up_at_{};
  Instant unreached_at_ = kNever;
  bool failed_ = false;  // since it was dialled or lost: a tunnel connects all the same
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_RELAY_LINK_ROUTE_H_

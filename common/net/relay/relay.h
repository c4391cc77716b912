// Passes connections of links on between members that cannot reach each other, but reach this one.
//
// Both ends connect here by HTTP's CONNECT (proxy_tunnels.h); the host that they name is a word
// (words.h). Answers are 200, 403 to a word that is not valid, 503 where there is no room. A member
// keeps connections waiting, unanswered; one that connects to the member gets the oldest of these,
// both are answered, and from then on bytes pass as they come. Sessions of links (session.h) begin
// and end at the members: a relay sees what a router sees.
//
// Bounded: connections by address and in all (ShareOfDescriptors), a Pump's buffers for each pair,
// time for a request. Fair: a pair passes one buffer a turn. Fenced: a waiting connection of a
// newer incarnation ends all connections of older ones, which are refused for as long as it or
// another one is there, and words of another process of the relay are invalid. Only members are
// reached: a word names no address.

#ifndef ATOLL_COMMON_NET_RELAY_RELAY_H_
#define ATOLL_COMMON_NET_RELAY_RELAY_H_

#include <memory>
#include <string>

#include "common/net/listener.h"
#include "common/net/tcp_endpoint.h"
#include "common/status.h"

namespace atl {

// Describes the daemons' --relay.
inline constexpr char kRelayHelp[] =
    "tcp://HOST:PORT at which other members reach it: it passes on connections of members that "
    "cannot reach each other; listens on all addresses, or at HOST if that is loopback";

class Relay {
 public:
  static constexpr int kConnectionsMax = 16384;
  static constexpr int kOwnConnectionsMax = 1024;
  static constexpr size_t kWaitingMax = 1024;  // of one member, and for one member
  static constexpr Duration kRequestWithin = std::chrono::seconds(10);
  // For a connection of a member that is there; libzmq's handshake, which waits, has 5 s in all.
  static constexpr Duration kPairWithin = std::chrono::seconds(3);

  struct Counters {
    int64_t waiting = 0;  // connections of members, now
    int64_t pairs = 0;    // now
    int64_t paired = 0;   // so far
    int64_t refused = 0;  // so far
    int64_t bytes = 0;    // passed on by pairs that have ended
  };

  // `endpoint`: "tcp://HOST:PORT" as others reach it. It listens at all addresses of this machine,
  // or at HOST where that is a loopback address; port 0: any. Errors begin with "--relay".
  static absl::StatusOr<std::unique_ptr<Relay>> Create(const std::string& endpoint);
  // Listens for members that this process cannot reach, beside a link that binds `link` and is
  // reached at `reached`: at the same host, and another port of the link's range, or any.
  static absl::StatusOr<std::unique_ptr<Relay>> CreateOwn(const std::string& link,
                                                          const std::string& reached);
  // Creates the relay of `flag`, or, where that is empty, the process's own one. Null: it has none,
  // since `link` is at a given port and no other is to be opened, or for what the log says.
  static absl::StatusOr<std::unique_ptr<Relay>> Open(const std::string& flag,
                                                     const std::string& link,
                                                     const std::string& reached);
  // Ends all connections.
  ~Relay();

  const std::string& address() const { return address_; }  // "HOST:PORT", the real port
  const std::string& secret() const { return secret_; }    // for MakeRelayWord
  const std::string& near() const { return near_; }        // address_ as this process reaches it
  bool own() const { return own_; }                        // for links of this process alone
  Counters counters() const;                               // thread-safe

 private:
  class Loop;
  Relay() = default;

  absl::Status Listen(const std::string& what, const std::string& host, PortRange ports,
                      int connections_max);

  std::string address_, near_, secret_;
  bool own_ = false;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Listener> listener_;  // last: it calls the loop
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_RELAY_RELAY_H_

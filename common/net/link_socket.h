// The sockets of links: frames over ZeroMQ, in sessions (session.h) where there are keys. Each is
// used by one network thread, but for `wake`.

#ifndef ATOLL_COMMON_NET_LINK_SOCKET_H_
#define ATOLL_COMMON_NET_LINK_SOCKET_H_

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/net/accept_guard.h"
#include "common/net/endpoint.h"
#include "common/net/relay/link_route.h"
#include "common/net/relay/words.h"
#include "common/net/seal_queue.h"
#include "common/net/security.h"
#include "common/net/session.h"
#include "common/net/socket.h"
#include "common/status.h"
#include "common/time.h"

namespace atl {

// The end that connects. With a server's key nothing is sent or taken outside a session.
class LinkClient {
 public:
  // An empty key: plaintext. `wake` is called on other threads when Receive or Flush has more to
  // do.
  static absl::StatusOr<std::unique_ptr<LinkClient>> Create(ZmqContext& context, const KeyPair& own,
                                                            const std::string& server_key,
                                                            std::function<void()> wake);
  ~LinkClient();

  absl::Status Connect(const std::string& endpoint);
  // Makes a lost connection again, where libzmq does not seem to: it does not connect again those
  // that it ended itself because the other end broke ZMTP or a limit. That end may have been
  // replaced by a better one. Nothing happens before it is time.
  absl::Status ConnectAgain(Instant now);

  // Returns the next event, if there is one. kUp: the session is there. A connection that fails its
  // handshake, or whose session has ended, stays down until ConnectAgain.
  std::optional<ConnectionEvent> Next(Instant now, int* descriptor = nullptr);
  bool up() const { return up_; }  // as of the last event
  // The relay that it is connected through, or tries; empty: none.
  std::string relay() const { return route_.relay(); }

  // REQUIRES: kUp was the last event, but for tests. kSent: it is sent after what is before it.
  SendOutcome Send(v1::Frame frame, Message* payload = nullptr);
  // Without waiting. Frames after a payload that is being opened wait for it.
  bool Receive(LinkFrame* in);
  // Sends what has been sealed meanwhile.
  void Flush();

  // To wait for what Next and Receive have to say (Socket::Poll).
  void AddTo(std::vector<Socket*>* sockets);
  void* socket() { return dealer_.use(); }  // for zmq_poll

 private:
  LinkClient(ZmqContext& context, const KeyPair& own, std::string server_key,
             std::function<void()> wake)
      : context_(context), own_(own), server_key_(std::move(server_key)), wake_(std::move(wake)) {}
  bool keyed() const { return !server_key_.empty(); }
  std::optional<ConnectionEvent> NextEvent(Instant now, int* descriptor);
  void EndSession();
  void SayHello(Instant now);
  std::optional<ConnectionEvent> AwaitWelcome(Instant now);
  bool TakeSealed(std::vector<Message>& parts, LinkFrame* in);

  ZmqContext& context_;
  const KeyPair own_;
  const std::string server_key_;
  const std::function<void()> wake_;
  LinkRoute route_;
  Socket dealer_;
  SocketMonitor watch_;
  bool up_ = false;
  std::optional<Instant> connect_at_;
  std::optional<Handshake> handshake_;  // begun, not answered
  uint64_t hello_number_ = 0;
  Instant answer_by_{};
  std::optional<Session> session_;
  std::unique_ptr<SealQueue> in_, out_;    // while there is a session
  std::optional<ConnectionEvent> ending_;  // of the session, to be returned by Next
};

// The end that is connected to, by many. With keys nothing is sent or taken outside sessions, and
// only keys on the list begin one.
class LinkServer {
 public:
  static constexpr size_t kSessionsMax = 8192;  // with more, those in which nothing came go first
  static constexpr size_t kQueuedMax =
      8192;  // frames for one connection; with more its session ends

  static absl::StatusOr<std::unique_ptr<LinkServer>> Create(ZmqContext& context, const KeyPair& own,
                                                            std::function<void()> wake);
  ~LinkServer();

  // The endpoint with its real port.
  absl::StatusOr<std::string> Bind(const std::string& endpoint);
  // Lets others connect to this end through these relays from now on; replaces the list.
  void AcceptThrough(const std::vector<LinkWay>& relays);

  // Z85 keys, checked before; replaces the list. Sessions that there are stay.
  void Admit(const std::vector<std::string>& public_keys);

  // Without waiting. `status` is an error where a frame breaks the rules; DataLoss: it does not
  // open, and no later one of its session will.
  bool Receive(LinkFrame* in);
  SendOutcome Send(const std::string& to, v1::Frame frame, Message* payload = nullptr);
  // Sends what has been sealed meanwhile, and ends connections that are too many. Each turn.
  void Flush();
  // Ends the session with this connection; its other end is notified and may begin another.
  void Forget(const std::string& connection);

  // Frames since the last call that were of no session, or began none.
  int64_t TakeRefused() { return std::exchange(refused_, 0); }
  // To wait for what Receive and Flush have to do.
  void AddTo(std::vector<Socket*>* sockets);

 private:
  struct Peer {
    Session session;
    std::string key;
    uint64_t number = 0;    // larger: begun later
    bool received = false;  // something has come in this session
    SealQueue in, out;
  };

  LinkServer(ZmqContext& context, const KeyPair& own, std::function<void()> wake)
      : context_(context), own_(own), wake_(std::move(wake)) {}
  bool keyed() const { return !own_.empty(); }
  bool TakeOpened(LinkFrame* in);
  bool TakePlain(std::vector<Message>& parts, LinkFrame* in);
  bool TakeSealed(std::vector<Message>& parts, LinkFrame* in);
  void OnHello(const std::string& from, const v1::Frame& frame, Message& message);
  void MakeRoom();
  SendOutcome Flush(const std::string& to, Peer& peer);
  SendOutcome SendPlain(const std::string& to, const v1::Frame& frame, Message* payload = nullptr);
  void Refuse(const std::string& to, uint64_t number, v1::LinkRefusal refusal);

  ZmqContext& context_;
  const KeyPair own_;
  const std::function<void()> wake_;
  Socket router_;
  std::unique_ptr<AcceptGuard> guard_;
  int relay_port_ = 0;              // of 127.0.0.1; 0: no relay yet
  std::set<std::string> admitted_;  // Z85
  std::map<std::string, std::unique_ptr<Peer>> peers_;
  std::set<std::string> opening_, sealing_;  // of peers_, whose queues are not empty
  uint64_t next_number_ = 1;
  int64_t refused_ = 0;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_LINK_SOCKET_H_

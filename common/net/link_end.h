// The network thread of one end of links, and what its connections have in common: libzmq's
// context and threads, buffers, and a limit of what is unsent. TensorClient, TensorServer and
// PeerLink are ends.
//
// An end's state is that of its network thread, which sleeps until a socket has something, a task
// is posted, or it is time.

#ifndef ATOLL_COMMON_NET_LINK_END_H_
#define ATOLL_COMMON_NET_LINK_END_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/net/chunks.h"
#include "common/net/link_socket.h"
#include "common/net/payload.h"
#include "common/net/security.h"
#include "common/net/socket.h"
#include "common/status.h"
#include "common/time.h"

namespace atl {

// A connection that this end has made, or tries to make.
struct LinkConnection {
  std::unique_ptr<LinkClient> link;
  std::shared_ptr<SendAccount> account;
  std::string trouble;  // the last
};

class LinkEnd {
 public:
  LinkEnd(const LinkEnd&) = delete;
  LinkEnd& operator=(const LinkEnd&) = delete;

  // Members that cannot be reached wait at this relay of the same process, "host:port" as it
  // reaches itself. Thread-safe.
  void UseOwnRelay(const std::string& address, const std::string& secret) {
    context_->tunnels().UseOwnRelay(address, secret);
  }
  // Addresses, "tcp://host:port", that this end has not reached. Thread-safe.
  std::vector<std::string> ListUnreached() const { return context_->ways().ListUnreached(); }

 protected:
  static constexpr int kFramesPerTurn = 64;
  // A turn without events comes at least this often.
  static constexpr Duration kTurnMax = std::chrono::milliseconds(100);

  LinkEnd(int64_t idle_bytes_max, int64_t unsent_bytes_max)
      : pool_(BufferPool::Create(idle_bytes_max)), unsent_bytes_max_(unsent_bytes_max) {}
  virtual ~LinkEnd() = default;  // REQUIRES: Stop, if Launch was called

  // `io_threads`: libzmq's, which move bytes between sockets and memory.
  absl::Status Open(int io_threads);
  absl::StatusOr<std::unique_ptr<LinkServer>> MakeServer(const KeyPair& own);
  // Begins to connect to an endpoint whose keys have been checked. An empty key: plaintext.
  absl::Status Connect(const std::string& endpoint, const KeyPair& own,
                       const std::string& server_key, int64_t unsent_bytes_max,
                       LinkConnection* connection);
  // A connection's part of a turn. Passes on its events, with the descriptor of a new one, and, if
  // it is to be used, connects again when it has been lost for a while; sends what has been sealed;
  // passes on at most kFramesPerTurn frames. Returns how many came, events too; at once where a
  // callback says that the connection is no more.
  int TurnConnection(LinkConnection& connection, bool used,
                     absl::FunctionRef<bool(ConnectionEvent, int)> on_event,
                     absl::FunctionRef<bool(LinkFrame&)> on_frame) const;
  std::shared_ptr<SendAccount> MakeAccount(
      int64_t unsent_bytes_max = SendAccount::kConnectionBytesMax);

  void Launch();  // the thread
  void Stop();    // after the turn under way
  // Runs what has been posted since, after Stop.
  void RunRest();
  // Runs a task on the network thread and waits for its end. Not for that thread.
  void Call(absl::FunctionRef<void()> task);

  // ---- The network thread's.
  // Adds the sockets that may have something to receive.
  virtual void AddTo(std::vector<Socket*>* sockets) = 0;
  // Returns when there is something to do though no socket has anything; within kTurnMax.
  virtual Instant NextDue() const = 0;
  // Receives and sends some, after the tasks. True: there is more to do at once.
  virtual bool Turn() = 0;

  const std::shared_ptr<BufferPool> pool_;
  const std::shared_ptr<TaskQueue> tasks_ = std::make_shared<TaskQueue>();  // may outlive us
  std::unique_ptr<ZmqContext> context_;
  bool stopping_ = false;
  Instant now_{};  // of the turn

 private:
  void Run();

  const int64_t unsent_bytes_max_;
  const std::shared_ptr<SendAccount::Total> unsent_bytes_ = std::make_shared<SendAccount::Total>(0);
  std::thread thread_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_LINK_END_H_

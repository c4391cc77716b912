// ZeroMQ sockets and messages as values, and every limit of libzmq that tensor links rely on.

#ifndef ATOLL_COMMON_NET_SOCKET_H_
#define ATOLL_COMMON_NET_SOCKET_H_

#include <zmq.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/net/name_addresses.h"
#include "common/net/proxy_tunnels.h"
#include "common/net/relay/link_ways.h"
#include "common/status.h"

namespace atl {

inline constexpr int kHeaderBytesMax = 1024;
inline constexpr int64_t kChunkBytesMin = 1024;
inline constexpr int64_t kChunkBytesMax = int64_t{4} << 20;

class Message {
 public:
  Message() { zmq_msg_init(&msg_); }
  ~Message() { zmq_msg_close(&msg_); }
  Message(Message&& other) noexcept : Message() { zmq_msg_move(&msg_, &other.msg_); }
  Message& operator=(Message&& other) noexcept {
    zmq_msg_move(&msg_, &other.msg_);
    return *this;
  }

  // A copy of `text`.
  static Message Of(absl::string_view text);
  // Not a copy: `released` runs on some thread once libzmq needs the bytes no more.
  static Message Wrap(std::span<const std::byte> bytes, std::function<void()> released);

  std::span<const std::byte> bytes() {
    return {static_cast<const std::byte*>(zmq_msg_data(&msg_)), zmq_msg_size(&msg_)};
  }
  std::span<std::byte> writable() {
    return {static_cast<std::byte*>(zmq_msg_data(&msg_)), zmq_msg_size(&msg_)};
  }
  absl::string_view text() {
    return {static_cast<const char*>(zmq_msg_data(&msg_)), zmq_msg_size(&msg_)};
  }
  zmq_msg_t* get() { return &msg_; }

 private:
  zmq_msg_t msg_;
};

enum class SendOutcome { kSent, kFull, kUnreachable };

class Socket {
 public:
  Socket() = default;
  explicit Socket(void* socket) : socket_(socket) {}
  ~Socket() { Close(); }
  Socket(Socket&& other) noexcept { *this = std::move(other); }
  Socket& operator=(Socket&& other) noexcept {
    std::swap(socket_, other.socket_);
    std::swap(polled_, other.polled_);
    std::swap(idle_, other.idle_);
    return *this;
  }

  // Sends all parts or none, without waiting. Parts are used up when the outcome is kSent.
  SendOutcome Send(std::span<Message> parts);
  // Receives one message without waiting; false when there is none. Parts beyond `parts_max` are
  // discarded and make `parts` one longer than parts_max.
  bool Receive(std::vector<Message>* parts, size_t parts_max);

  // Waits until one of the sockets may have something to receive, or `descriptor` is readable
  // (true), or the time is over. zmq_poll makes several system calls for every socket; this makes
  // one in all, and Receive none where nothing has happened since it last returned false. Between
  // two calls Receive is called until it returns false, or the next one does not wait.
  static bool Poll(std::span<Socket* const> sockets, int descriptor, int timeout_ms);

  // Returns the socket for calls that neither send nor receive nor change connections.
  void* get() const { return socket_; }
  // Returns the socket for all other calls: libzmq may note meanwhile that something has come.
  void* use() {
    idle_ = false;
    return socket_;
  }
  void Close();

 private:
  int descriptor() const;

  void* socket_ = nullptr;
  bool polled_ = false;  // by Poll
  bool idle_ = false;    // nothing is there to receive unless the descriptor says so
};

// A ZeroMQ context. Sockets must be closed before it dies.
class ZmqContext {
 public:
  static absl::StatusOr<std::unique_ptr<ZmqContext>> Create(int io_threads);
  ~ZmqContext();
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;

  // A socket with the limits of tensor links set.
  absl::StatusOr<Socket> MakeTensorSocket(int type);
  absl::StatusOr<Socket> MakeInprocSocket();
  // The way to endpoints beyond a proxy.
  ProxyTunnels& tunnels() { return tunnels_; }
  LinkWays& ways() { return ways_; }
  NameAddresses& names() { return names_; }

 private:
  explicit ZmqContext(void* context) : context_(context) {}
  ProxyTunnels tunnels_;
  LinkWays ways_;
  NameAddresses names_;
  void* context_;
};

absl::Status ZmqError(absl::string_view what);

// Work for a network thread, from any thread. The descriptor is readable while there is some.
class TaskQueue {
 public:
  TaskQueue();
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // An error: the system has no descriptor left, and no other call may be made.
  absl::Status Check() const;
  void Post(std::function<void()> task);
  void Wake();    // makes the descriptor readable, without a task
  void RunAll();  // those posted so far
  int descriptor() const { return descriptor_; }

 private:
  const int descriptor_;
  const int error_;
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;  // guarded by mutex_
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_SOCKET_H_

#include "common/net/socket.h"

#include <malloc.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "common/check.h"

namespace atl {
namespace {

struct IntOption {
  int option;
  int value;
};

// Every limit of libzmq 4.3 that matters here, with why. Its defaults trust the network.
constexpr IntOption kTensorSocketLimits[] = {
    // Messages waiting per connection: few, so that chunks are copied on while still in the cache.
    // TCP holds back a peer that sends more, 8 x 4 MiB at the utmost.
    {ZMQ_RCVHWM, 8},
    // Headers and referenced chunks, which cost no copy. Our own accounting bounds the bytes
    // (send_bytes_max); reaching this means a peer opened transfers without end.
    {ZMQ_SNDHWM, 8192},
    // A silent peer is found in 6 s: ping every 2 s. The other end drops us after the same time.
    {ZMQ_HEARTBEAT_IVL, 2000},
    {ZMQ_HEARTBEAT_TIMEOUT, 6000},
    {ZMQ_HEARTBEAT_TTL, 6000},
    // Half-open and slow handshakes are cut.
    {ZMQ_HANDSHAKE_IVL, 5000},
    // Closing discards what is not sent: transfers are acknowledged end to end.
    {ZMQ_LINGER, 0},
    // Nothing queues for a connection that does not exist; what was queued on a lost one is dropped
    // and the transfer starts an attempt of its own.
    {ZMQ_IMMEDIATE, 1},
    // Reconnect after 50 ms, doubling to 2 s.
    {ZMQ_RECONNECT_IVL, 50},
    {ZMQ_RECONNECT_IVL_MAX, 2000},
    {ZMQ_BACKLOG, 128},
    // The kernel's keepalive, for middleboxes; the heartbeat decides.
    {ZMQ_TCP_KEEPALIVE, 1},
    {ZMQ_TCP_KEEPALIVE_IDLE, 30},
    {ZMQ_TCP_KEEPALIVE_INTVL, 10},
    {ZMQ_TCP_KEEPALIVE_CNT, 3},
    // -1: the kernel sizes socket buffers by the path (up to tcp_wmem and tcp_rmem); any fixed size
    // is capped at a smaller limit and is wrong on most paths.
    {ZMQ_SNDBUF, -1},
    {ZMQ_RCVBUF, -1},
    {ZMQ_IPV6, 1},
    // Calls never wait: the network thread polls.
    {ZMQ_RCVTIMEO, 0},
    {ZMQ_SNDTIMEO, 0},
};

// libzmq passes `hint` between threads with synchronisation that ThreadSanitizer cannot see; this
// makes it visible.
std::atomic<int64_t> wrapped_count = 0;

void FreeWrapped(void*, void* hint) {
  wrapped_count.fetch_sub(1, std::memory_order_acq_rel);
  auto* released = static_cast<std::function<void()>*>(hint);
  (*released)();
  delete released;
}

absl::Status Set(Socket& socket, int option, int value) {
  if (zmq_setsockopt(socket.get(), option, &value, sizeof value) == 0) return absl::OkStatus();
  return ZmqError(absl::StrCat("zmq_setsockopt ", option));
}

// libzmq allocates every incoming chunk with malloc. By default glibc gives each back to the kernel
// and pays for fresh pages every time, at about the cost of receiving them. Process-wide.
void KeepFreedChunks() {
  static const bool done = [] {
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
    return true;
  }();
  (void)done;
}

}  // namespace

absl::Status ZmqError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", zmq_strerror(zmq_errno())));
}

Message Message::Of(absl::string_view text) {
  Message message;
  ATOLL_CHECK(zmq_msg_init_size(&message.msg_, text.size()) == 0);
  if (!text.empty()) std::memcpy(zmq_msg_data(&message.msg_), text.data(), text.size());
  return message;
}

Message Message::Wrap(std::span<const std::byte> bytes, std::function<void()> released) {
  Message message;
  auto* hint = new std::function<void()>(std::move(released));
  wrapped_count.fetch_add(1, std::memory_order_acq_rel);
  ATOLL_CHECK(zmq_msg_init_data(&message.msg_, const_cast<std::byte*>(bytes.data()), bytes.size(),
                                FreeWrapped, hint) == 0);
  return message;
}

SendOutcome Socket::Send(std::span<Message> parts) {
  idle_ = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const int flags = ZMQ_DONTWAIT | (i + 1 < parts.size() ? ZMQ_SNDMORE : 0);
    int result;
    do {
      result = zmq_msg_send(parts[i].get(), socket_, flags);
    } while (result < 0 && zmq_errno() == EINTR);
    if (result >= 0) continue;
    // libzmq refuses a message at its first part or takes all of it.
    return zmq_errno() == EHOSTUNREACH ? SendOutcome::kUnreachable : SendOutcome::kFull;
  }
  return SendOutcome::kSent;
}

bool Socket::Receive(std::vector<Message>* parts, size_t parts_max) {
  parts->clear();
  if (idle_) return false;
  bool more = true;
  while (more) {
    Message part;
    int result;
    do {
      result = zmq_msg_recv(part.get(), socket_, ZMQ_DONTWAIT);
    } while (result < 0 && zmq_errno() == EINTR);
    if (result < 0) {
      idle_ = polled_;
      return false;
    }
    more = zmq_msg_more(part.get()) != 0;
    if (parts->size() <= parts_max) parts->push_back(std::move(part));
  }
  return true;
}

// The descriptor is readable from when libzmq's threads have sent the socket commands until a call
// on the socket has processed them.
int Socket::descriptor() const {
  int descriptor = -1;
  size_t size = sizeof descriptor;
  ATOLL_CHECK(zmq_getsockopt(socket_, ZMQ_FD, &descriptor, &size) == 0);
  return descriptor;
}

bool Socket::Poll(std::span<Socket* const> sockets, int descriptor, int timeout_ms) {
  std::vector<pollfd> items = {{descriptor, POLLIN, 0}};
  for (Socket* socket : sockets) {
    socket->polled_ = true;
    if (!socket->idle_) timeout_ms = 0;
    items.push_back({socket->descriptor(), POLLIN, 0});
  }
  if (poll(items.data(), items.size(), timeout_ms) < 0) return true;  // interrupted
  for (size_t i = 0; i < sockets.size(); ++i) {
    if (items[i + 1].revents != 0) sockets[i]->idle_ = false;
  }
  return items[0].revents != 0;
}

void Socket::Close() {
  if (socket_ != nullptr) zmq_close(socket_);
  socket_ = nullptr;
}

absl::StatusOr<std::unique_ptr<ZmqContext>> ZmqContext::Create(int io_threads) {
  KeepFreedChunks();
  void* context = zmq_ctx_new();
  if (context == nullptr) return ZmqError("zmq_ctx_new");
  zmq_ctx_set(context, ZMQ_IO_THREADS, io_threads);
  zmq_ctx_set(context, ZMQ_MAX_SOCKETS, 4096);  // two a server connection, and the monitors' pairs
  zmq_ctx_set(context, ZMQ_BLOCKY, 0);
  return std::unique_ptr<ZmqContext>(new ZmqContext(context));
}

ZmqContext::~ZmqContext() { zmq_ctx_term(context_); }

absl::StatusOr<Socket> ZmqContext::MakeTensorSocket(int type) {
  Socket socket(zmq_socket(context_, type));
  if (socket.get() == nullptr) return ZmqError("zmq_socket");
  for (const IntOption& limit : kTensorSocketLimits) {
    ATOLL_RETURN_IF_ERROR(Set(socket, limit.option, limit.value));
  }
  // A frame of more bytes closes the connection, before authentication too.
  const int64_t frame_bytes_max = kChunkBytesMax;
  if (zmq_setsockopt(socket.get(), ZMQ_MAXMSGSIZE, &frame_bytes_max, sizeof frame_bytes_max) != 0) {
    return ZmqError("ZMQ_MAXMSGSIZE");
  }
  if (type == ZMQ_ROUTER) {
    // Sending to a disconnected peer is an error, not a silent loss; and no client can take over
    // another's connection by choosing its name.
    ATOLL_RETURN_IF_ERROR(Set(socket, ZMQ_ROUTER_MANDATORY, 1));
    ATOLL_RETURN_IF_ERROR(Set(socket, ZMQ_ROUTER_HANDOVER, 0));
  }
  return socket;
}

absl::StatusOr<Socket> ZmqContext::MakeInprocSocket() {
  Socket socket(zmq_socket(context_, ZMQ_PAIR));
  if (socket.get() == nullptr) return ZmqError("zmq_socket");
  ATOLL_RETURN_IF_ERROR(Set(socket, ZMQ_LINGER, 0));
  return socket;
}

TaskQueue::TaskQueue()
    : descriptor_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), error_(descriptor_ < 0 ? errno : 0) {}

TaskQueue::~TaskQueue() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status TaskQueue::Check() const {
  return error_ == 0 ? absl::OkStatus() : absl::ErrnoToStatus(error_, "eventfd");
}

void TaskQueue::Post(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  if (tasks_.size() == 1) Wake();
}

void TaskQueue::Wake() {
  const uint64_t one = 1;
  ATOLL_CHECK(write(descriptor_, &one, sizeof one) == sizeof one);
}

void TaskQueue::RunAll() {
  std::vector<std::function<void()>> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
    uint64_t count;  // nothing to read when no thread woke us
    if (read(descriptor_, &count, sizeof count) < 0) ATOLL_CHECK(errno == EAGAIN);
  }
  for (std::function<void()>& task : tasks) task();
}

}  // namespace atl

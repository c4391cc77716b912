#include "common/http/request_stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace atl {
namespace {

constexpr auto kWriteLimit = std::chrono::seconds(10);
constexpr size_t kWriteBytesPerSecond = size_t{64} << 10;  // the least that a reader takes
// Around the body: sizes of its chunks.
constexpr size_t kFramingBytes = size_t{64} << 10;

}  // namespace

bool RequestBudget::Take(const char* bytes, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    if (ends_ >= 2) {
      body_bytes_ += size - i;
      return body_bytes_ <= kMaxBodyBytes + kFramingBytes;
    }
    if (bytes[i] != '\r') ends_ = bytes[i] == '\n' ? ends_ + 1 : 0;
    if (++header_bytes_ > kMaxHeaderBytes) return false;
  }
  return true;
}

ssize_t MemoryStream::read(char* to, size_t size) {
  const size_t taken = left_.copy(to, size);
  left_.remove_prefix(taken);
  return budget_.Take(to, taken) ? static_cast<ssize_t>(taken) : -1;
}

ssize_t MemoryStream::write(const char* from, size_t size) {
  sent_.append(from, size);
  return static_cast<ssize_t>(size);
}

void MemoryStream::Name(std::string* ip, int* port) {
  *ip = "127.0.0.1";
  *port = 0;
}

ConnectionStream::ConnectionStream(int connection, std::string peer)
    : connection_(connection), peer_(std::move(peer)) {}

ConnectionStream::~ConnectionStream() {
  if (ssl_ == nullptr) return;
  SSL_shutdown(ssl_);
  SSL_free(ssl_);
  ERR_clear_error();
}

bool ConnectionStream::Wait(short events, Clock::time_point deadline) const {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd polled{connection_, events, 0};
    const int ready = poll(&polled, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (left <= 0) return false;
  }
}

bool ConnectionStream::Retry(int result, Clock::time_point deadline) {
  const int error = SSL_get_error(ssl_, result);
  ERR_clear_error();
  if (error == SSL_ERROR_WANT_READ) return Wait(POLLIN, deadline);
  return error == SSL_ERROR_WANT_WRITE && Wait(POLLOUT, deadline);
}

bool ConnectionStream::Encrypt(SSL_CTX* context, Clock::time_point deadline) {
  ssl_ = SSL_new(context);
  if (ssl_ == nullptr || SSL_set_fd(ssl_, connection_) != 1) return false;
  while (true) {
    const int result = SSL_accept(ssl_);
    if (result == 1) return true;
    if (!Retry(result, deadline)) return false;
  }
}

bool ConnectionStream::AwaitRequest(Clock::time_point deadline) {
  if (begin_ < end_ || (ssl_ != nullptr && SSL_pending(ssl_) > 0)) return true;
  return Wait(POLLIN, deadline);
}

void ConnectionStream::BeginRequest(Clock::time_point deadline) {
  deadline_ = deadline;
  budget_.Begin();
}

ssize_t ConnectionStream::ReadSome(char* to, size_t size) {
  while (Clock::now() < deadline_) {
    if (ssl_ != nullptr) {
      const int got = SSL_read(ssl_, to, static_cast<int>(size));
      if (got > 0) return got;
      if (!Retry(got, deadline_)) return -1;
      continue;
    }
    const ssize_t got = recv(connection_, to, size, 0);
    if (got >= 0) return got;
    if (errno == EINTR) continue;
    if (errno != EAGAIN || !Wait(POLLIN, deadline_)) return -1;
  }
  return -1;
}

ssize_t ConnectionStream::read(char* to, size_t size) {
  if (begin_ == end_) {
    const ssize_t got = ReadSome(buffer_.data(), buffer_.size());
    if (got <= 0) return got;
    begin_ = 0;
    end_ = static_cast<size_t>(got);
  }
  const size_t taken = std::min(size, end_ - begin_);
  std::memcpy(to, buffer_.data() + begin_, taken);
  begin_ += taken;
  return budget_.Take(to, taken) ? static_cast<ssize_t>(taken) : -1;
}

ssize_t ConnectionStream::write(const char* from, size_t size) {
  const auto deadline =
      Clock::now() + kWriteLimit + std::chrono::seconds(size / kWriteBytesPerSecond);
  size_t done = 0;
  while (done < size) {
    if (Clock::now() >= deadline) return -1;
    if (ssl_ != nullptr) {
      const size_t most = std::min(size - done, size_t{1} << 20);
      const int sent = SSL_write(ssl_, from + done, static_cast<int>(most));
      if (sent > 0) {
        done += static_cast<size_t>(sent);
      } else if (!Retry(sent, deadline)) {
        return -1;
      }
      continue;
    }
    const ssize_t sent = send(connection_, from + done, size - done, MSG_NOSIGNAL);
    if (sent >= 0) {
      done += static_cast<size_t>(sent);
    } else if (errno != EINTR && (errno != EAGAIN || !Wait(POLLOUT, deadline))) {
      return -1;
    }
  }
  return static_cast<ssize_t>(size);
}

bool ConnectionStream::is_readable() const { return begin_ < end_ || Wait(POLLIN, Clock::now()); }

// And still open: an end of the other side shows here only.
bool ConnectionStream::is_writable() const {
  if (!Wait(POLLOUT, Clock::now() + kWriteLimit)) return false;
  char byte;
  const ssize_t got = recv(connection_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got > 0 || (got < 0 && errno == EAGAIN);
}

void ConnectionStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip = peer_;
  port = 0;
}

void ConnectionStream::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

}  // namespace atl

// The bytes of one HTTP connection, with or without TLS, as cpp-httplib reads them: each request
// has a deadline and a limit on its bytes, whatever it consists of.

#ifndef ATOLL_COMMON_HTTP_REQUEST_STREAM_H_
#define ATOLL_COMMON_HTTP_REQUEST_STREAM_H_

#include <httplib.h>

#include <array>
#include <chrono>
#include <string>

#include "absl/strings/string_view.h"

namespace atl {

inline constexpr size_t kMaxHeaderBytes = size_t{32} << 10;  // of a request's line and headers
inline constexpr size_t kMaxBodyBytes = size_t{1} << 20;

// Counts what a request has brought; knows where its headers end.
class RequestBudget {
 public:
  void Begin() { *this = RequestBudget(); }
  // False: the request is too long.
  bool Take(const char* bytes, size_t size);

 private:
  size_t header_bytes_ = 0, body_bytes_ = 0;
  int ends_ = 0;  // line ends one after the other, without '\r'
};

// A connection in memory, for tests of what parses requests.
class MemoryStream : public httplib::Stream {
 public:
  explicit MemoryStream(absl::string_view received) : left_(received) {}
  bool is_readable() const override { return !left_.empty(); }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override { Name(&ip, &port); }
  void get_local_ip_and_port(std::string& ip, int& port) const override { Name(&ip, &port); }
  socket_t socket() const override { return INVALID_SOCKET; }
  const std::string& sent() const { return sent_; }

 private:
  static void Name(std::string* ip, int* port);

  absl::string_view left_;
  RequestBudget budget_;
  std::string sent_;
};

// Over a descriptor that does not block. One thread; the descriptor stays the caller's.
class ConnectionStream : public httplib::Stream {
 public:
  using Clock = std::chrono::steady_clock;

  ConnectionStream(int connection, std::string peer);
  ~ConnectionStream() override;
  ConnectionStream(const ConnectionStream&) = delete;
  ConnectionStream& operator=(const ConnectionStream&) = delete;

  // The server's side of a TLS handshake; false: there is none by then.
  bool Encrypt(SSL_CTX* context, Clock::time_point deadline);
  // Waits until the next request begins; false: it has not begun by the deadline.
  bool AwaitRequest(Clock::time_point deadline);
  // Begins a request: all that is read until the next call belongs to it and is due by the
  // deadline.
  void BeginRequest(Clock::time_point deadline);
  SSL* ssl() const { return ssl_; }

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* to, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  // httplib only refuses the numbers that select() could not take.
  socket_t socket() const override { return INVALID_SOCKET; }

 private:
  bool Wait(short events, Clock::time_point deadline) const;
  // Returns whether to call again after this result of an SSL call; waits before it returns true.
  bool Retry(int result, Clock::time_point deadline);
  ssize_t ReadSome(char* to, size_t size);

  const int connection_;
  const std::string peer_;
  SSL* ssl_ = nullptr;
  Clock::time_point deadline_;
  RequestBudget budget_;
  std::array<char, 4096> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what was received and is not read yet
};

}  // namespace atl

#endif  // ATOLL_COMMON_HTTP_REQUEST_STREAM_H_

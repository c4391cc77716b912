// For tests: clients that send the beginning of a request, and no more.

#ifndef ATOLL_COMMON_HTTP_TESTING_HALF_SENT_H_
#define ATOLL_COMMON_HTTP_TESTING_HALF_SENT_H_

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace atl {

// A connection that sends the beginning of a request, and no more.
class HalfSent {
 public:
  HalfSent(int port, const std::string& bytes) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == std::ssize(bytes));
  }
  ~HalfSent() { close(socket_); }
  HalfSent(const HalfSent&) = delete;
  // Waits for bytes of the server; empty: it has ended the connection.
  std::string Read() const {
    char bytes[4096];
    const ssize_t count = recv(socket_, bytes, sizeof bytes, 0);
    return std::string(bytes, count > 0 ? static_cast<size_t>(count) : 0);
  }
  // Returns whether the server has closed the connection.
  bool Ended() const {
    char byte = 0;
    return recv(socket_, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
  }

  // False: the server has ended the connection.
  bool Send(const std::string& bytes) {
    char byte;
    if (recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) return false;
    return send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == std::ssize(bytes);
  }

 private:
  const int socket_;
};

// Sends half requests to a port of this machine. Half of them send nothing at all; the server has
// accepted all.
inline std::vector<std::unique_ptr<HalfSent>> HalfSentRequests(int port, int count) {
  std::vector<std::unique_ptr<HalfSent>> connections;
  for (int i = 0; i < count; ++i) {
    connections.push_back(
        std::make_unique<HalfSent>(port, i % 2 == 0 ? "GET /healthz HTTP/1.1\r\nHost: l" : ""));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  return connections;
}

// Returns whether `get` returns true while 80 half-sent requests to each of `ports` are open. Where
// the machine is slow, the server may end them all before: then it is tried again.
template <class Get>
bool AnsweredBesideHalfSent(const std::vector<int>& ports, const Get& get) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    std::vector<std::unique_ptr<HalfSent>> open;
    for (const int port : ports) {
      for (auto& connection : HalfSentRequests(port, 80)) open.push_back(std::move(connection));
    }
    if (!get()) return false;
    if (std::any_of(open.begin(), open.end(), [](const auto& one) { return !one->Ended(); }))
      return true;
  }
  return false;
}

}  // namespace atl

#endif  // ATOLL_COMMON_HTTP_TESTING_HALF_SENT_H_

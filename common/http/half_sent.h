// For tests: clients that send the beginning of a request, and no more.

#ifndef ATOLL_COMMON_HTTP_HALF_SENT_H_
#define ATOLL_COMMON_HTTP_HALF_SENT_H_

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

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

  // False: the server has ended the connection.
  bool Send(const std::string& bytes) {
    char byte;
    if (recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) return false;
    return send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == std::ssize(bytes);
  }

 private:
  const int socket_;
};

// To a port of this machine. Half of them send nothing at all; the server has accepted all.
inline std::vector<std::unique_ptr<HalfSent>> HalfSentRequests(int port, int count) {
  std::vector<std::unique_ptr<HalfSent>> connections;
  for (int i = 0; i < count; ++i) {
    connections.push_back(
        std::make_unique<HalfSent>(port, i % 2 == 0 ? "GET /healthz HTTP/1.1\r\nHost: l" : ""));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  return connections;
}

}  // namespace atl

#endif  // ATOLL_COMMON_HTTP_HALF_SENT_H_

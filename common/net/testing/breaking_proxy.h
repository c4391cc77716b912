// For tests: stands between two ends of TCP connections, and breaks them on demand.

#ifndef ATOLL_COMMON_NET_TESTING_BREAKING_PROXY_H_
#define ATOLL_COMMON_NET_TESTING_BREAKING_PROXY_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/check.h"

namespace atl {

// Forwards to a tcp endpoint on 127.0.0.1.
class BreakingProxy {
 public:
  // `largest`: what comes at once and has more bytes is lost, with all that follows it, as on a
  // path whose packets are smaller than its ends believe.
  explicit BreakingProxy(const std::string& endpoint, ssize_t largest = 1 << 30)
      : largest_(largest),
        to_port_(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))),
        listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    ATOLL_CHECK(listener_ >= 0 && bind(listener_, any, size) == 0 && listen(listener_, 16) == 0 &&
                getsockname(listener_, any, &size) == 0);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~BreakingProxy() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    Break();
    for (std::thread& forwarder : forwarders_) forwarder.join();
    for (const int connection : connections_) close(connection);
    close(listener_);
  }

  std::string endpoint() const { return "tcp://127.0.0.1:" + std::to_string(port_); }

  // Counts the connections that have brought more than so many bytes to the endpoint.
  int CountBusy(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(std::count_if(brought_.begin(), brought_.end(),
                                          [&](const auto& each) { return *each > bytes; }));
  }
  // Ends all connections that there are; later ones are forwarded.
  void Break() {
    const std::lock_guard lock(mutex_);
    for (const int connection : connections_) shutdown(connection, SHUT_RDWR);
  }

 private:
  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }

  void Accept() {
    while (true) {
      const int from = accept(listener_, nullptr, nullptr);
      if (from < 0) return;
      const int to = socket(AF_INET, SOCK_STREAM, 0);
      const sockaddr_in address = Loopback(to_port_);
      const std::lock_guard lock(mutex_);
      connections_.insert(connections_.end(), {from, to});
      if (connect(to, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        shutdown(from, SHUT_RDWR);
        continue;
      }
      const auto brought = brought_.emplace_back(std::make_shared<std::atomic<int64_t>>(0));
      forwarders_.emplace_back([this, from, to, brought] { Forward(from, to, *brought); });
      forwarders_.emplace_back([this, from, to] {
        std::atomic<int64_t> unused = 0;
        Forward(to, from, unused);
      });
    }
  }

  void Forward(int from, int to, std::atomic<int64_t>& bytes_forwarded) const {
    std::array<char, 16384> bytes;
    bool lost = false;
    for (ssize_t size; (size = read(from, bytes.data(), bytes.size())) > 0;) {
      lost = lost || size > largest_;
      for (ssize_t done = 0; done < size && !lost;) {
        const ssize_t sent = send(to, bytes.data() + done, size - done, MSG_NOSIGNAL);
        if (sent <= 0) break;
        done += sent;
        bytes_forwarded += sent;
      }
    }
    shutdown(to, SHUT_RDWR);
  }

  const ssize_t largest_;
  const int to_port_;
  const int listener_;
  int port_ = 0;
  std::mutex mutex_;
  std::vector<int> connections_;  // guarded by mutex_, closed at the end
  std::vector<std::shared_ptr<std::atomic<int64_t>>> brought_;  // guarded by mutex_
  std::vector<std::thread> forwarders_;                         // the acceptor's
  std::thread acceptor_;                                        // last: it uses all of the above
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TESTING_BREAKING_PROXY_H_

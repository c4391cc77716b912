// Raw TCP: writes of 1 MB, reads straight into the destination, one answer at the end of each half.

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "bench/dataplane/peer.h"
#include "common/check.h"

namespace atl::bench {
namespace {

// False when the other end has closed.
bool ReadAll(int fd, char* data, int64_t size) {
  while (size > 0) {
    const ssize_t n = read(fd, data, std::min(size, kChunkBytes));
    if (n <= 0) return false;
    data += n;
    size -= n;
  }
  return true;
}

void WriteAll(int fd, const char* data, int64_t size) {
  while (size > 0) {
    const ssize_t n = write(fd, data, std::min(size, kChunkBytes));
    ATOLL_CHECK(n > 0);
    data += n;
    size -= n;
  }
}

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

int MakeSocket() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

class TcpServer : public Server {
 public:
  TcpServer() : listener_(MakeSocket()), data_(kTotalBytes, 1) {
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof address;
    ATOLL_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    ATOLL_CHECK(listen(listener_, 1) == 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    std::thread([this] { Serve(); }).detach();
  }
  int port() const override { return port_; }

 private:
  void Serve() {
    const int fd = accept(listener_, nullptr, nullptr);
    int64_t bytes;
    while (ReadAll(fd, reinterpret_cast<char*>(&bytes), sizeof bytes)) {
      if (!ReadAll(fd, data_.data(), bytes)) return;
      WriteAll(fd, "k", 1);
      char go;
      if (!ReadAll(fd, &go, 1)) return;
      WriteAll(fd, data_.data(), bytes);
    }
  }

  int listener_;
  int port_;
  std::vector<char> data_;
};

class TcpClient : public Client {
 public:
  explicit TcpClient(int port) : fd_(MakeSocket()), data_(kTotalBytes, 2) {
    sockaddr_in address = Loopback(port);
    ATOLL_CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  }
  ~TcpClient() override { close(fd_); }

  void Round(const Load& load) override {
    const int64_t bytes = load.tensor_bytes() * load.count;
    WriteAll(fd_, reinterpret_cast<const char*>(&bytes), sizeof bytes);
    WriteAll(fd_, data_.data(), bytes);
    char answer;
    ATOLL_CHECK(ReadAll(fd_, &answer, 1));
    WriteAll(fd_, "g", 1);
    ATOLL_CHECK(ReadAll(fd_, data_.data(), bytes));
  }

 private:
  int fd_;
  std::vector<char> data_;
};

}  // namespace

std::unique_ptr<Server> MakeTcpServer() { return std::make_unique<TcpServer>(); }
std::unique_ptr<Client> MakeTcpClient(int port) { return std::make_unique<TcpClient>(port); }

}  // namespace atl::bench

#include "common/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <string>

namespace atl {
namespace {

// The service manager's end of a notification socket.
class NotifySocket {
 public:
  NotifySocket() : path_("/tmp/atoll-notify-" + std::to_string(getpid())) {
    fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
    unlink(path_.c_str());
    REQUIRE(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    setenv("NOTIFY_SOCKET", path_.c_str(), 1);
  }
  ~NotifySocket() {
    close(fd_);
    unlink(path_.c_str());
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
  }

  // The next notification; empty: none.
  std::string Next() {
    char text[256];
    const ssize_t size = recv(fd_, text, sizeof(text), 0);
    return size < 0 ? "" : std::string(text, static_cast<size_t>(size));
  }

 private:
  const std::string path_;
  int fd_ = -1;
};

TEST_CASE("start_and_stop_are_reported") {
  NotifySocket systemd;
  ServiceManager service;
  service.NotifyReady();
  CHECK(systemd.Next() == "READY=1");
  service.NotifyStopping();
  CHECK(systemd.Next() == "STOPPING=1");
}

TEST_CASE("without_a_watchdog_no_keepalive_is_sent") {
  NotifySocket systemd;
  ServiceManager service;
  CHECK(service.KeepAlive(Instant{}) == kNever);
  CHECK(systemd.Next().empty());
}

TEST_CASE("the_watchdog_is_notified_four_times_in_its_period") {
  NotifySocket systemd;
  setenv("WATCHDOG_USEC", "40000000", 1);
  ServiceManager service;
  Instant now = Instant{} + std::chrono::seconds(100);
  CHECK(service.KeepAlive(now) == now + std::chrono::seconds(10));
  CHECK(systemd.Next() == "WATCHDOG=1");
  CHECK(service.KeepAlive(now + std::chrono::seconds(4)) == now + std::chrono::seconds(10));
  CHECK(systemd.Next().empty());
  now += std::chrono::seconds(10);
  CHECK(service.KeepAlive(now) == now + std::chrono::seconds(10));
  CHECK(systemd.Next() == "WATCHDOG=1");
}

}  // namespace
}  // namespace atl

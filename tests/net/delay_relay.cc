// A link with a delay: joins two TUN devices and carries every packet from one to the other a fixed
// time after it came.
//
//   delay_relay FIRST SECOND DELAY_US
//
// Creates both devices in its own network namespace, prints "ready", and carries until its standard
// input ends. The devices may be moved to other namespaces while it runs. Rates are the business of
// a queueing discipline on the devices (tbf adds no fixed delay, and not every kernel has netem).
// Packets beyond 64 MiB under way in one direction are dropped, as a real queue would.

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBytesUnderWayMax = size_t{64} << 20;
constexpr int64_t kDelayUsMax = 10'000'000;
constexpr int kPacketsAtOnce = 64;  // of one direction, before the other has its turn

// Opens a TUN device of this name; -1 with a message if it cannot.
int OpenTun(std::string_view name) {
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    std::fprintf(stderr, "delay_relay: /dev/net/tun: %s\n", std::strerror(errno));
    return -1;
  }
  ifreq request{};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (ioctl(fd, TUNSETIFF, &request) < 0) {
    std::fprintf(stderr, "delay_relay: device %s: %s\n", request.ifr_name, std::strerror(errno));
    close(fd);
    return -1;
  }
  return fd;
}

// One direction: what came out of `from` and goes into `to` when its time has come.
class Direction {
 public:
  Direction(int from, int to, Clock::duration delay) : from_(from), to_(to), delay_(delay) {}

  void Take(Clock::time_point now) {
    std::array<char, 65536> buffer;
    for (int i = 0; i < kPacketsAtOnce; ++i) {
      const ssize_t size = read(from_, buffer.data(), buffer.size());
      if (size <= 0) return;
      if (bytes_ + static_cast<size_t>(size) > kBytesUnderWayMax) continue;
      bytes_ += static_cast<size_t>(size);
      packets_.push_back({now + delay_, {buffer.data(), buffer.data() + size}});
    }
  }

  // A packet that the device does not take (it is down, or its queue is full) is lost.
  void Deliver(Clock::time_point now) {
    while (!packets_.empty() && packets_.front().due <= now) {
      const std::vector<char>& bytes = packets_.front().bytes;
      [[maybe_unused]] const ssize_t written = write(to_, bytes.data(), bytes.size());
      bytes_ -= bytes.size();
      packets_.pop_front();
    }
  }

  std::optional<Clock::time_point> next() const {
    if (packets_.empty()) return std::nullopt;
    return packets_.front().due;
  }

 private:
  struct Packet {
    Clock::time_point due;
    std::vector<char> bytes;
  };
  int from_;
  int to_;
  Clock::duration delay_;
  std::deque<Packet> packets_;
  size_t bytes_ = 0;
};

void Carry(int first, int second, Clock::duration delay) {
  Direction directions[] = {{first, second, delay}, {second, first, delay}};
  pollfd watched[] = {{first, POLLIN, 0}, {second, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
  while (true) {
    std::optional<Clock::time_point> due = directions[0].next();
    if (const auto other = directions[1].next(); other && (!due || *other < *due)) due = other;
    timespec wait{3600, 0};
    if (due) {
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(*due - Clock::now());
      const int64_t ns = std::max<int64_t>(0, left.count());
      wait = {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    }
    if (ppoll(watched, 3, &wait, nullptr) < 0 && errno != EINTR) return;
    if ((watched[2].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
      char input[256];
      if (read(STDIN_FILENO, input, sizeof input) <= 0) return;
    }
    const Clock::time_point now = Clock::now();
    for (int i = 0; i < 2; ++i) {
      directions[i].Deliver(now);
      if ((watched[i].revents & POLLIN) != 0) directions[i].Take(now);
    }
  }
}

std::optional<int64_t> ParseDelayUs(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (value < 0 || value > kDelayUsMax) return std::nullopt;
  return value;
}

bool GoodName(std::string_view name) { return !name.empty() && name.size() < IFNAMSIZ; }

}  // namespace

int main(int argc, char** argv) {
  const std::optional<int64_t> delay_us = argc == 4 ? ParseDelayUs(argv[3]) : std::nullopt;
  if (!delay_us || !GoodName(argv[1]) || !GoodName(argv[2])) {
    std::fprintf(stderr,
                 "usage: delay_relay FIRST SECOND DELAY_US\n"
                 "names of two devices to make, of 1 to 15 letters, and 0 to %lld microseconds\n",
                 static_cast<long long>(kDelayUsMax));
    return 2;
  }
  const int first = OpenTun(argv[1]);
  const int second = first < 0 ? -1 : OpenTun(argv[2]);
  if (second < 0) return 1;
  std::printf("ready\n");
  std::fflush(stdout);
  Carry(first, second, std::chrono::microseconds(*delay_us));
  return 0;
}

// Both directions of a connection that passes through this process, from one descriptor to another.

#ifndef ATOLL_COMMON_NET_PUMP_H_
#define ATOLL_COMMON_NET_PUMP_H_

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/time.h"

namespace atl {

class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  const int value_;
};

// Neither descriptor blocks; they outlive the pump. What one end is slow to take is left with the
// other one, but for kBufferBytes.
class Pump {
 public:
  static constexpr size_t kBufferBytes = size_t{128} << 10;  // of each direction
  static constexpr Duration kEndPause =
      std::chrono::seconds(10);  // from one end's close to the other's

  Pump(int near, int far, Instant now)
      : near_(near), far_(far), forth_(near, far), back_(far, near), moved_at_(now) {}

  // Return what to wait for, in poll's words; 0: nothing, not even a hang-up, which would be
  // reported again and again.
  short near_events() const { return Events(forth_, back_); }
  short far_events() const { return Events(back_, forth_); }

  // Passes at most a buffer on, each way. False: both ends have closed, one has failed, or one has
  // closed and nothing has passed for kEndPause.
  bool Turn(bool near_readable, bool far_readable, Instant now);

  int64_t bytes() const { return forth_.bytes + back_.bytes; }  // that have passed
  // One end has closed; Turn is due even though nothing comes.
  bool ending() const { return forth_.ended || back_.ended; }

 private:
  struct Flow {
    Flow(int from_end, int to_end) : from(from_end), to(to_end) {}
    bool WantsToRead() const { return !ended && end < kBufferBytes; }
    bool WantsToWrite() const { return begin < end; }
    bool done() const { return ended && !WantsToWrite(); }
    bool Turn(bool readable);  // false: the connection has failed

    const int from, to;
    const std::unique_ptr<char[]> buffer = std::make_unique_for_overwrite<char[]>(kBufferBytes);
    size_t begin = 0, end = 0;
    int64_t moves = 0;  // so often something has passed
    int64_t bytes = 0;
    bool ended = false, passed_on = false;
  };
  static short Events(const Flow& in, const Flow& out);

  const int near_, far_;
  Flow forth_, back_;
  Instant moved_at_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_PUMP_H_

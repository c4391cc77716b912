// Views of a job or of the cluster, made and encoded once for all streams that watch it. For
// client_service.cc only.

#ifndef ATOLL_COORDINATOR_SHARED_VIEW_H_
#define ATOLL_COORDINATOR_SHARED_VIEW_H_

#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "common/event_loop.h"
#include "common/time.h"

namespace atl {

// The bytes of one message, which is replaced when it is old. Loop's thread only.
class SharedView {
 public:
  // `clock` measures how long it takes to make one.
  explicit SharedView(std::function<Instant()> clock = SteadyNow) : clock_(std::move(clock)) {}

  // Takes what `make()` returns, a message's bytes, unless what is there is fresh.
  template <class Make>
  void Refresh(Instant now, Make make) {
    if (number_ > 0 && now < fresh_until_) return;
    const Instant begin = clock_();
    const std::string bytes = make();
    const Instant end = clock_();
    fresh_until_ = end + std::max<Duration>(kFresh, kFreshFactor * (end - begin));
    if (number_ > 0 && bytes.size() == bytes_.size() &&
        std::memcmp(bytes.data(), bytes_.begin(), bytes.size()) == 0) {
      return;
    }
    bytes_ = grpc::Slice(bytes);
    ++number_;
  }

  // Returns the number of the message that is there; 0: none yet. Grows when the message has
  // changed.
  int64_t number() const { return number_; }
  // Copies share the memory.
  grpc::ByteBuffer bytes() const { return grpc::ByteBuffer(&bytes_, 1); }

 private:
  // Shorter than any stream's interval, so that a stream alone gets a new view every time.
  static constexpr Duration kFresh = std::chrono::milliseconds(50);
  // Times as long as it took to make: a sixtieth of the thread makes a view, however large.
  static constexpr int kFreshFactor = 60;

  const std::function<Instant()> clock_;
  grpc::Slice bytes_;
  int64_t number_ = 0;
  Instant fresh_until_{};
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_SHARED_VIEW_H_

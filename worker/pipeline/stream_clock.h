// Notes when a device passes points of one of its streams, to be read once it has, without a wait
// for it. Used by one thread at a time.

#ifndef ATOLL_WORKER_PIPELINE_STREAM_CLOCK_H_
#define ATOLL_WORKER_PIPELINE_STREAM_CLOCK_H_

#include <memory>
#include <vector>

#include "common/event_loop.h"
#include "kernels/backend.h"

namespace atl::worker {

class StreamClock {
 public:
  // Both outlive it.
  StreamClock(Backend& backend, Stream& stream) : backend_(backend), stream_(stream) {}

  // Forgets all points. Times count from now, as if the device were idle: those of a device that
  // has still to do are all early by the same, until NewestPassed.
  absl::Status Start() {
    used_ = 0;
    begun_ = SteadyNow();
    return Mark().status();
  }
  // A point of the stream, here. REQUIRES: Start.
  absl::StatusOr<int> Mark() {
    if (used_ == std::ssize(points_)) {
      ATOLL_ASSIGN_OR_RETURN(std::unique_ptr<Event> made, backend_.NewTimedEvent());
      points_.push_back(std::move(made));
    }
    backend_.Record(stream_, *points_[static_cast<size_t>(used_)]);
    return used_++;
  }
  // The host has just waited for the newest point: times count from that.
  void NewestPassed() {
    begun_ = SteadyNow() - backend_.Elapsed(*points_[0], *points_[static_cast<size_t>(used_ - 1)]);
  }
  // REQUIRES: the device has passed the point.
  Instant At(int point) const {
    return begun_ + backend_.Elapsed(*points_[0], *points_[static_cast<size_t>(point)]);
  }

 private:
  Backend& backend_;
  Stream& stream_;
  std::vector<std::unique_ptr<Event>> points_;  // kept for the next start
  int used_ = 0;
  Instant begun_{};
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_STREAM_CLOCK_H_

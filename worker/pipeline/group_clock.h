// A tensor-parallel group whose all-reduces are timed: a device's own work in F and B lies between
// them.

#ifndef ATOLL_WORKER_PIPELINE_GROUP_CLOCK_H_
#define ATOLL_WORKER_PIPELINE_GROUP_CLOCK_H_

#include <string>
#include <utility>
#include <vector>

#include "kernels/communicator.h"
#include "worker/pipeline/stream_clock.h"

namespace atl::worker {

// Passes all-reduces on to `group`, which outlives it, and measures them. Used as that one is.
class GroupClock final : public Communicator {
 public:
  explicit GroupClock(Communicator* group) : group_(group) {}

  // How the following all-reduces are timed: by points of the device's stream, or where `clock` is
  // null by the host, which with `waits` waits for the stream before and after each.
  void Use(StreamClock* clock, bool waits) {
    clock_ = clock;
    waits_ = waits;
    points_.clear();
  }

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  absl::Status AllReduceSum(Backend& backend, Stream& stream, const Tensor& x) override {
    return Timed(backend, stream, [&] { return group_->AllReduceSum(backend, stream, x); });
  }
  absl::Status AllReduceMax(Backend& backend, Stream& stream, const Tensor& x) override {
    return Timed(backend, stream, [&] { return group_->AllReduceMax(backend, stream, x); });
  }
  void Abort(const std::string& reason) override { group_->Abort(reason); }

  // Returns the time that collectives have taken since the last call, as the host measured it.
  Duration Take() { return std::exchange(taken_, Duration(0)); }
  // Returns the points before and after each collective since the last call.
  std::vector<int> TakePoints() { return std::exchange(points_, {}); }

 private:
  template <typename Sum>
  absl::Status Timed(Backend& backend, Stream& stream, const Sum& sum) {
    if (clock_ != nullptr) {
      ATOLL_ASSIGN_OR_RETURN(points_.emplace_back(), clock_->Mark());
      ATOLL_RETURN_IF_ERROR(sum());
      ATOLL_ASSIGN_OR_RETURN(points_.emplace_back(), clock_->Mark());
      return absl::OkStatus();
    }
    if (waits_) ATOLL_RETURN_IF_ERROR(backend.Synchronize(stream));
    const Instant start = SteadyNow();
    ATOLL_RETURN_IF_ERROR(sum());
    if (waits_) ATOLL_RETURN_IF_ERROR(backend.Synchronize(stream));
    taken_ += SteadyNow() - start;
    return absl::OkStatus();
  }

  Communicator* const group_;
  StreamClock* clock_ = nullptr;
  bool waits_ = false;
  Duration taken_{0};
  std::vector<int> points_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_GROUP_CLOCK_H_

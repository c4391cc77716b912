// A tensor-parallel group whose all-reduces are timed: a device's own work in F and B lies between
// them.

#ifndef ATOLL_WORKER_PIPELINE_GROUP_CLOCK_H_
#define ATOLL_WORKER_PIPELINE_GROUP_CLOCK_H_

#include <string>
#include <utility>

#include "common/event_loop.h"
#include "common/time.h"
#include "kernels/communicator.h"

namespace atl::worker {

// Passes all-reduces on to `group`, which outlives it, and measures them. Used as that one is.
class GroupClock final : public Communicator {
 public:
  // `waits`: the stream works behind its host, so it is waited for before and after each
  // all-reduce.
  GroupClock(Communicator* group, bool waits) : group_(group), waits_(waits) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  absl::Status AllReduceSum(Backend& backend, Stream& stream, const Tensor& x) override {
    return Timed(backend, stream, [&] { return group_->AllReduceSum(backend, stream, x); });
  }
  absl::Status AllReduceMax(Backend& backend, Stream& stream, const Tensor& x) override {
    return Timed(backend, stream, [&] { return group_->AllReduceMax(backend, stream, x); });
  }
  void Abort(const std::string& reason) override { group_->Abort(reason); }

  // Returns the time that collectives have taken since the last call.
  Duration Take() { return std::exchange(taken_, Duration(0)); }

 private:
  template <typename Sum>
  absl::Status Timed(Backend& backend, Stream& stream, const Sum& sum) {
    if (waits_) ATOLL_RETURN_IF_ERROR(backend.Synchronize(stream));
    const Instant start = SteadyNow();
    ATOLL_RETURN_IF_ERROR(sum());
    if (waits_) ATOLL_RETURN_IF_ERROR(backend.Synchronize(stream));
    taken_ += SteadyNow() - start;
    return absl::OkStatus();
  }

  Communicator* const group_;
  const bool waits_;
  Duration taken_{0};
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_GROUP_CLOCK_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "common/event_loop.h"
#include "kernels/async_failure.h"
#include "kernels/cuda/nccl_api.h"

namespace atl {
namespace {

constexpr Duration kPoll = std::chrono::milliseconds(2);  // while joining
constexpr Duration kEnqueuePollInterval =
    std::chrono::microseconds(20);                          // while NCCL takes in a collective
constexpr Duration kWatch = std::chrono::milliseconds(50);  // between looks at a running group
constexpr size_t kPendingMax = 4096;  // collectives that the device has not come to yet

class NcclMember final : public Communicator {
 public:
  NcclMember(NcclApi& api, Backend& backend, NcclGroup group)
      : api_(api),
        backend_(backend),
        group_(std::move(group)),
        failure_(std::make_shared<AsyncFailure>()) {}

  ~NcclMember() override {
    {
      std::lock_guard lock(mutex_);
      ForgetDone();
      // Work that still waits gets no result, and its stream must report so.
      if (!pending_.empty()) {
        failure_->Keep(Named(absl::AbortedError("the communicator was destroyed")));
      }
      GiveUp();
    }
    {
      std::lock_guard waking(wake_mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (watch_.joinable()) watch_.join();
  }

  absl::Status Join() {
    absl::StatusOr<NcclApi::Member> begun = api_.Begin(backend_, group_);
    if (absl::IsInvalidArgument(begun.status())) return begun.status();
    if (!begun.ok()) return End(begun.status());
    member_ = *begun;
    const Instant deadline = SteadyNow() + group_.timeout;
    for (;;) {
      const absl::StatusOr<bool> is_enqueued = api_.IsEnqueued(member_);
      if (!is_enqueued.ok()) return End(is_enqueued.status());
      if (*is_enqueued) break;
      if (group_.given_up != nullptr && group_.given_up()) {
        return End(absl::AbortedError("the group is not in use any more"));
      }
      if (SteadyNow() > deadline) {
        return End(absl::DeadlineExceededError(
            absl::StrCat("not all ", group_.size, " members joined in time")));
      }
      std::this_thread::sleep_for(kPoll);
    }
    watch_ = std::thread([this] { Watch(); });
    return absl::OkStatus();
  }

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }

  absl::Status AllReduceSum(Backend& backend, Stream& stream, const Tensor& x) override {
    return Enqueue(backend, stream, x,
                   [&] { return api_.AllReduce(member_, backend, stream, x, /*sum=*/true); });
  }
  absl::Status AllReduceMax(Backend& backend, Stream& stream, const Tensor& x) override {
    return Enqueue(backend, stream, x,
                   [&] { return api_.AllReduce(member_, backend, stream, x, /*sum=*/false); });
  }
  absl::Status ReduceScatterSum(Backend& backend, Stream& stream, const Tensor& x,
                                const Cuts& cuts) override {
    return Enqueue(backend, stream, x,
                   [&] { return api_.ReduceScatter(member_, backend, stream, x, cuts); });
  }
  absl::Status AllGather(Backend& backend, Stream& stream, const Tensor& x, const Cuts& cuts,
                         const Routes&) override {
    return Enqueue(backend, stream, x,
                   [&] { return api_.AllGather(member_, backend, stream, x, cuts); });
  }
  absl::Status Send(Backend& backend, Stream& stream, const Tensor& x, int to) override {
    return Enqueue(backend, stream, x, [&] { return api_.Send(member_, backend, stream, x, to); });
  }
  absl::Status Receive(Backend& backend, Stream& stream, const Tensor& x, int from) override {
    return Enqueue(backend, stream, x,
                   [&] { return api_.Receive(member_, backend, stream, x, from); });
  }
  // On any thread, one that must not wait for NCCL too: what waits there is let go by the watch.
  void Abort(const std::string& reason) override {
    failure_->Keep(absl::AbortedError(reason));
    {
      std::lock_guard waking(wake_mutex_);
      aborting_ = true;
    }
    wake_.notify_all();
  }

 private:
  // A collective that was enqueued, and the event behind it.
  struct Pending {
    std::unique_ptr<Event> event;
    Instant deadline;
  };

  absl::Status Named(const absl::Status& status) const {
    return Annotate(
        status, absl::StrCat("rank ", group_.rank, " of ", group_.size, " in group ", group_.name));
  }
  absl::Status End(const absl::Status& status) {
    Fail(Named(status));
    return failure_->status();
  }

  // The first failure is kept, before anything that waits is let go.
  void Fail(const absl::Status& status) {
    failure_->Keep(status);
    std::lock_guard lock(mutex_);
    GiveUp();
  }
  // mutex_ is held.
  void GiveUp() {
    if (member_ != nullptr) api_.Abort(std::exchange(member_, nullptr));
  }

  template <typename Call>
  absl::Status Enqueue(Backend& backend, Stream& stream, const Tensor& x, const Call& call) {
    ATOLL_CHECK(x.contiguous(), "collectives work on contiguous tensors");
    ATOLL_RETURN_IF_ERROR(failure_->status());
    if (x.size() == 0) return absl::OkStatus();
    if (reporting_backends_.insert(&backend).second) {
      dynamic_cast<ReportsFailures&>(backend).AddFailureSource(failure_);
    }
    absl::Status enqueued;
    {
      std::lock_guard lock(mutex_);
      if (member_ == nullptr) return failure_->status();
      enqueued = EnqueueLocked(backend, stream, call);
    }
    if (!enqueued.ok()) Fail(Named(enqueued));
    return failure_->status();
  }

  template <typename Call>
  absl::Status EnqueueLocked(Backend& backend, Stream& stream, const Call& call) {
    if (pending_.size() >= kPendingMax) {
      return absl::ResourceExhaustedError("too many collectives are waiting");
    }
    ATOLL_RETURN_IF_ERROR(call());
    const Instant deadline = SteadyNow() + group_.timeout;
    for (;;) {
      ATOLL_ASSIGN_OR_RETURN(const bool is_enqueued, api_.IsEnqueued(member_));
      if (is_enqueued) break;
      if (aborting_) return failure_->status();
      if (SteadyNow() > deadline) return absl::DeadlineExceededError("a collective did not start");
      std::this_thread::sleep_for(kEnqueuePollInterval);
    }
    std::unique_ptr<Event> event;
    if (!idle_events_.empty()) {
      event = std::move(idle_events_.back());
      idle_events_.pop_back();
    } else {
      ATOLL_ASSIGN_OR_RETURN(event, backend.NewEvent());
    }
    backend.Record(stream, *event);
    pending_.push_back({std::move(event), deadline});
    return absl::OkStatus();
  }

  // mutex_ is held.
  void ForgetDone() {
    while (!pending_.empty() && backend_.Passed(*pending_.front().event)) {
      idle_events_.push_back(std::move(pending_.front().event));
      pending_.pop_front();
    }
  }

  // Until the end, or a failure: polls for errors of the other members, and the device for what is
  // done.
  void Watch() {
    for (;;) {
      {
        std::unique_lock waking(wake_mutex_);
        wake_.wait_for(waking, kWatch, [this] { return stop_ || aborting_; });
        if (stop_) return;
      }
      const absl::Status failed = aborting_ ? failure_->status() : Look();
      if (!failed.ok()) return Fail(Named(failed));
    }
  }
  absl::Status Look() {
    std::lock_guard lock(mutex_);
    if (member_ == nullptr) return failure_->status();
    ForgetDone();
    ATOLL_RETURN_IF_ERROR(api_.IsEnqueued(member_).status());
    if (pending_.empty() || SteadyNow() <= pending_.front().deadline) return absl::OkStatus();
    return absl::DeadlineExceededError("a collective was not done in time");
  }

  NcclApi& api_;
  Backend& backend_;
  const NcclGroup group_;
  const std::shared_ptr<AsyncFailure> failure_;
  std::set<const Backend*> reporting_backends_;  // whose Synchronize reports it

  std::mutex wake_mutex_;  // held for no call of NCCL's
  std::condition_variable wake_;
  std::atomic<bool> aborting_ = false;  // both written under wake_mutex_
  bool stop_ = false;

  std::mutex mutex_;                  // of everything below; perhaps held while NCCL is waited for
  NcclApi::Member member_ = nullptr;  // null before Join and after a failure
  std::deque<Pending> pending_;
  std::vector<std::unique_ptr<Event>> idle_events_;
  std::thread watch_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> JoinNcclBy(NcclApi& api, Backend& backend,
                                                         const NcclGroup& group) {
  ATOLL_CHECK(group.rank >= 0 && group.rank < group.size);
  auto member = std::make_unique<NcclMember>(api, backend, group);
  ATOLL_RETURN_IF_ERROR(member->Join());
  return member;
}

}  // namespace atl

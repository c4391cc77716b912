#include "kernels/cuda/nccl.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "common/event_loop.h"
#include "kernels/async_failure.h"
#include "kernels/cuda/cuda_backend.h"

namespace atl {
namespace {

constexpr Duration kPoll = std::chrono::milliseconds(2);    // while joining
constexpr Duration kWatch = std::chrono::milliseconds(50);  // between looks at a running group
constexpr size_t kPendingMax = 4096;  // collectives that the device has not come to yet

absl::Status ErrorOf(ncclResult_t result, absl::string_view what) {
  const std::string text = absl::StrCat(what, ": ", ncclGetErrorString(result));
  return result == ncclRemoteError || result == ncclSystemError ? absl::UnavailableError(text)
                                                                : absl::InternalError(text);
}

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kBfloat16:
      return ncclBfloat16;
    case DType::kInt32:
      break;
  }
  ATOLL_CHECK(false, "collectives reduce reals");
  __builtin_unreachable();
}

class NcclMember final : public Communicator {
 public:
  NcclMember(cuda::DeviceBackend& backend, NcclGroup group)
      : backend_(backend), group_(std::move(group)), failure_(std::make_shared<AsyncFailure>()) {}

  ~NcclMember() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      ForgetDone();
      // What still waits gets no result, and its stream must say so.
      if (!pending_.empty()) {
        failure_->Keep(Named(absl::AbortedError("the communicator was destroyed")));
      }
      if (communicator_ != nullptr) ncclCommAbort(std::exchange(communicator_, nullptr));
    }
    wake_.notify_all();
    if (watch_.joinable()) watch_.join();
    for (Pending& pending : pending_) cudaEventDestroy(pending.event);
    for (cudaEvent_t event : idle_events_) cudaEventDestroy(event);
  }

  absl::Status Join() {
    ncclUniqueId id;
    if (group_.id.size() != sizeof(id.internal)) {
      return absl::InvalidArgumentError(
          absl::StrCat("an NCCL id of ", group_.id.size(), " bytes; it has ", sizeof(id.internal)));
    }
    std::memcpy(id.internal, group_.id.data(), sizeof(id.internal));
    if (cudaSetDevice(backend_.device_index()) != cudaSuccess) {
      return absl::InternalError("cudaSetDevice failed");
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t result =
        ncclCommInitRankConfig(&communicator_, group_.size, id, group_.rank, &config);
    const Instant deadline = SteadyNow() + group_.timeout;
    while (result == ncclInProgress || result == ncclSuccess) {
      ncclResult_t state = ncclSuccess;
      result = ncclCommGetAsyncError(communicator_, &state);
      if (result == ncclSuccess) result = state;
      if (result == ncclSuccess) {
        watch_ = std::thread([this] { Watch(); });
        return absl::OkStatus();
      }
      if (result == ncclInProgress && SteadyNow() > deadline) {
        const absl::Status late = absl::DeadlineExceededError(
            absl::StrCat("not all ", group_.size, " members joined in time"));
        Fail(Named(late));
        return failure_->status();
      }
      std::this_thread::sleep_for(kPoll);
    }
    Fail(Named(ErrorOf(result, "ncclCommInitRankConfig")));
    return failure_->status();
  }

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }

  absl::Status AllReduceSum(Backend& backend, Stream& stream, const Tensor& x) override {
    return AllReduce(backend, stream, x, ncclSum);
  }
  absl::Status AllReduceMax(Backend& backend, Stream& stream, const Tensor& x) override {
    return AllReduce(backend, stream, x, ncclMax);
  }
  void Abort(const std::string& reason) override { Fail(absl::AbortedError(reason)); }

 private:
  // A collective that was enqueued, and the event behind it.
  struct Pending {
    cudaEvent_t event;
    Instant deadline;
  };

  absl::Status Named(const absl::Status& status) const {
    return Annotate(
        status, absl::StrCat("rank ", group_.rank, " of ", group_.size, " in group ", group_.name));
  }

  // The first failure is kept, before anything that waits is let go.
  void Fail(const absl::Status& status) {
    failure_->Keep(status);
    std::lock_guard lock(mutex_);
    if (communicator_ != nullptr) ncclCommAbort(std::exchange(communicator_, nullptr));
  }

  absl::Status AllReduce(Backend& backend, Stream& stream, const Tensor& x, ncclRedOp_t op) {
    auto& device = dynamic_cast<cuda::DeviceBackend&>(backend);
    ATOLL_CHECK(device.device_index() == backend_.device_index(),
                "a communicator works on its own device");
    ATOLL_CHECK(x.contiguous(), "collectives work on contiguous tensors");
    ATOLL_RETURN_IF_ERROR(failure_->status());
    if (x.size() == 0) return absl::OkStatus();
    if (told_.insert(&device).second) device.ReportFailuresOf(failure_);
    absl::Status enqueued;
    {
      std::lock_guard lock(mutex_);
      if (communicator_ == nullptr) return failure_->status();
      enqueued = Enqueue(device.RawStream(stream), x, op);
    }
    if (!enqueued.ok()) Fail(Named(enqueued));
    return failure_->status();
  }

  // mutex_ is held.
  absl::Status Enqueue(cudaStream_t stream, const Tensor& x, ncclRedOp_t op) {
    if (pending_.size() >= kPendingMax) {
      return absl::ResourceExhaustedError("too many collectives are waiting");
    }
    if (cudaSetDevice(backend_.device_index()) != cudaSuccess) {
      return absl::InternalError("cudaSetDevice failed");
    }
    ncclResult_t result = ncclAllReduce(x.data, x.data, static_cast<size_t>(x.size()),
                                        TypeOf(x.dtype), op, communicator_, stream);
    const Instant deadline = SteadyNow() + group_.timeout;
    while (result == ncclInProgress) {  // the communicator is not blocking
      ncclResult_t state = ncclSuccess;
      result = ncclCommGetAsyncError(communicator_, &state);
      if (result == ncclSuccess) result = state;
      if (SteadyNow() > deadline) return absl::DeadlineExceededError("a collective did not start");
    }
    if (result != ncclSuccess) return ErrorOf(result, "ncclAllReduce");
    cudaEvent_t event = nullptr;
    if (!idle_events_.empty()) {
      event = idle_events_.back();
      idle_events_.pop_back();
    } else if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) {
      return absl::InternalError("cudaEventCreate failed");
    }
    pending_.push_back({event, deadline});
    if (cudaEventRecord(event, stream) != cudaSuccess) {
      return absl::InternalError("cudaEventRecord failed");
    }
    return absl::OkStatus();
  }

  // mutex_ is held.
  void ForgetDone() {
    while (!pending_.empty() && cudaEventQuery(pending_.front().event) == cudaSuccess) {
      idle_events_.push_back(pending_.front().event);
      pending_.pop_front();
    }
    cudaGetLastError();  // "not ready" is no error
  }

  // Until the end: asks NCCL for errors of the other members, and the device for what is done.
  void Watch() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      wake_.wait_for(lock, kWatch, [this] { return stop_; });
      if (stop_ || communicator_ == nullptr) continue;
      ForgetDone();
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
      absl::Status failed;
      if (asked != ncclSuccess || (state != ncclSuccess && state != ncclInProgress)) {
        failed = absl::UnavailableError(absl::StrCat(
            "a member was lost: ", ncclGetErrorString(asked == ncclSuccess ? state : asked)));
      } else if (!pending_.empty() && SteadyNow() > pending_.front().deadline) {
        failed = absl::DeadlineExceededError("a collective was not done in time");
      }
      if (failed.ok()) continue;
      lock.unlock();
      Fail(Named(failed));
      lock.lock();
    }
  }

  cuda::DeviceBackend& backend_;
  const NcclGroup group_;
  const std::shared_ptr<AsyncFailure> failure_;
  std::set<const Backend*> told_;  // whose Synchronize reports it

  std::mutex mutex_;  // of everything below
  std::condition_variable wake_;
  ncclComm_t communicator_ = nullptr;  // null before Join and after a failure
  std::deque<Pending> pending_;
  std::vector<cudaEvent_t> idle_events_;
  bool stop_ = false;
  std::thread watch_;
};

}  // namespace

absl::StatusOr<std::string> NewNcclId() {
  ncclUniqueId id;
  const ncclResult_t result = ncclGetUniqueId(&id);
  if (result != ncclSuccess) return ErrorOf(result, "ncclGetUniqueId");
  return std::string(id.internal, sizeof(id.internal));
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinNccl(Backend& backend, const NcclGroup& group) {
  auto* device = dynamic_cast<cuda::DeviceBackend*>(&backend);
  ATOLL_CHECK(device != nullptr, "NCCL joins CUDA devices, not ", backend.Name());
  ATOLL_CHECK(group.rank >= 0 && group.rank < group.size);
  auto member = std::make_unique<NcclMember>(*device, group);
  ATOLL_RETURN_IF_ERROR(member->Join());
  return member;
}

}  // namespace atl

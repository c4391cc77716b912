#include "kernels/cuda/cuda_backend.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/logging.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device_share.h"
#include "kernels/cuda/dnn_engine.h"
#include "kernels/cuda/lt_engine.h"
#include "kernels/cuda/memory.h"
#include "kernels/recorder.h"

namespace atl {
namespace {

using cuda::DeviceShare;
using cuda::Queue;

// Left to the driver, contexts of libraries and other processes where no bound is given.
constexpr int64_t kSpareBytes = int64_t{512} << 20;
// Idle pinned memory that is kept for the next AllocateHost.
constexpr int64_t kIdlePinnedBytes = int64_t{1} << 30;
// CUDA graphs: of each stage F and B of every micro-batch in flight, and W of every layer.
constexpr size_t kRecordsMax = 1024;

absl::Status StatusFromError(cudaError_t error, absl::string_view what) {
  return absl::InternalError(
      absl::StrCat(what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
}

#define ATOLL_RETURN_IF_CUDA_ERROR(call)                                              \
  do {                                                                                \
    if (const cudaError_t error = (call); error != cudaSuccess) {                     \
      cudaGetLastError(); /* the error has been reported: later calls start afresh */ \
      return StatusFromError(error, #call);                                           \
    }                                                                                 \
  } while (false)

class Errors final : public cuda::FirstError {
 public:
  using FirstError::Keep;
  // Keeps the error of a call that is no launch. Left with the runtime, it would pass for the next
  // launch's.
  void Keep(cudaError_t error, const char* what) {
    if (error != cudaSuccess) cudaGetLastError();
    FirstError::Keep(static_cast<int>(error), what);
  }

 private:
  absl::Status Describe(int code, const char* what) const override {
    return StatusFromError(static_cast<cudaError_t>(code), what);
  }
};

class CudaStream final : public Stream {
 public:
  CudaStream(cudaStream_t stream, std::shared_ptr<DeviceShare> share)
      : stream(stream), share_(std::move(share)) {}
  ~CudaStream() override {
    share_->RemoveStream(stream);
    cudaStreamDestroy(stream);
  }
  const cudaStream_t stream;

 private:
  const std::shared_ptr<DeviceShare> share_;
};

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(cudaEvent_t event) : event(event) {}
  ~CudaEvent() override { cudaEventDestroy(event); }
  const cudaEvent_t event;
};

cudaStream_t Raw(Stream& stream) { return static_cast<CudaStream&>(stream).stream; }
cudaEvent_t Raw(const Event& event) { return static_cast<const CudaEvent&>(event).event; }

// CUDA graphs. Capture is the calling thread's: others may do with the device what they like. What
// goes wrong while it lasts is the record's fault, not the device's.
class CudaGraphs final : public Graphs {
 public:
  CudaGraphs(Errors* errors, DeviceShare* share) : errors_(errors), share_(share) {}

  absl::Status Begin(Stream& stream) override {
    earlier_ = errors_->Take();
    share_->BeginCapture(Raw(stream));
    const cudaError_t error = cudaStreamBeginCapture(Raw(stream), cudaStreamCaptureModeThreadLocal);
    if (error == cudaSuccess) return absl::OkStatus();
    cudaGetLastError();
    share_->EndCapture(Raw(stream));
    errors_->Keep(earlier_);
    return StatusFromError(error, "cudaStreamBeginCapture");
  }

  absl::StatusOr<std::unique_ptr<Graph>> End(Stream& stream) override {
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(Raw(stream), &graph);
    cudaGetLastError();
    share_->EndCapture(Raw(stream));
    absl::Status status = errors_->Take();
    errors_->Keep(std::exchange(earlier_, absl::OkStatus()));
    auto made = std::make_unique<Instance>();
    if (status.ok() && error != cudaSuccess)
      status = StatusFromError(error, "cudaStreamEndCapture");
    if (status.ok()) {
      const cudaError_t made_error = cudaGraphInstantiate(&made->graph, graph, 0);
      cudaGetLastError();
      if (made_error != cudaSuccess) status = StatusFromError(made_error, "cudaGraphInstantiate");
    }
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (!status.ok()) return status;
    return made;
  }

  void Launch(Stream& stream, Graph& graph) override {
    errors_->Keep(cudaGraphLaunch(static_cast<Instance&>(graph).graph, Raw(stream)),
                  "cudaGraphLaunch");
  }

 private:
  struct Instance final : Graph {
    ~Instance() override {
      if (graph != nullptr) cudaGraphExecDestroy(graph);
    }
    cudaGraphExec_t graph = nullptr;
  };

  Errors* const errors_;
  DeviceShare* const share_;
  absl::Status earlier_;  // of before the capture
};

class CudaBackend final : public cuda::DeviceBackend {
 public:
  CudaBackend(CudaDevice device, std::shared_ptr<DeviceShare> share, bool graphs)
      : device_(std::move(device)),
        records_(graphs),
        share_(std::move(share)),
        ledger_(absl::StrCat(device_.name, " ", device_.uuid), share_->bound()),
        pinned_(kIdlePinnedBytes, GetPinned, [](void* data) { cudaFreeHost(data); }) {}

  ~CudaBackend() override {
    Use();
    recorder_.Forget();
    if (memory_stream_ != nullptr) cudaStreamSynchronize(memory_stream_);
    while (!retired_.empty()) ReuseOldest();
    if (pool_ != nullptr) {
      share_->RemovePool(pool_);
      cudaMemPoolDestroy(pool_);
    }
    if (memory_stream_ == nullptr) return;
    share_->RemoveStream(memory_stream_);
    cudaStreamDestroy(memory_stream_);
  }

  absl::Status Start() {
    ATOLL_RETURN_IF_CUDA_ERROR(cudaSetDevice(device_.index));
    ATOLL_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&memory_stream_, cudaStreamNonBlocking));
    ATOLL_RETURN_IF_CUDA_ERROR(share_->AddStream(memory_stream_));
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location = {cudaMemLocationTypeDevice, device_.index};
    // The ledger is the bound; the pool rounds every buffer up.
    props.maxSize = static_cast<size_t>(share_->bound()->limit_bytes() + kSpareBytes / 2);
    ATOLL_RETURN_IF_CUDA_ERROR(cudaMemPoolCreate(&pool_, &props));
    share_->AddPool(pool_);
    uint64_t keep = UINT64_MAX;  // memory goes back to the driver with the pool
    ATOLL_RETURN_IF_CUDA_ERROR(
        cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
    ATOLL_ASSIGN_OR_RETURN(products_, cuda::NewLtEngine(device_.major, mutable_declined()));
    attention_ = cuda::NewDnnEngine(device_.major, mutable_declined());
    UseEngines(products_.get(), attention_.get());
    return absl::OkStatus();
  }

  std::string Name() const override {
    return absl::StrCat("cuda ", device_.index, ": ", device_.name);
  }
  bool Supports(DType compute) const override {
    return compute == DType::kFloat32 || (compute == DType::kBfloat16 && device_.major >= 8);
  }

  // ---- Memory: taken and freed in the order of a stream that nothing else runs on ----

  absl::StatusOr<Buffer> Allocate(int64_t bytes) override {
    Use();
    ATOLL_RETURN_IF_ERROR(ledger_.Take(bytes));
    void* data = nullptr;
    cudaError_t error = Get(bytes, &data);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      // By then all backends' freed buffers are back in their pools.
      errors_.Keep(share_->Follow(memory_stream_), "cudaStreamWaitEvent");
      cudaStreamSynchronize(memory_stream_);
      share_->TrimPools();
      error = Get(bytes, &data);
    }
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      size_t free_bytes = 0, total_bytes = 0;
      cudaMemGetInfo(&free_bytes, &total_bytes);
      return ledger_.Refused(bytes, static_cast<int64_t>(free_bytes));
    }
    if (error != cudaSuccess) {
      cudaGetLastError();
      return StatusFromError(error, "cudaMallocFromPoolAsync");
    }
    ledger_.Placed(data, bytes);
    return Buffer(this, data, bytes, /*on_host=*/false);
  }

  absl::StatusOr<Buffer> AllocateHost(int64_t bytes) override {
    Use();
    while (!retired_.empty() && Passed(*retired_.front().used)) ReuseOldest();
    void* data = pinned_.Take(bytes);
    if (data == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no pinned host memory for a buffer of ", bytes, " bytes"));
    }
    return Buffer(this, data, bytes, /*on_host=*/true);
  }

  // The ledger's counts, and the pool's where that has taken more: it rounds buffers up.
  MemoryUse Memory() const override {
    MemoryUse use = ledger_.use();
    const auto most = [this](cudaMemPoolAttr attribute, int64_t counted) {
      uint64_t bytes = 0;
      if (cudaMemPoolGetAttribute(pool_, attribute, &bytes) != cudaSuccess) {
        cudaGetLastError();
        return counted;
      }
      return std::max(counted, static_cast<int64_t>(bytes));
    };
    use.in_use_bytes = most(cudaMemPoolAttrUsedMemCurrent, use.in_use_bytes);
    use.peak_bytes = most(cudaMemPoolAttrUsedMemHigh, use.peak_bytes);
    return use;
  }
  void ForgetPeak() override {
    Use();
    ledger_.ForgetPeak();
    uint64_t zero = 0;  // the only value that it takes: the peak begins again at what is in use
    errors_.Keep(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrUsedMemHigh, &zero),
                 "cudaMemPoolSetAttribute");
  }

  void CopyToDevice(Stream& stream, const Tensor& to, const void* host) override {
    Copy(to.data, host, to, cudaMemcpyHostToDevice, stream);
  }
  void CopyToHost(Stream& stream, void* host, const Tensor& from) override {
    Copy(host, from.data, from, cudaMemcpyDeviceToHost, stream);
  }
  void Zero(Stream& stream, const Tensor& x) override {
    Use();
    errors_.Keep(cudaMemsetAsync(x.data, 0, ContiguousBytes(x), Raw(stream)), "cudaMemsetAsync");
  }

  bool CanAccessPeer(const Backend& peer) const override {
    return dynamic_cast<const CudaBackend*>(&peer) != nullptr;
  }
  void CopyFromPeer(Stream& stream, const Tensor& to, const Backend& peer,
                    const Tensor& from) override {
    Use();
    const auto& other = dynamic_cast<const CudaBackend&>(peer);
    Meet(other);
    errors_.Keep(cudaMemcpyPeerAsync(to.data, device_.index, from.data, other.device_.index,
                                     ContiguousBytes(to), Raw(stream)),
                 "cudaMemcpyPeerAsync");
  }

  // ---- Streams and events ----

  absl::StatusOr<std::unique_ptr<Stream>> NewStream() override {
    Use();
    cudaStream_t stream = nullptr;
    ATOLL_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    auto made = std::make_unique<CudaStream>(stream, share_);
    ATOLL_RETURN_IF_CUDA_ERROR(share_->AddStream(stream));
    return made;
  }
  absl::StatusOr<std::unique_ptr<Event>> NewEvent() override {
    return MakeEvent(cudaEventDisableTiming);
  }
  absl::StatusOr<std::unique_ptr<Event>> NewTimedEvent() override {
    return MakeEvent(cudaEventDefault);
  }
  Duration Elapsed(const Event& from, const Event& to) const override {
    cudaSetDevice(device_.index);
    float milliseconds = 0;
    if (cudaEventElapsedTime(&milliseconds, Raw(from), Raw(to)) != cudaSuccess) cudaGetLastError();
    return FromSeconds(milliseconds / 1e3);
  }
  void Record(Stream& stream, Event& event) override {
    Use();
    errors_.Keep(cudaEventRecord(Raw(event), Raw(stream)), "cudaEventRecord");
  }
  void Wait(Stream& stream, const Event& event) override {
    Use();
    errors_.Keep(cudaStreamWaitEvent(Raw(stream), Raw(event), 0), "cudaStreamWaitEvent");
  }
  bool Passed(const Event& event) const override {
    // NCCL's watchdogs ask on threads of their own, which must not start another device's context.
    cudaSetDevice(device_.index);
    // After an error nothing will pass any more: Synchronize reports it.
    const cudaError_t error = cudaEventQuery(Raw(event));
    if (error != cudaSuccess) cudaGetLastError();  // it must not look like the next launch's
    return error != cudaErrorNotReady;
  }
  absl::Status Synchronize(Stream& stream) override {
    Use();
    errors_.Keep(cudaStreamSynchronize(Raw(stream)), "cudaStreamSynchronize");
    return TakeFailure();
  }
  absl::Status TakeFailure() override {
    errors_.Keep(failures_.First());
    return errors_.Take();
  }

  absl::Status Repeat(Stream& stream, const WorkKey& key,
                      absl::FunctionRef<absl::Status()> work) override {
    if (!records_) return work();
    Use();
    const absl::Status status = recorder_.Repeat(stream, key, work);
    // The first of each: what cannot be recorded is enqueued as usual, unnoticed.
    const RepeatCounts& counts = recorder_.counts();
    if (counts.recorded > 0 && !std::exchange(logged_record_, true)) {
      LogInfo("cuda", "graphs: the first work is recorded");
    }
    if (!counts.trouble.empty() && !std::exchange(logged_refusal_, true)) {
      LogInfo("cuda", "graphs: not recorded: ", counts.trouble);
    }
    return status;
  }
  RepeatCounts Repeats() const override { return recorder_.counts(); }

  // ---- For NCCL ----
  int device_index() const override { return device_.index; }
  CUstream_st* RawStream(Stream& stream) const override { return Raw(stream); }
  void AddFailureSource(std::shared_ptr<AsyncFailure> source) override {
    failures_.Add(std::move(source));
  }

 private:
  absl::StatusOr<std::unique_ptr<Event>> MakeEvent(unsigned int flags) {
    Use();
    cudaEvent_t event = nullptr;
    ATOLL_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&event, flags));
    return std::make_unique<CudaEvent>(event);
  }

  // Pinned memory that was freed, and the point in the memory stream behind its last use.
  struct Retired {
    void* data;
    std::unique_ptr<CudaEvent> used;
  };

  cudaError_t Get(int64_t bytes, void** data) {
    const auto size = static_cast<size_t>(bytes == 0 ? 1 : bytes);
    const cudaError_t error = cudaMallocFromPoolAsync(data, size, pool_, memory_stream_);
    return error == cudaSuccess ? cudaStreamSynchronize(memory_stream_) : error;
  }

  static void* GetPinned(int64_t bytes) {
    void* data = nullptr;
    const auto size = static_cast<size_t>(bytes);
    if (cudaHostAlloc(&data, size, cudaHostAllocDefault) == cudaSuccess) return data;
    cudaGetLastError();
    return nullptr;
  }

  static size_t ContiguousBytes(const Tensor& x) {
    ATOLL_CHECK(x.contiguous(), "only contiguous tensors are copied");
    return static_cast<size_t>(x.size() * GetElementSize(x.dtype));
  }

  // Lets this device read the other's pool, where the machine's links allow it; copies go through
  // the host otherwise.
  void Meet(const CudaBackend& other) {
    if (other.device_.index == device_.index || !met_.insert(other.pool_).second) return;
    int can = 0;
    errors_.Keep(cudaDeviceCanAccessPeer(&can, device_.index, other.device_.index),
                 "cudaDeviceCanAccessPeer");
    if (can == 0) return;
    cudaMemAccessDesc access = {};
    access.location = {cudaMemLocationTypeDevice, device_.index};
    access.flags = cudaMemAccessFlagsProtReadWrite;
    errors_.Keep(cudaMemPoolSetAccess(other.pool_, &access, 1), "cudaMemPoolSetAccess");
  }

  // The calling thread may be another one than last time.
  void Use() { errors_.Keep(cudaSetDevice(device_.index), "cudaSetDevice"); }

  void Copy(void* to, const void* from, const Tensor& x, cudaMemcpyKind kind, Stream& stream) {
    Use();
    errors_.Keep(cudaMemcpyAsync(to, from, ContiguousBytes(x), kind, Raw(stream)),
                 "cudaMemcpyAsync");
  }

  Queue GetQueue(Stream& stream) override {
    Use();
    return {Raw(stream), &errors_};
  }

  // Waits for nothing, which another stream's capture would not survive.
  void Free(void* data, bool on_host) override {
    Use();
    recorder_.Forget();
    // Any stream of the device may still work on it.
    errors_.Keep(share_->Follow(memory_stream_), "cudaStreamWaitEvent");
    if (on_host) return Retire(data);
    ledger_.GiveBack(data);
    errors_.Keep(cudaFreeAsync(data, memory_stream_), "cudaFreeAsync");
  }

  void Retire(void* data) {
    cudaEvent_t event = nullptr;
    const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (error != cudaSuccess) {
      errors_.Keep(error, "cudaEventCreateWithFlags");
      return pinned_.GiveBack(data);  // the device is lost
    }
    errors_.Keep(cudaEventRecord(event, memory_stream_), "cudaEventRecord");
    retired_.push_back({data, std::make_unique<CudaEvent>(event)});
  }
  void ReuseOldest() {
    pinned_.GiveBack(retired_.front().data);
    retired_.pop_front();
  }

  const CudaDevice device_;
  const bool records_;
  const std::shared_ptr<DeviceShare> share_;
  Errors errors_;
  CudaGraphs graphs_{&errors_, share_.get()};
  Recorder recorder_{&graphs_, kRecordsMax};
  bool logged_record_ = false, logged_refusal_ = false;
  FailureSources failures_;
  MemoryLedger ledger_;
  BlockPool pinned_;
  std::deque<Retired> retired_;  // in the order of their points
  cudaStream_t memory_stream_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  std::set<cudaMemPool_t> met_;  // others' that this device may read
  std::unique_ptr<cuda::ProductEngine> products_;
  std::unique_ptr<cuda::AttentionEngine> attention_;
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Backend>>> NewCudaBackends(const CudaOptions& options,
                                                                      int count) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<CudaDevice> devices, CudaDevices());
  ATOLL_ASSIGN_OR_RETURN(const CudaDevice device, FindCudaDevice(devices, options.device));
  // Devices for which the kernels are compiled (third_party/cuda/cuda.bzl): code of 7.5, of 8.0,
  // which all 8.x run, and of 9.0.
  const bool built_for = (device.major == 7 && device.minor >= 5) || device.major == 8 ||
                         (device.major == 9 && device.minor == 0);
  if (!built_for) {
    return absl::FailedPreconditionError(
        absl::StrCat(device.name, " has compute capability ", device.major, ".", device.minor,
                     "; this build has code for 7.5, 8.x and 9.0"));
  }
  ATOLL_RETURN_IF_CUDA_ERROR(cudaSetDevice(device.index));
  size_t free_bytes = 0, total_bytes = 0;
  ATOLL_RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
  const auto free = static_cast<int64_t>(free_bytes);
  if (options.memory_bytes > free) {
    return absl::ResourceExhaustedError(absl::StrCat(device.name, " has ", free,
                                                     " bytes free, not the ", options.memory_bytes,
                                                     " that were requested"));
  }
  const int64_t limit =
      options.memory_bytes > 0 ? options.memory_bytes : std::max(free - kSpareBytes, free / 2);
  const auto share = std::make_shared<DeviceShare>(limit);
  std::vector<std::unique_ptr<Backend>> backends;
  for (int i = 0; i < count; ++i) {
    auto backend = std::make_unique<CudaBackend>(device, share, options.graphs);
    ATOLL_RETURN_IF_ERROR(backend->Start());
    backends.push_back(std::move(backend));
  }
  return backends;
}

absl::StatusOr<std::unique_ptr<Backend>> NewCudaBackend(const CudaOptions& options) {
  ATOLL_ASSIGN_OR_RETURN(auto backends, NewCudaBackends(options, 1));
  return std::move(backends.front());
}

std::vector<DeclinedWork> DeclinedBy(const Backend& backend) {
  return dynamic_cast<const CudaBackend&>(backend).declined().work();
}

}  // namespace atl

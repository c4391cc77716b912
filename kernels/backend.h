// A Backend runs a model's operations on one device: memory, streams, and the operations of ops.h.
//
// Contract, the same for every backend:
// - Operations are enqueued on a stream and return at once or later; those of one stream take
//   effect in order. Two streams are ordered only by events. A backend may run an operation inside
//   the call (the CPU ones do): then every stream is always idle.
// - No operation synchronises, allocates device memory or copies to the host behind the caller's
//   back. Scratch memory is the caller's: an operation that needs some has an overload of
//   WorkspaceBytes, which looks at shapes alone (data pointers may be null), and takes a Workspace
//   of at least that size, which stays untouched until the stream has passed the operation. The
//   same workspace can serve all operations of one stream.
// - Memory passed to an operation stays alive until the stream has passed it.
// - Results repeat bit for bit: reductions have a fixed order for a given backend and number of
//   threads.
// - What can happen (no memory, a device error) is a Status, of setup calls or of Synchronize,
//   which reports the first error since the last one. Shapes that do not fit are bugs: CHECK.
// - A Backend, its streams and buffers are used by one thread at a time. Several backends may live
//   in one process. Streams, events and buffers die before their backend.

#ifndef ATOLL_KERNELS_BACKEND_H_
#define ATOLL_KERNELS_BACKEND_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "common/status.h"
#include "common/time.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace atl {

class Backend;

// An ordered queue of operations.
class Stream {
 public:
  virtual ~Stream() = default;
};

// A point in a stream, for another stream or the host to wait for.
class Event {
 public:
  virtual ~Event() = default;
};

// Owns memory of a backend: aligned to 64 bytes or more, contents undefined at first. Freeing may
// wait for the device: release buffers when a job ends, not between steps.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend* backend, void* data, int64_t bytes, bool on_host)
      : backend_(backend), data_(data), bytes_(bytes), on_host_(on_host) {}
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Workspace workspace() const { return {data_, bytes_}; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(on_host_, other.on_host_);
  }

  Backend* backend_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  bool on_host_ = false;
};

// Names work that is enqueued again and again; see Backend::Repeat.
using WorkKey = std::array<int64_t, 12>;

struct RepeatCounts {
  int64_t recorded = 0;  // units of work that became one launch
  int64_t replayed = 0;  // times that they were launched instead of being enqueued
  std::string trouble;   // why a unit of work could not be recorded, the newest; empty: none
};

// Use of a backend's device memory.
struct MemoryUse {
  int64_t in_use_bytes = 0;
  int64_t peak_bytes = 0;   // the most at a time, since the start or ForgetPeak
  int64_t limit_bytes = 0;  // that may be in use; 0: no bound
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string Name() const = 0;  // "cpu", "reference"
  // Returns whether activations and weights of operations may be of this type. The fast CPU backend
  // computes in kFloat32 only; AddScaled, Convert and AdamW::param_copy accept kBfloat16
  // everywhere.
  virtual bool Supports(DType compute) const = 0;

  // Returns whether the host may read and write buffers itself; it always may those of
  // AllocateHost. Otherwise only operations of this backend may, and those of others of the same
  // device.
  virtual bool memory_on_host() const { return false; }

  // ---- Memory. `bytes` may be 0. RESOURCE_EXHAUSTED names the device, the bytes wanted, those
  // held and the limit; what they were for is the caller's to say. ----
  virtual absl::StatusOr<Buffer> Allocate(int64_t bytes) = 0;
  // Host memory from which copies run asynchronously (pinned, where that means something).
  virtual absl::StatusOr<Buffer> AllocateHost(int64_t bytes) = 0;
  // Returns the use that the allocator counts; a GPU's is without the driver's own and the
  // libraries'.
  virtual MemoryUse Memory() const = 0;
  virtual void ForgetPeak() = 0;
  // Device memory from and to host memory, and zeroes. Only bytes move: tensors must be contiguous.
  virtual void CopyToDevice(Stream& stream, const Tensor& to, const void* host) = 0;
  virtual void CopyToHost(Stream& stream, void* host, const Tensor& from) = 0;
  virtual void Zero(Stream& stream, const Tensor& x) = 0;
  // Returns whether CopyFromPeer takes memory of `peer`, a backend of another device in this
  // process.
  virtual bool CanAccessPeer(const Backend& /*peer*/) const { return false; }
  // Between devices; contiguous tensors. Waits for the peer's work, and is waited for, by events.
  virtual void CopyFromPeer(Stream& /*stream*/, const Tensor& /*to*/, const Backend& peer,
                            const Tensor& /*from*/) {
    ATOLL_CHECK(false, Name(), " does not reach ", peer.Name());
  }

  // ---- Streams and events ----
  virtual absl::StatusOr<std::unique_ptr<Stream>> NewStream() = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> NewEvent() = 0;
  // An event that also notes the time at which it is passed.
  virtual absl::StatusOr<std::unique_ptr<Event>> NewTimedEvent() = 0;
  // The device's time from one timed event's last record to another's, in streams of one device.
  // REQUIRES: it has passed both.
  virtual Duration Elapsed(const Event& from, const Event& to) const = 0;
  // The event now stands for everything enqueued on the stream so far.
  virtual void Record(Stream& stream, Event& event) = 0;
  // Makes all that is enqueued on the stream from now on wait for the event's last record.
  virtual void Wait(Stream& stream, const Event& event) = 0;
  // Returns whether the device has passed the event; never waits. True before the first Record.
  virtual bool Passed(const Event& event) const = 0;
  // Blocks the host until the stream is idle.
  virtual absl::Status Synchronize(Stream& stream) = 0;
  // Returns what Synchronize would say of work that has ended, well or not, and never waits: for a
  // backend whose stream another one of the device has waited for.
  virtual absl::Status TakeFailure() { return absl::OkStatus(); }

  // Enqueues on the stream what `work` enqueues. Where the backend can (and is configured to), it
  // calls `work` the first times that it sees a key, and later enqueues what it has recorded then,
  // in one launch, without calling it. So `work` only enqueues operations, copies and zeroes, on
  // this stream alone: the same ones on the same memory for the same key. Freeing a buffer of the
  // backend forgets all that was recorded, so addresses may be part of a key. Returns what `work`
  // does.
  virtual absl::Status Repeat(Stream& /*stream*/, const WorkKey& /*key*/,
                              absl::FunctionRef<absl::Status()> work) {
    return work();
  }
  virtual RepeatCounts Repeats() const { return {}; }

  // ---- Operations: see ops.h ----
#define ATOLL_OPERATION(Op) virtual void Run(Stream& stream, const Op& op) = 0;
#define ATOLL_OPERATION_WITH_SCRATCH(Op)                                   \
  virtual void Run(Stream& stream, const Op& op, Workspace workspace) = 0; \
  virtual int64_t WorkspaceBytes(const Op& op) const = 0;
  ATOLL_OPERATIONS(ATOLL_OPERATION, ATOLL_OPERATION_WITH_SCRATCH, ATOLL_OPERATION_WITH_SCRATCH,
                   ATOLL_OPERATION)
#undef ATOLL_OPERATION
#undef ATOLL_OPERATION_WITH_SCRATCH

 private:
  friend class Buffer;
  virtual void Free(void* data, bool on_host) = 0;
};

inline Buffer::~Buffer() {
  if (data_ != nullptr) backend_->Free(data_, on_host_);
}

}  // namespace atl

#endif  // ATOLL_KERNELS_BACKEND_H_

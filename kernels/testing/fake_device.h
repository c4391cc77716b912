// A device for tests on machines that have none: another backend's arithmetic, in memory that the
// host cannot touch, on streams that work later.
//
// - Buffers lie at addresses that must not be read or written: code that does so other than by an
//   operation of a backend of the same device ends the process. Operations are given the real
//   memory behind them.
// - Every stream has a thread, so that nothing is done when a call returns, and what is not
//   synchronised or ordered by events goes wrong. Host memory is read and written then, too.
// - Freeing a buffer waits for all streams of the device, as CUDA does.
//
// Backends of one device share its memory; each is used by one thread at a time, as any backend.

#ifndef ATOLL_KERNELS_TESTING_FAKE_DEVICE_H_
#define ATOLL_KERNELS_TESTING_FAKE_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/backend.h"

namespace atl::testing {

class FakeMemory;

// Counts what a backend was requested to do: on a real device each costs time of the host or of a
// bus.
struct FakeCounts {
  int64_t launches = 0;  // of operations, or of all that were recorded as one
  int64_t synchronisations = 0;
  int64_t to_host_bytes = 0, to_device_bytes = 0, peer_bytes = 0;
  int64_t collectives = 0, collective_bytes = 0;  // of the tensors that they were given
};
// REQUIRES: a FakeDevice's backend; for any thread.
FakeCounts GetFakeCounts(const Backend& backend);

// Copies are the same device.
class FakeDevice {
 public:
  // `arithmetic` makes what computes, for each backend anew; it works in host memory.
  using Arithmetic = std::function<std::unique_ptr<Backend>()>;
  FakeDevice(std::string name, Arithmetic arithmetic);

  // A stream of it calls `before_copy` when it comes to a copy to or from the host, which may hold
  // that stream up.
  std::unique_ptr<Backend> NewBackend(std::function<void()> before_copy = nullptr) const;

 private:
  std::string name_;
  Arithmetic arithmetic_;
  std::shared_ptr<FakeMemory> memory_;
};

// ---- For what works on streams as libraries do: collectives. The backend is of a FakeDevice. ----

// The stream calls it when it comes to it.
void EnqueueOnFake(Backend& backend, Stream& stream, std::function<void()> work);
void CountCollective(Backend& backend, const Tensor& tensor);
// The real memory behind a tensor of this backend's device.
Tensor RealMemory(Backend& backend, const Tensor& tensor);

}  // namespace atl::testing

#endif  // ATOLL_KERNELS_TESTING_FAKE_DEVICE_H_

// A member of a group on a device, as communicator_cases.h wants members: with tensors of the host,
// and calls that return when the device is done.

#ifndef ATOLL_KERNELS_TESTING_ON_DEVICE_H_
#define ATOLL_KERNELS_TESTING_ON_DEVICE_H_

#include <memory>
#include <string>
#include <utility>

#include "common/check.h"
#include "kernels/backend.h"
#include "kernels/communicator.h"

namespace atl::testing {

// A device with a member on it; they die in the reverse order.
struct DeviceMember {
  std::shared_ptr<void> below;  // what the backend stands on, if it needs anything
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Communicator> member;

  // Puts `values` (of x's shape, on the host) onto the device, does call(tensor) there, and reads
  // them back. What the call says, or else what the stream does.
  template <typename Call>
  absl::Status With(const Tensor& values, const Call& call) {
    ATOLL_ASSIGN_OR_RETURN(const Buffer buffer,
                           backend->Allocate(values.size() * GetElementSize(values.dtype)));
    const Tensor x(buffer.data(), values.dtype, 1, values.size());
    backend->CopyToDevice(*stream, x, values.data);
    const absl::Status called = call(x);
    backend->CopyToHost(*stream, values.data, x);
    const absl::Status done = backend->Synchronize(*stream);
    return called.ok() ? done : called;
  }
};

class OnDevice final : public Communicator {
 public:
  explicit OnDevice(DeviceMember device) : device_(std::move(device)) {}
  int rank() const override { return device_.member->rank(); }
  int size() const override { return device_.member->size(); }
  absl::Status AllReduceSum(Backend&, Stream&, const Tensor& x) override {
    return device_.With(x, [&](const Tensor& on_device) {
      return device_.member->AllReduceSum(*device_.backend, *device_.stream, on_device);
    });
  }
  absl::Status AllReduceMax(Backend&, Stream&, const Tensor& x) override {
    return device_.With(x, [&](const Tensor& on_device) {
      return device_.member->AllReduceMax(*device_.backend, *device_.stream, on_device);
    });
  }
  absl::Status ReduceScatterSum(Backend&, Stream&, const Tensor& x, const Cuts& cuts) override {
    return device_.With(x, [&](const Tensor& on_device) {
      return device_.member->ReduceScatterSum(*device_.backend, *device_.stream, on_device, cuts);
    });
  }
  absl::Status AllGather(Backend&, Stream&, const Tensor& x, const Cuts& cuts,
                         const Routes& routes) override {
    return device_.With(x, [&](const Tensor& on_device) {
      return device_.member->AllGather(*device_.backend, *device_.stream, on_device, cuts, routes);
    });
  }
  void Abort(const std::string& reason) override { device_.member->Abort(reason); }

 private:
  DeviceMember device_;
};

}  // namespace atl::testing

#endif  // ATOLL_KERNELS_TESTING_ON_DEVICE_H_

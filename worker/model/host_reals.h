// A few f32 or f64 numbers on the host, in flight to or from a device.

#ifndef ATOLL_WORKER_MODEL_HOST_REALS_H_
#define ATOLL_WORKER_MODEL_HOST_REALS_H_

#include <vector>

#include "common/check.h"
#include "kernels/backend.h"

namespace atl {

class HostReals {
 public:
  HostReals() = default;
  // Memory of AllocateHost: no copy from or to it makes the host wait. `backend` outlives it.
  static absl::StatusOr<HostReals> Create(Backend& backend, DType dtype, int64_t size) {
    ATOLL_CHECK(dtype == StateType(dtype), "neither f32 nor f64");
    HostReals reals;
    reals.wide_ = dtype == DType::kFloat64;
    reals.size_ = size;
    ATOLL_ASSIGN_OR_RETURN(reals.memory_, backend.AllocateHost(size * GetElementSize(dtype)));
    return reals;
  }

  void* data() { return memory_.data(); }
  double operator[](int64_t i) const {
    return wide_ ? static_cast<const double*>(memory_.data())[i]
                 : static_cast<const float*>(memory_.data())[i];
  }
  void Set(int64_t i, double value) {
    if (wide_) {
      static_cast<double*>(memory_.data())[i] = value;
    } else {
      static_cast<float*>(memory_.data())[i] = static_cast<float>(value);
    }
  }
  std::vector<double> All() const {
    std::vector<double> all(static_cast<size_t>(size_));
    for (int64_t i = 0; i < size_; ++i) all[static_cast<size_t>(i)] = (*this)[i];
    return all;
  }

 private:
  bool wide_ = false;
  int64_t size_ = 0;
  Buffer memory_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_HOST_REALS_H_

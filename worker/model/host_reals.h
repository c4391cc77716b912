// A few f32 or f64 numbers on the host, in flight to or from a device.

#ifndef ATOLL_WORKER_MODEL_HOST_REALS_H_
#define ATOLL_WORKER_MODEL_HOST_REALS_H_

#include <algorithm>
#include <vector>

#include "common/check.h"
#include "kernels/tensor.h"

namespace atl {

class HostReals {
 public:
  HostReals() = default;
  HostReals(DType dtype, int64_t size) : wide_(dtype == DType::kFloat64) {
    ATOLL_CHECK(dtype == StateType(dtype), "neither f32 nor f64");
    wide_ ? f64_.resize(size) : f32_.resize(size);
  }

  void* data() { return wide_ ? static_cast<void*>(f64_.data()) : f32_.data(); }
  double operator[](int64_t i) const { return wide_ ? f64_[i] : f32_[i]; }
  void Set(int64_t i, double value) {
    wide_ ? f64_[i] = value : f32_[i] = static_cast<float>(value);
  }
  std::vector<double> All() const {
    return wide_ ? f64_ : std::vector<double>(f32_.begin(), f32_.end());
  }

 private:
  bool wide_ = false;
  std::vector<float> f32_;
  std::vector<double> f64_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_HOST_REALS_H_

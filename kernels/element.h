// Single elements of tensors on the host, for loops that compute in double.

#ifndef ATOLL_KERNELS_ELEMENT_H_
#define ATOLL_KERNELS_ELEMENT_H_

#include <cmath>
#include <cstdint>

#include "kernels/bfloat16.h"
#include "kernels/tensor.h"

namespace atl {

// An element of a tensor of reals, read and written as a double, and rounded once.
class Element {
 public:
  Element(const Tensor& x, int64_t index) : x_(x), index_(index) {}
  Element(const Element&) = delete;
  operator double() const {
    if (x_.dtype == DType::kFloat32) return x_.f32()[index_];
    if (x_.dtype == DType::kFloat64) return x_.as<double>()[index_];
    return WidenBfloat16(x_.as<Bfloat16>()[index_]);
  }
  void operator=(double value) const {
    if (x_.dtype == DType::kFloat32) {
      x_.f32()[index_] = static_cast<float>(value);
    } else if (x_.dtype == DType::kFloat64) {
      x_.as<double>()[index_] = value;
    } else {
      x_.as<Bfloat16>()[index_] = RoundToBfloat16(static_cast<float>(value));
    }
  }
  void operator=(const Element& from) const { *this = static_cast<double>(from); }
  void operator+=(double value) const { *this = *this + value; }

 private:
  const Tensor& x_;
  const int64_t index_;
};

inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// x[row][col].
inline Element At(const Tensor& x, int64_t row, int64_t col) { return {x, row * x.stride + col}; }

// Element `col` of a vector.
inline Element At(const Tensor& x, int64_t col) { return At(x, 0, col); }

// The element of an optional operand: 0 where it is absent.
inline double AtOrZero(const Tensor& x, int64_t row, int64_t col) {
  return x.present() ? double{At(x, row, col)} : 0.0;
}

}  // namespace atl

#endif  // ATOLL_KERNELS_ELEMENT_H_

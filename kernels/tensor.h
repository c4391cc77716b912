// Operands of operations: small views of memory of another owner.

#ifndef ATOLL_KERNELS_TENSOR_H_
#define ATOLL_KERNELS_TENSOR_H_

#include <cstdint>

#include "common/check.h"

namespace atl {

enum class DType : uint8_t { kFloat32, kBfloat16, kInt32, kFloat64 };

constexpr int64_t GetElementSize(DType dtype) {
  return dtype == DType::kBfloat16 ? 2 : dtype == DType::kFloat64 ? 8 : 4;
}

// Returns the type of parameters, their gradients, moments and sums beside activations of a type.
constexpr DType StateType(DType compute) {
  return compute == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

// A bfloat16 is the upper half of a float.
using Bfloat16 = uint16_t;

template <typename T>
constexpr DType GetDType();
template <>
constexpr DType GetDType<float>() {
  return DType::kFloat32;
}
template <>
constexpr DType GetDType<Bfloat16>() {
  return DType::kBfloat16;
}
template <>
constexpr DType GetDType<int32_t>() {
  return DType::kInt32;
}
template <>
constexpr DType GetDType<double>() {
  return DType::kFloat64;
}

// A view of a matrix in a backend's memory: `rows` rows of `cols` adjacent elements, `stride`
// elements from one row's start to the next's (>= cols; so columns of a wider matrix are a tensor
// too). A vector is one row, a scalar 1 x 1. Activations have one row per token: row b * T + t is
// position t of sequence b; its columns are channels, for queries, keys and values head by head.
// A view owns nothing; an empty one (data == nullptr) stands for an absent optional argument.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  Tensor() = default;
  Tensor(void* data, DType dtype, int64_t rows, int64_t cols)
      : Tensor(data, dtype, rows, cols, cols) {}
  Tensor(void* data, DType dtype, int64_t rows, int64_t cols, int64_t stride)
      : data(data), dtype(dtype), rows(rows), cols(cols), stride(stride) {}

  bool present() const { return data != nullptr; }
  bool contiguous() const { return stride == cols || rows == 1; }
  int64_t size() const { return rows * cols; }

  template <typename T>
  T* as() const {
    ATOLL_CHECK(dtype == GetDType<T>(), "a tensor of dtype ", static_cast<int>(dtype),
                " read as another");
    return static_cast<T*>(data);
  }
  float* f32() const { return as<float>(); }

  // Columns [begin, begin + count), or rows, of this tensor.
  Tensor Columns(int64_t begin, int64_t count) const {
    ATOLL_CHECK(begin >= 0 && count >= 0 && begin + count <= cols);
    return {At(begin), dtype, rows, count, stride};
  }
  Tensor Rows(int64_t begin, int64_t count) const {
    ATOLL_CHECK(begin >= 0 && count >= 0 && begin + count <= rows);
    return {At(begin * stride), dtype, count, cols, stride};
  }

 private:
  // Null stays null, so that workspace queries may be made with shapes alone.
  void* At(int64_t element) const {
    return data == nullptr ? nullptr : static_cast<char*>(data) + element * GetElementSize(dtype);
  }
};

// Scratch memory of the backend that an operation may overwrite. Aligned to 64 bytes.
struct Workspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

}  // namespace atl

#endif  // ATOLL_KERNELS_TENSOR_H_

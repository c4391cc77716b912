// A matrix product as linear layers need it, and as cuBLASLt computes it. No device is touched
// here: the translation is tested on the host.

#ifndef ATOLL_KERNELS_CUDA_PRODUCT_H_
#define ATOLL_KERNELS_CUDA_PRODUCT_H_

#include <cstdint>

#include "kernels/ops.h"

namespace atl {

// An operation on the product on its way to memory.
enum class Epilogue : uint8_t {
  kNone,
  kBias,          // d = ab + c + bias
  kGelu,          // aux = ab; d = gelu_tanh(aux)
  kGeluBias,      // aux = ab + bias; d = gelu_tanh(aux)
  kGeluBackward,  // d = ab * gelu_tanh'(aux)
};

// d = op(a) op(b) + c, rows as in kernels/tensor.h: op(a) is [d.rows, depth], op(b) is
// [depth, d.cols]; op transposes where the flag says so. a and b have one type; c has d's.
struct Product {
  Tensor a;
  bool a_transposed = false;
  Tensor b;
  bool b_transposed = false;
  Tensor c;  // optional; may be d
  Tensor d;
  Epilogue epilogue = Epilogue::kNone;
  Tensor bias;  // [1, d.cols], d's type
  Tensor aux;   // [d.rows, d.cols], d's type

  int64_t depth() const { return a_transposed ? a.rows : a.cols; }
};

// The products of linear layers, without epilogues.
Product MakeProduct(const LinearForward& op);  // y = x W^T + add; activation and bias left out
Product MakeProduct(const LinearBackwardInput& op);   // dx = dy W + add, if there is no activation
Product MakeProduct(const LinearBackwardWeight& op);  // dw = dy^T x + dw

// The same with everything that cuBLASLt could fuse; epilogue kNone where it can fuse nothing.
// `bias_gradient`: f32 [1, out] of scratch.
Product MakeFusedProduct(const LinearForward& op);
Product MakeFusedProduct(const LinearBackwardInput& op);

// The arguments of one cublasLtMatmul, whose matrices are column-major: a row-major matrix is its
// own transpose there, so D^T = op(b)^T op(a)^T, with b in A's place. Everything but the pointers
// is what a plan (algorithm) depends on.
struct LtCall {
  struct Matrix {
    DType dtype = DType::kFloat32;
    int64_t rows = 0, cols = 0, stride = 0;  // column-major: stride from column to column
    int alignment = 0;                       // bytes, a power of two up to 256
    bool operator==(const Matrix&) const = default;
  };
  struct Shape {
    bool a_transposed = false, b_transposed = false;
    int64_t m = 0, n = 0, k = 0;
    Matrix a, b, d;  // c is like d
    int c_alignment = 0;
    bool accumulates = false;  // beta = 1
    Epilogue epilogue = Epilogue::kNone;
    int64_t aux_stride = 0;
    bool operator==(const Shape&) const = default;
    uint64_t Hash() const;
  };
  Shape shape;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  int64_t c_stride = 0;  // d's, or cuBLASLt is not used
  void* d = nullptr;
  void* bias = nullptr;
  void* aux = nullptr;
};

LtCall MakeLtCall(const Product& product);

// "product + bias" and the like.
const char* Name(Epilogue epilogue);

// Returns whether an epilogue reads or writes Product::bias, Product::aux.
bool UsesBias(Epilogue epilogue);
bool UsesAux(Epilogue epilogue);

// Returns why cuBLASLt is not used for a call: its documentation says nothing, or that it fails.
// Null if it may be.
const char* WhyNotByLt(const LtCall& call);

}  // namespace atl

#endif  // ATOLL_KERNELS_CUDA_PRODUCT_H_

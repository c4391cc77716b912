#include "kernels/cuda/product.h"

#include <algorithm>

namespace atl {
namespace {

int ComputeAlignment(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<int>(std::min<uintptr_t>(address & -address, 256));
}

LtCall::Matrix ToMatrix(const Tensor& x) {
  // One row: any stride will do, but the library wants one that is not below the rows' length.
  return {x.dtype, x.cols, x.rows, std::max(x.stride, x.cols),
          x.data == nullptr ? 16 : ComputeAlignment(x.data)};
}

}  // namespace

Product MakeProduct(const LinearForward& op) {
  Product p{.a = op.x, .b = op.w, .b_transposed = true, .d = op.y};
  if (op.activation == Activation::kNone) {
    p.c = op.add;
  } else {
    p.d = op.pre;
  }
  return p;
}

Product MakeProduct(const LinearBackwardInput& op) {
  Product p{.a = op.dy, .b = op.w, .d = op.dx};
  if (op.activation == Activation::kNone) p.c = op.add;
  return p;
}

Product MakeProduct(const LinearBackwardWeight& op) {
  return {.a = op.dy, .a_transposed = true, .b = op.x, .c = op.dw, .d = op.dw};
}

Product MakeFusedProduct(const LinearForward& op) {
  Product p = MakeProduct(op);
  p.bias = op.bias;
  if (op.activation == Activation::kNone) {
    if (op.bias.present()) p.epilogue = Epilogue::kBias;
  } else if (op.activation == Activation::kGeluTanh && !op.add.present()) {
    p.d = op.y;
    p.aux = op.pre;
    p.epilogue = op.bias.present() ? Epilogue::kGeluBias : Epilogue::kGelu;
  }
  return p;
}

Product MakeFusedProduct(const LinearBackwardInput& op) {
  Product p = MakeProduct(op);
  if (op.activation == Activation::kGeluTanh && !op.add.present()) {
    p.aux = op.pre;
    p.epilogue = Epilogue::kGeluBackward;
  }
  return p;
}

LtCall MakeLtCall(const Product& p) {
  LtCall call;
  LtCall::Shape& s = call.shape;
  s.a = ToMatrix(p.b);
  s.b = ToMatrix(p.a);
  s.d = ToMatrix(p.d);
  s.a_transposed = p.b_transposed;
  s.b_transposed = p.a_transposed;
  s.m = p.d.cols;
  s.n = p.d.rows;
  s.k = p.depth();
  s.accumulates = p.c.present();
  ATOLL_CHECK(!s.accumulates || p.c.dtype == p.d.dtype);
  // Without c the library reads nothing there but still wants a matrix like d.
  call.c = s.accumulates ? p.c.data : p.d.data;
  call.c_stride = s.accumulates ? std::max(p.c.stride, p.c.cols) : s.d.stride;
  s.c_alignment = call.c == nullptr ? 16 : ComputeAlignment(call.c);
  s.epilogue = p.epilogue;
  s.aux_stride = p.aux.present() ? p.aux.stride : 0;
  call.a = p.b.data;
  call.b = p.a.data;
  call.d = p.d.data;
  call.bias = p.bias.data;
  call.aux = p.aux.data;
  return call;
}

const char* Name(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return "product";
    case Epilogue::kBias:
      return "product + bias";
    case Epilogue::kGelu:
      return "product + GELU";
    case Epilogue::kGeluBias:
      return "product + bias + GELU";
    case Epilogue::kGeluBackward:
      return "product + GELU's derivative";
  }
  return "";
}

bool UsesBias(Epilogue epilogue) {
  return epilogue == Epilogue::kBias || epilogue == Epilogue::kGeluBias;
}

bool UsesAux(Epilogue epilogue) {
  return epilogue == Epilogue::kGelu || epilogue == Epilogue::kGeluBias ||
         epilogue == Epilogue::kGeluBackward;
}

const char* WhyNotByLt(const LtCall& call) {
  const LtCall::Shape& s = call.shape;
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  if (s.n > 1 && call.c_stride != s.d.stride) {
    return "what is added has rows further apart, or nearer, than the result's";
  }
  if (UsesAux(s.epilogue) && s.aux_stride % 8 != 0) {
    return "rows of GELU's argument are not a multiple of 8 elements apart";
  }
  if (UsesAux(s.epilogue) && !aligned(call.aux)) return "GELU's argument is not on 16 bytes";
  // There is no guarantee that epilogues load a bias more narrowly.
  if (UsesBias(s.epilogue) && !aligned(call.bias)) return "the bias is not on 16 bytes";
  return nullptr;
}

uint64_t LtCall::Shape::Hash() const {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  const auto add = [&hash](int64_t x) {
    hash = (hash ^ static_cast<uint64_t>(x)) * 0x100000001b3u;
  };
  const auto add_matrix = [&add](const Matrix& x) {
    for (int64_t field : {static_cast<int64_t>(x.dtype), x.rows, x.cols, x.stride,
                          static_cast<int64_t>(x.alignment)}) {
      add(field);
    }
  };
  for (int64_t field :
       {int64_t{a_transposed}, int64_t{b_transposed}, m, n, k, static_cast<int64_t>(c_alignment),
        int64_t{accumulates}, static_cast<int64_t>(epilogue), aux_stride}) {
    add(field);
  }
  add_matrix(a);
  add_matrix(b);
  add_matrix(d);
  return hash;
}

}  // namespace atl

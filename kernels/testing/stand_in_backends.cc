// Registers what stands in for a GPU where there is none: the reference in bf16, whose results are
// those in fp32 but for rounding, and the CUDA backend's kernels by an emulator, in both types,
// with products in the form for cuBLASLt and by our own kernel. For tests, not benchmarks.

#include "kernels/cuda/testing/emulated.h"
#include "kernels/testing/backends.h"
#include "kernels/testing/reference/reference.h"

namespace atl::testing {
namespace {

const RegisterBackend reference({"reference, bf16", DType::kBfloat16, NewReferenceBackend});
const RegisterBackend exact({"reference, f64", DType::kFloat64, NewReferenceBackend});
const RegisterBackend own({"emulated cuda", DType::kFloat32,
                           [] { return NewEmulatedCudaBackend(false); }});
const RegisterBackend fused({"emulated cuda, fused, bf16", DType::kBfloat16,
                             [] { return NewEmulatedCudaBackend(true); }});
const RegisterBackend own_half({"emulated cuda, bf16", DType::kBfloat16,
                                [] { return NewEmulatedCudaBackend(false); }});
const RegisterBackend fused_full({"emulated cuda, fused", DType::kFloat32,
                                  [] { return NewEmulatedCudaBackend(true); }});

}  // namespace
}  // namespace atl::testing

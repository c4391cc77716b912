// Registers the CPU backend with one thread, and with more threads than some loops have blocks; and
// the reference in bf16, whose results are those in fp32 but for rounding.

#include "kernels/cpu/cpu.h"
#include "kernels/cuda/emulated.h"
#include "kernels/reference/reference.h"
#include "kernels/testing/backends.h"

namespace atl::testing {
namespace {

const RegisterBackend one({"cpu, 1 thread", DType::kFloat32, [] { return NewCpuBackend(1); }});
const RegisterBackend two({"cpu, 2 threads", DType::kFloat32, [] { return NewCpuBackend(2); }});
const RegisterBackend five({"cpu, 5 threads", DType::kFloat32, [] { return NewCpuBackend(5); }});
const RegisterBackend half({"reference, bf16", DType::kBfloat16,
                            [] { return NewReferenceBackend(); }});

// The CUDA backend's kernels by an emulator: in both types, and with products as cuBLASLt would be
// asked for them or by our own kernel.
const RegisterBackend kernels({"emulated cuda", DType::kFloat32,
                               [] { return NewEmulatedCudaBackend(false); }});
const RegisterBackend kernels_half({"emulated cuda, bf16", DType::kBfloat16,
                                    [] { return NewEmulatedCudaBackend(false); }});
const RegisterBackend fused({"emulated cuda, fused", DType::kFloat32,
                             [] { return NewEmulatedCudaBackend(true); }});
const RegisterBackend fused_half({"emulated cuda, fused, bf16", DType::kBfloat16,
                                  [] { return NewEmulatedCudaBackend(true); }});

}  // namespace
}  // namespace atl::testing

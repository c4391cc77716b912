// Registers the CPU backend with one thread, and with more threads than some loops have blocks.

#include "kernels/cpu/cpu.h"
#include "kernels/testing/backends.h"

namespace atl::testing {
namespace {

const RegisterBackend one({"cpu, 1 thread", DType::kFloat32, [] { return NewCpuBackend(1); }});
const RegisterBackend two({"cpu, 2 threads", DType::kFloat32, [] { return NewCpuBackend(2); }});
const RegisterBackend five({"cpu, 5 threads", DType::kFloat32, [] { return NewCpuBackend(5); }});

}  // namespace
}  // namespace atl::testing

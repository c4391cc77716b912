// The class behind NewCpuBackend.

#ifndef ATOLL_KERNELS_CPU_CPU_BACKEND_H_
#define ATOLL_KERNELS_CPU_CPU_BACKEND_H_

#include <algorithm>
#include <string>

#include "common/thread_pool.h"
#include "kernels/host_backend.h"

namespace atl {

// Every operation splits its work into blocks that depend on its shapes alone, and joins partial
// sums in block order: results do not depend on the number of threads.
class CpuBackend : public HostBackend {
 public:
  CpuBackend(int threads, int64_t memory_bytes)
      : HostBackend("the CPU", memory_bytes), pool_(threads) {}

  std::string Name() const override { return "cpu"; }

  using HostBackend::Run;
  using HostBackend::WorkspaceBytes;
#define ATOLL_OPERATION(Op) void Run(Stream&, const Op& op) override;
#define ATOLL_OPERATION_WITH_SCRATCH(Op)                         \
  void Run(Stream&, const Op& op, Workspace workspace) override; \
  int64_t WorkspaceBytes(const Op& op) const override;
#define ATOLL_OPERATION_OF_HOSTS(Op)
  ATOLL_OPERATIONS(ATOLL_OPERATION, ATOLL_OPERATION_WITH_SCRATCH, ATOLL_OPERATION_WITH_SCRATCH,
                   ATOLL_OPERATION_OF_HOSTS)
#undef ATOLL_OPERATION
#undef ATOLL_OPERATION_WITH_SCRATCH
#undef ATOLL_OPERATION_OF_HOSTS

 protected:
  ThreadPool pool_;
};

// ---- How operations cut their work ----

// Elements in a block of an elementwise operation: some tens of microseconds of work.
inline constexpr int64_t kBlockElements = 1 << 14;

inline int64_t Blocks(int64_t size, int64_t block) { return (size + block - 1) / block; }

// Calls body(begin, end) for blocks of rows of `cols` elements each.
template <typename Body>
void ForRowBlocks(ThreadPool& pool, int64_t rows, int64_t cols, const Body& body) {
  const int64_t block = std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, cols));
  pool.For(Blocks(rows, block),
           [&](int64_t i, int) { body(i * block, std::min(rows, (i + 1) * block)); });
}

// Calls body(row, col, n) for runs of n adjacent elements that together cover rows x cols. `flat`:
// all tensors concerned are contiguous, so that runs may cross rows.
template <typename Body>
void ForRuns(ThreadPool& pool, int64_t rows, int64_t cols, bool flat, const Body& body) {
  if (flat) {
    const int64_t size = rows * cols;
    pool.For(Blocks(size, kBlockElements), [&](int64_t i, int) {
      const int64_t begin = i * kBlockElements;
      body(0, begin, std::min(kBlockElements, size - begin));
    });
    return;
  }
  ForRowBlocks(pool, rows, cols, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row, 0, cols);
  });
}

// Returns where element (row, col) of a tensor lies.
inline float* Pointer(const Tensor& x, int64_t row, int64_t col = 0) {
  return x.f32() + row * x.stride + col;
}

// Returns the pointer, null for an absent operand.
inline float* PointerOrNull(const Tensor& x, int64_t row, int64_t col = 0) {
  return x.present() ? Pointer(x, row, col) : nullptr;
}

// The caller's scratch memory as `count` values of T.
template <typename T>
T* Scratch(const Workspace& workspace, int64_t count) {
  const int64_t needed = count * static_cast<int64_t>(sizeof(T));
  ATOLL_CHECK(workspace.bytes >= needed, "a workspace of ", workspace.bytes, " bytes, not ",
              needed);
  return static_cast<T*>(workspace.data);
}

}  // namespace atl

#endif  // ATOLL_KERNELS_CPU_CPU_BACKEND_H_

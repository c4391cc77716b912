// Runs CUDA kernels on the host, for tests: blocks one after the other, the threads of a block as
// fibers that take turns at barriers. What it is strict about: all threads of a block, or all lanes
// of a warp, must meet at the same barrier, and dynamic shared memory starts as NaN. What it cannot
// show: races between barriers, alignment faults, speed. Not for use outside kernels/cuda.

#ifndef ATOLL_KERNELS_CUDA_TESTING_EMULATOR_H_
#define ATOLL_KERNELS_CUDA_TESTING_EMULATOR_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __restrict__

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace atl::emulated {

struct float2 {
  float x, y;
};

// Coordinates of the running thread.
extern constinit thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

// Runs `kernel` for every thread of the grid. REQUIRES: block.y == block.z == 1.
void Emulate(dim3 grid, dim3 block, int64_t shared_bytes, const std::function<void()>& kernel);

void* DynamicShared();
void BlockBarrier();
void WarpBarrier();
// 32 bytes for each lane of the running thread's warp, to hand values over in.
inline constexpr int kSlotBytes = 32;
extern constinit thread_local char* warp_slots;
inline char* LaneSlot(int lane) { return warp_slots + kSlotBytes * lane; }

inline void __syncthreads() { BlockBarrier(); }
inline void __syncwarp() { WarpBarrier(); }

template <int kLanes, typename T, typename Op>
T EmulatedGroupReduce(T x, Op op) {
  const int lane = threadIdx.x % 32, base = lane / kLanes * kLanes;
  std::memcpy(LaneSlot(lane), &x, sizeof(T));
  WarpBarrier();
  T of_lane[kLanes];
  for (int i = 0; i < kLanes; ++i) std::memcpy(&of_lane[i], LaneSlot(base + i), sizeof(T));
  WarpBarrier();
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
    T next[kLanes];
    for (int i = 0; i < kLanes; ++i) next[i] = op(of_lane[i], of_lane[i ^ mask]);
    for (int i = 0; i < kLanes; ++i) of_lane[i] = next[i];
  }
  return of_lane[lane - base];
}

// sum += left * right; see MmaBf16.
inline void EmulatedMma(float (&sum)[4], const unsigned (&left)[4], const unsigned (&right)[2]) {
  const int lane = threadIdx.x % 32;
  std::memcpy(LaneSlot(lane), left, sizeof(left));
  std::memcpy(LaneSlot(lane) + sizeof(left), right, sizeof(right));
  WarpBarrier();
  // Both rows of the left matrix and both columns of the right one that this lane's sums need.
  float rows[2][16], cols[2][16];
  const auto unpack = [](int of_lane, int index, float* to) {
    unsigned word;
    std::memcpy(&word, LaneSlot(of_lane) + 4 * index, 4);
    const unsigned low = word << 16, high = word & 0xffff0000u;
    std::memcpy(&to[0], &low, 4);
    std::memcpy(&to[1], &high, 4);
  };
  for (int side = 0; side < 2; ++side) {
    for (int k = 0; k < 16; k += 2) {
      const int pair = k % 8 / 2;
      unpack(lane / 4 * 4 + pair, side + k / 8 * 2, &rows[side][k]);
      unpack((lane % 4 * 2 + side) * 4 + pair, 4 + k / 8, &cols[side][k]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 16; ++k) sum[i] += rows[i / 2][k] * cols[i % 2][k];
  }
  WarpBarrier();
}

// See LoadTurned.
template <typename Half>
void EmulatedLoadTurned(unsigned (&right)[2], const Half* row) {
  const int lane = threadIdx.x % 32;
  std::memcpy(LaneSlot(lane), &row, sizeof(row));
  WarpBarrier();
  for (int i = 0; i < 2; ++i) {
    right[i] = 0;
    for (int high = 0; high < 2; ++high) {
      const Half* from;
      std::memcpy(&from, LaneSlot(i * 8 + lane % 4 * 2 + high), sizeof(from));
      right[i] |= unsigned{from[lane / 4].bits} << (16 * high);
    }
  }
  WarpBarrier();
}

inline int __ffs(unsigned x) { return __builtin_ffs(static_cast<int>(x)); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }

}  // namespace atl::emulated

#endif  // ATOLL_KERNELS_CUDA_TESTING_EMULATOR_H_

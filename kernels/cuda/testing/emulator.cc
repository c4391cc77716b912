#include "kernels/cuda/testing/emulator.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "common/check.h"

namespace atl::emulated {

constinit thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;
constinit thread_local char* warp_slots = nullptr;

namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr unsigned kWarp = 32;

// One host thread's emulated multiprocessor.
class Machine {
 public:
  void Run(dim3 grid, dim3 block, int64_t shared_bytes, const std::function<void()>& kernel) {
    ATOLL_CHECK(block.y == 1 && block.z == 1 && block.x > 0 && block.x <= 1024);
    kernel_ = &kernel;
    gridDim = grid;
    blockDim = block;
    while (fibers_.size() < block.x) AddFiber();
    for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z) {
      for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
        for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
          shared_.assign(static_cast<size_t>(shared_bytes) + 16, static_cast<char>(0xff));  // NaN
          RunBlock(block.x);
        }
      }
    }
  }

  void Yield(int state) {
    Fiber& fiber = *fibers_[current_];
    fiber.state = state;
    if (_setjmp(fiber.here) == 0) _longjmp(scheduler_, 1);
  }

  void* shared() {
    return shared_.data() + (16 - reinterpret_cast<uintptr_t>(shared_.data()) % 16);
  }

  enum State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

 private:
  struct Fiber {
    ucontext_t context;  // where it starts; from then on _longjmp, which makes no system call
    jmp_buf here;
    bool started = false;
    std::unique_ptr<char[]> stack;
    int state = kReady;
  };

  static void Main(unsigned low, unsigned high) {
    auto* machine = reinterpret_cast<Machine*>(uintptr_t{low} | uintptr_t{high} << 32);
    for (;;) {  // one turn per block
      (*machine->kernel_)();
      machine->Yield(kDone);
    }
  }

  void AddFiber() {
    auto fiber = std::make_unique<Fiber>();
    fiber->stack.reset(new char[kStackBytes]);
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.get();
    fiber->context.uc_stack.ss_size = kStackBytes;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&fiber->context, reinterpret_cast<void (*)()>(&Main), 2,
                static_cast<unsigned>(self), static_cast<unsigned>(self >> 32));
    fibers_.push_back(std::move(fiber));
  }

  // Runs the current fiber until it yields.
  void Resume() {
    Fiber& fiber = *fibers_[current_];
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.started) _longjmp(fiber.here, 1);
    fiber.started = true;
    setcontext(&fiber.context);
  }

  // Runs the ready threads of a warp until all are done or wait for the whole block.
  void RunWarp(unsigned begin, unsigned end) {
    warp_slots = slots_ + begin * kSlotBytes;
    for (;;) {
      unsigned at_warp = 0;
      for (current_ = begin; current_ < end; ++current_) {
        if (fibers_[current_]->state == kReady) {
          threadIdx.x = current_;
          Resume();
        }
        at_warp += fibers_[current_]->state == kAtWarpBarrier;
      }
      if (at_warp == 0) return;
      ATOLL_CHECK(at_warp == end - begin, "only ", at_warp, " of ", end - begin,
                  " lanes reached a warp's barrier");
      for (unsigned i = begin; i < end; ++i) fibers_[i]->state = kReady;
    }
  }

  void RunBlock(unsigned threads) {
    for (unsigned i = 0; i < threads; ++i) fibers_[i]->state = kReady;
    for (;;) {
      unsigned at_barrier = 0;
      for (unsigned warp = 0; warp < threads; warp += kWarp) {
        RunWarp(warp, std::min(warp + kWarp, threads));
      }
      for (unsigned i = 0; i < threads; ++i) at_barrier += fibers_[i]->state == kAtBlockBarrier;
      if (at_barrier == 0) return;
      ATOLL_CHECK(at_barrier == threads, "only ", at_barrier, " of ", threads,
                  " threads reached __syncthreads");
      for (unsigned i = 0; i < threads; ++i) fibers_[i]->state = kReady;
    }
  }

  const std::function<void()>* kernel_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<char> shared_;
  alignas(16) char slots_[1024 * kSlotBytes];
  jmp_buf scheduler_;
  unsigned current_ = 0;
};

thread_local Machine machine;

}  // namespace

void Emulate(dim3 grid, dim3 block, int64_t shared_bytes, const std::function<void()>& kernel) {
  machine.Run(grid, block, shared_bytes, kernel);
}

void* DynamicShared() { return machine.shared(); }
void BlockBarrier() { machine.Yield(Machine::kAtBlockBarrier); }
void WarpBarrier() { machine.Yield(Machine::kAtWarpBarrier); }

}  // namespace atl::emulated

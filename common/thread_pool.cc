#include "common/thread_pool.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "common/check.h"

namespace atl {
namespace {

// A training step is a few hundred loops that follow one another within microseconds: waking a
// sleeping thread each time would cost more than some of the loops. So wait actively for about as
// long as a wake-up takes, and only then sleep.
constexpr int kSpins = 2000;

template <typename Condition>
bool SpinUntil(const Condition& condition) {
  for (int i = 0; i < kSpins; ++i) {
    if (condition()) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  return false;
}

// Flushes denormals to zero on this thread while it exists.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kFlushToZero = 0x8000;
  static constexpr unsigned kDenormalsAreZero = 0x0040;
  unsigned saved_;
#endif
};

}  // namespace

ThreadPool::ThreadPool(int threads) {
  ATOLL_CHECK(threads >= 1, "a pool needs a thread");
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { Work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int64_t blocks, Function function, const void* body) {
  if (workers_.empty() || blocks <= 1) {
    [[maybe_unused]] FlushDenormals flush;
    for (int64_t block = 0; block < blocks; ++block) function(body, block, 0);
    return;
  }
  function_ = function;
  body_ = body;
  blocks_ = blocks;
  next_block_ = 0;
  busy_ = static_cast<int>(workers_.size());
  {
    std::lock_guard lock(mutex_);
    ++round_;
  }
  wake_.notify_all();
  DoBlocks(0);
  const auto finished = [this] { return busy_.load() == 0; };
  if (SpinUntil(finished)) return;
  std::unique_lock lock(mutex_);
  done_.wait(lock, finished);
}

void ThreadPool::Work(int thread) {
  uint64_t seen = 0;
  const auto called = [&] { return stop_.load() || round_.load() != seen; };
  while (true) {
    if (!SpinUntil(called)) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, called);
    }
    if (stop_) return;
    seen = round_;
    DoBlocks(thread);
    if (busy_.fetch_sub(1) == 1) {
      // Taken and released so that Run is either before its check or already waiting.
      { std::lock_guard lock(mutex_); }
      done_.notify_one();
    }
  }
}

void ThreadPool::DoBlocks(int thread) {
  [[maybe_unused]] FlushDenormals flush;
  while (true) {
    const int64_t block = next_block_.fetch_add(1);
    if (block >= blocks_) return;
    function_(body_, block, thread);
  }
}

}  // namespace atl

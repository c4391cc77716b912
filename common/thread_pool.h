// A fixed set of threads for loops over independent blocks.

#ifndef ATOLL_COMMON_THREAD_POOL_H_
#define ATOLL_COMMON_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace atl {

// A pool of `threads` threads, the caller of For among them: a pool of one starts none. Used by one
// thread at a time.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(block, thread) once for every block in [0, blocks), thread in [0, threads()), and
  // returns when all are done. Any thread may get any block: a result that does not depend on
  // `thread` does not depend on the number of threads. body must not call For. Blocks run with
  // denormal numbers flushed to zero: decaying moments would otherwise reach them and crawl.
  template <typename Body>
  void For(int64_t blocks, const Body& body) {
    Run(
        blocks,
        [](const void* b, int64_t block, int thread) {
          (*static_cast<const Body*>(b))(block, thread);
        },
        &body);
  }

 private:
  using Function = void (*)(const void* body, int64_t block, int thread);

  void Run(int64_t blocks, Function function, const void* body);
  void Work(int thread);
  void DoBlocks(int thread);

  // The loop in progress. Written by Run before `round_` grows, read by workers after they saw it.
  Function function_ = nullptr;
  const void* body_ = nullptr;
  int64_t blocks_ = 0;
  std::atomic<int64_t> next_block_{0};

  std::atomic<uint64_t> round_{0};
  std::atomic<int> busy_{0};  // workers that have not finished the round
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // for sleeping only
  std::condition_variable wake_;
  std::condition_variable done_;
  std::vector<std::thread> workers_;
};

// body(0) .. body(count - 1), by the pool's threads, or one after another without a pool.
template <typename Body>
void ForAll(ThreadPool* pool, size_t count, const Body& body) {
  if (pool == nullptr) {
    for (size_t i = 0; i < count; ++i) body(i);
  } else {
    pool->For(static_cast<int64_t>(count), [&](int64_t i, int) { body(static_cast<size_t>(i)); });
  }
}

}  // namespace atl

#endif  // ATOLL_COMMON_THREAD_POOL_H_

// Numbers of windows of measurements. A receiver identifies a repeated window by its number.

#ifndef ATOLL_WORKER_PIPELINE_WINDOWS_H_
#define ATOLL_WORKER_PIPELINE_WINDOWS_H_

#include <atomic>
#include <cstdint>

namespace atl::worker {

// Larger than all before it in this process. For any thread.
inline int64_t NextWindow() {
  static std::atomic<int64_t> last{0};
  return ++last;
}

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_WINDOWS_H_

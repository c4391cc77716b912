// When the messages of one step left this worker and arrived, for traces. Nothing is kept while no
// step is recorded.

#ifndef ATOLL_WORKER_PIPELINE_MESSAGE_LOG_H_
#define ATOLL_WORKER_PIPELINE_MESSAGE_LOG_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "common/time.h"
#include "worker/pipeline/transport.h"

namespace atl::worker {

// All times are this worker's: over the peer link the other end's receipt is taken back by the way
// that it came; by NCCL it has arrived when the sender's stream is done with it.
struct SentMessage {
  std::string from, to;
  MessageTag tag;
  int64_t bytes = 0;
  Instant ready;           // handed over
  Instant start, arrived;  // its first byte left; its last one was there
  bool there = false;      // whether it is known to have arrived
};

// Thread-safe.
class MessageLog {
 public:
  // Forgets what there is and records the messages of this step.
  void Record(int64_t step);
  bool records(int64_t step) const { return step_ == step; }

  // Its place, for OnArrived.
  size_t OnSent(SentMessage message);
  void OnArrived(int64_t step, size_t index, Instant start, Instant arrived);

  // Ends the recording and returns what was sent. Waits until all of it has arrived, or for the
  // deadline.
  std::vector<SentMessage> Take(Instant deadline);

 private:
  std::atomic<int64_t> step_ = -1;
  std::mutex mutex_;
  std::condition_variable arrived_;
  size_t missing_ = 0;                 // guarded by mutex_
  std::vector<SentMessage> messages_;  // guarded by mutex_
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_MESSAGE_LOG_H_

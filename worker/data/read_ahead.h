// Reads the sequences of a next step while one goes on. It guesses that they follow those of this
// step, as they do within a lease; a wrong guess costs the reading.

#ifndef ATOLL_WORKER_DATA_READ_AHEAD_H_
#define ATOLL_WORKER_DATA_READ_AHEAD_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/object_store/http.h"
#include "common/status.h"
#include "worker/work_queue.h"

namespace atl::worker {

class ReadAhead {
 public:
  // Reads as Dataset::ReadTrain does. Called on a thread of its own, too.
  using Reader = std::function<absl::Status(int64_t first, std::span<int32_t> out,
                                            const Cancelled& cancelled)>;
  ~ReadAhead() { Forget(); }

  // Reads a part of a step, or takes what was read of it. The part with the same place in the next
  // step begins at `next`. Of steps with rising numbers; by one thread. Reading ahead ends when
  // `cancelled` says so, which outlives this.
  absl::Status Read(int64_t step, int64_t first, int64_t next, std::span<int32_t> out,
                    const Reader& reader, const Cancelled& cancelled);
  // Ends what is read ahead, and waits for what `cancelled` has to end.
  void Forget();

 private:
  struct Guess {
    int64_t step = 0, first = 0;  // made in this step, of sequences from there on
    std::vector<int32_t> rows;
    // Guarded by mutex_.
    bool begun = false, dropped = false, done = false;
    absl::Status status;
  };

  void Expect(std::shared_ptr<Guess> guess, const Reader& reader, const Cancelled& cancelled);
  // Takes the guess if it is right and under way or there.
  std::shared_ptr<Guess> Take(int64_t step, int64_t first, size_t size);

  int64_t step_ = 0, before_ = 0;  // of the newest Read, and the one before that
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Guess>> guesses_;  // guarded by mutex_
  WorkQueue thread_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_DATA_READ_AHEAD_H_

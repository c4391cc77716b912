#include "worker/data/read_ahead.h"

#include <algorithm>
#include <utility>

namespace atl::worker {

absl::Status ReadAhead::Read(int64_t step, int64_t first, int64_t next, std::span<int32_t> out,
                             const Reader& reader, const Cancelled& cancelled) {
  const std::shared_ptr<Guess> taken = Take(step, first, out.size());
  if (taken != nullptr && taken->status.ok()) {
    std::copy(taken->rows.begin(), taken->rows.end(), out.begin());
  } else {
    ATOLL_RETURN_IF_ERROR(reader(first, out, cancelled));
  }
  auto guess = std::make_shared<Guess>();
  guess->step = step;
  guess->first = next;
  guess->rows.resize(out.size());
  Expect(std::move(guess), reader, cancelled);
  return absl::OkStatus();
}

std::shared_ptr<ReadAhead::Guess> ReadAhead::Take(int64_t step, int64_t first, size_t size) {
  std::unique_lock lock(mutex_);
  if (step != step_) before_ = std::exchange(step_, step);
  std::erase_if(guesses_, [&](const std::shared_ptr<Guess>& guess) {
    guess->dropped = guess->step < before_;
    return guess->dropped;
  });
  const auto found =
      std::find_if(guesses_.begin(), guesses_.end(), [&](const std::shared_ptr<Guess>& guess) {
        return guess->step == before_ && guess->first == first && guess->rows.size() == size;
      });
  if (found == guesses_.end()) return nullptr;
  const std::shared_ptr<Guess> guess = *found;
  guesses_.erase(found);
  guess->dropped = !guess->begun;  // others are before it: it is read sooner here
  if (guess->dropped) return nullptr;
  changed_.wait(lock, [&] { return guess->done; });
  return guess;
}

void ReadAhead::Expect(std::shared_ptr<Guess> guess, const Reader& reader,
                       const Cancelled& cancelled) {
  {
    const std::lock_guard lock(mutex_);
    guesses_.push_back(guess);
  }
  thread_.Add([this, guess, reader, cancelled] {
    {
      const std::lock_guard lock(mutex_);
      if (guess->dropped) return;
      guess->begun = true;
    }
    absl::Status status = reader(guess->first, guess->rows, cancelled);
    const std::lock_guard lock(mutex_);
    guess->status = std::move(status);
    guess->done = true;
    changed_.notify_all();
  });
}

void ReadAhead::Forget() {
  {
    const std::lock_guard lock(mutex_);
    for (const std::shared_ptr<Guess>& guess : guesses_) guess->dropped = true;
    guesses_.clear();
  }
  thread_.Await();
}

}  // namespace atl::worker

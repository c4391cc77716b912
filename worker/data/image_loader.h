// Images of a folder in an object store: each is fetched when it is read, or shortly before, and
// kept in memory from then on. Only what a lease needs is fetched.
//
// Several threads fetch and decode: a request waits longer for the network than for its bytes.

#ifndef ATOLL_WORKER_DATA_IMAGE_LOADER_H_
#define ATOLL_WORKER_DATA_IMAGE_LOADER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/protocol/control.h"
#include "worker/data/image_folder.h"

namespace atl {

// Predicts which positions are read next, from the reads so far: those of a worker that reads whole
// batches follow each other, those of one that shares batches lie a batch apart.
class ReadPattern {
 public:
  static constexpr int64_t kReadsAhead = 4;

  // Positions [first, first + count) are read now; returns those of the next kReadsAhead reads.
  std::vector<PositionRange> Note(int64_t first, int64_t count);

 private:
  int64_t last_ = -1;
  int64_t stride_ = 0;  // 0: not known
};

// Thread-safe.
class ImageLoader {
 public:
  // Images are squares of `side` pixels.
  ImageLoader(std::vector<ImageFolder::File> files, int64_t side);
  ~ImageLoader();  // ends what is under way

  // Returns when `images` are there; `next` are fetched after them, instead of those that the last
  // call expected. An error is that of the first of `images`, in this order, that cannot be read;
  // ABORTED: cancelled.
  absl::Status Load(std::span<const int64_t> images, std::span<const int64_t> next,
                    const Cancelled& cancelled);

  // REQUIRES: Load of the image was OK.
  const uint8_t* pixels(int64_t image) const { return pixels_.get() + image * each_; }
  int64_t images() const { return std::ssize(files_); }
  // Returns a digest of names and entity tags in the listing, which stand for every byte.
  uint64_t Digest() const;

 private:
  enum class State : uint8_t { kAbsent, kLoading, kThere, kFailed };

  void Work(const std::stop_token& stop);
  // The next image to load, or -1. REQUIRES: mutex_ is held.
  int64_t Next();

  const std::vector<ImageFolder::File> files_;
  const int64_t side_, each_;  // pixels of a side; bytes of an image
  // Memory is used only where an image was written.
  const std::unique_ptr<uint8_t[]> pixels_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<State> states_;
  std::map<int64_t, absl::Status> errors_;  // of those that failed
  std::deque<int64_t> wanted_, ahead_;
  std::vector<std::jthread> threads_;  // last: they use the others
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_IMAGE_LOADER_H_

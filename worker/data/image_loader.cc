#include "worker/data/image_loader.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/logging.h"

namespace atl {
namespace {

constexpr int kThreads = 8;
constexpr int64_t kStridesMax = 1024;  // in reads; a longer one is a jump to another lease
constexpr std::chrono::milliseconds kCancelPoll(100);
constexpr int kNice = 10;

// Steps have priority where they compute on the same processors: a step that waits for an image
// leaves its processor to these threads. The name is what tools show.
void BecomeBackground() {
  pthread_setname_np(pthread_self(), "images");
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);  // of this thread alone, on Linux
}

}  // namespace

std::vector<PositionRange> ReadPattern::Note(int64_t first, int64_t count) {
  const int64_t stride = first - last_;
  if (last_ >= 0 && stride >= count && stride <= kStridesMax * count) stride_ = stride;
  last_ = first;
  std::vector<PositionRange> next;
  for (int64_t k = 1; k <= kReadsAhead; ++k) {
    const int64_t begin = first + k * std::max(stride_, count);
    next.push_back({begin, begin + count});
  }
  return next;
}

ImageLoader::ImageLoader(std::vector<ImageFolder::File> files, int64_t side)
    : files_(std::move(files)),
      side_(side),
      each_(side * side * kImageChannels),
      pixels_(
          std::make_unique_for_overwrite<uint8_t[]>(files_.size() * static_cast<size_t>(each_))),
      states_(files_.size(), State::kAbsent) {
  for (int t = 0; t < kThreads; ++t) {
    threads_.emplace_back([this](const std::stop_token& stop) { Work(stop); });
  }
}

ImageLoader::~ImageLoader() {
  for (std::jthread& thread : threads_) thread.request_stop();
}

int64_t ImageLoader::Next() {
  for (std::deque<int64_t>* queue : {&wanted_, &ahead_}) {
    while (!queue->empty()) {
      const int64_t image = queue->front();
      queue->pop_front();
      if (states_[static_cast<size_t>(image)] == State::kAbsent) return image;
    }
  }
  return -1;
}

void ImageLoader::Work(const std::stop_token& stop) {
  BecomeBackground();
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    const int64_t image = Next();
    if (image < 0) {
      changed_.wait(lock, stop, [this] { return !wanted_.empty() || !ahead_.empty(); });
      continue;
    }
    State& state = states_[static_cast<size_t>(image)];
    state = State::kLoading;
    lock.unlock();
    const absl::Status read = ReadImageFile(
        files_[static_cast<size_t>(image)], side_, [&] { return stop.stop_requested(); },
        {pixels_.get() + image * each_, static_cast<size_t>(each_)});
    lock.lock();
    state = read.ok() ? State::kThere : State::kFailed;
    if (!read.ok()) errors_[image] = read;
    changed_.notify_all();
  }
}

absl::Status ImageLoader::Load(std::span<const int64_t> images, std::span<const int64_t> next,
                               const Cancelled& cancelled) {
  const auto start = std::chrono::steady_clock::now();
  bool waited = false;
  std::unique_lock lock(mutex_);
  for (const int64_t image : images) {
    State& state = states_[static_cast<size_t>(image)];
    if (state == State::kFailed) state = State::kAbsent;  // it may go better this time
    if (state == State::kAbsent) wanted_.push_back(image);
  }
  ahead_.assign(next.begin(), next.end());
  if (!wanted_.empty() || !ahead_.empty()) changed_.notify_all();
  for (const int64_t image : images) {
    const State& state = states_[static_cast<size_t>(image)];
    while (state != State::kThere) {
      if (state == State::kFailed) return errors_[image];
      if (cancelled && cancelled()) return absl::AbortedError("reading is interrupted");
      changed_.wait_for(lock, kCancelPoll);
      waited = true;
    }
  }
  if (waited) {
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    LogDebug("data", "waited ", took.count(), " ms for images of ", files_[0].path, " and others");
  }
  return absl::OkStatus();
}

uint64_t ImageLoader::Digest() const {
  std::string facts = absl::StrCat(side_);
  for (const ImageFolder::File& file : files_) {
    absl::StrAppend(&facts, "\n", file.label, " ", file.object.name, " ", file.object.bytes, " ",
                    file.object.tag);
  }
  return XXH3_64bits(facts.data(), facts.size());
}

}  // namespace atl

// Items on their way from one thread that reads them through several that work on them to one that
// takes the results in order. Bounded: the reader waits while too many are under way
// (backpressure). The first error ends everything.

#ifndef ATOLL_WORKER_DATA_ORDERED_EXCHANGE_H_
#define ATOLL_WORKER_DATA_ORDERED_EXCHANGE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"

namespace atl {

// Thread-safe.
template <class Item, class Result>
class OrderedExchange {
 public:
  explicit OrderedExchange(size_t items_max) : items_max_(items_max) {}

  // False: there was an error somewhere.
  bool Offer(Item item) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !status_.ok() || under_way_ < items_max_; });
    if (!status_.ok()) return false;
    ++under_way_;
    waiting_.push_back(std::move(item));
    changed_.notify_all();
    return true;
  }
  void EndOffers() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  // Absent: that was all, or there was an error.
  std::optional<Item> Take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !status_.ok() || ended_ || !waiting_.empty(); });
    if (!status_.ok() || waiting_.empty()) return std::nullopt;
    Item item = std::move(waiting_.front());
    waiting_.pop_front();
    return item;
  }
  // The result of the item that was offered as the one of this number, counted from 0.
  void Give(int64_t number, Result result) {
    const std::lock_guard lock(mutex_);
    done_.emplace(number, std::move(result));
    changed_.notify_all();
  }
  // The next one in order; absent: that was all, or there was an error.
  std::optional<Result> Next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return !status_.ok() || done_.count(next_) > 0 || (ended_ && under_way_ == 0);
    });
    const auto found = done_.find(next_);
    if (!status_.ok() || found == done_.end()) return std::nullopt;
    Result result = std::move(found->second);
    done_.erase(found);
    ++next_;
    --under_way_;
    changed_.notify_all();
    return result;
  }
  void Fail(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
    changed_.notify_all();
  }
  absl::Status status() {
    const std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  const size_t items_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> waiting_;
  std::map<int64_t, Result> done_;
  size_t under_way_ = 0;
  int64_t next_ = 0;
  bool ended_ = false;
  absl::Status status_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_ORDERED_EXCHANGE_H_

// Which way of an endpoint (words.h) led there last. Thread-safe.

#ifndef ATOLL_COMMON_NET_RELAY_LINK_WAYS_H_
#define ATOLL_COMMON_NET_RELAY_LINK_WAYS_H_

#include <cstddef>
#include <map>
#include <mutex>
#include <string>

#include "common/time.h"

namespace atl {

class LinkWays {
 public:
  // Returns the way to begin with: after a while the first one again, which is the best.
  size_t Find(const std::string& endpoint, Instant now) {
    const std::lock_guard lock(mutex_);
    const auto found = found_.find(endpoint);
    return found == found_.end() || now - found->second.at > kKept ? 0 : found->second.way;
  }
  void Note(const std::string& endpoint, size_t way, Instant now) {
    const std::lock_guard lock(mutex_);
    if (found_.size() >= kMost && !found_.contains(endpoint)) found_.clear();
    Found& found = found_[endpoint];
    if (found.way != way || way == 0 || now - found.at > kKept) found = {way, now};
  }

 private:
  static constexpr size_t kMost = 4096;
  static constexpr Duration kKept = std::chrono::minutes(10);
  struct Found {
    size_t way = 0;
    Instant at{};
  };
  std::mutex mutex_;
  std::map<std::string, Found> found_;  // guarded by mutex_
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_RELAY_LINK_WAYS_H_

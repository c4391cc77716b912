// Which way of an endpoint (words.h) led there last, and which addresses lead nowhere. Thread-safe.

#ifndef ATOLL_COMMON_NET_RELAY_LINK_WAYS_H_
#define ATOLL_COMMON_NET_RELAY_LINK_WAYS_H_

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/net/relay/words.h"
#include "common/time.h"

namespace atl {

class LinkWays {
 public:
  // Returns the way to begin with; nothing: the first one, after a while again, which is the best.
  std::optional<LinkWay> Find(const std::string& endpoint, Instant now) {
    const std::lock_guard lock(mutex_);
    const auto found = found_.find(endpoint);
    if (found == found_.end() || now - found->second.at > kKept) return std::nullopt;
    return found->second.way;
  }
  // `first`: it is the endpoint's first one.
  void Note(const std::string& endpoint, const LinkWay& way, bool first, Instant now) {
    const std::lock_guard lock(mutex_);
    if (first) {
      found_.erase(endpoint);
      return;
    }
    if (found_.size() >= kMost && !found_.contains(endpoint)) found_.clear();
    Found& found = found_[endpoint];
    if (found.way != way || now - found.at > kKept) found = {way, now};
  }

  // An address stays unreached until a connection to it is up; the first kUnreachedMost are listed.
  void NoteUnreached(const std::string& address) {
    const std::lock_guard lock(mutex_);
    if (unreached_.size() < kUnreachedMost) unreached_.insert(address);
  }
  void NoteReached(const std::string& address) {
    const std::lock_guard lock(mutex_);
    unreached_.erase(address);
  }
  std::vector<std::string> ListUnreached() const {
    const std::lock_guard lock(mutex_);
    return {unreached_.begin(), unreached_.end()};
  }

 private:
  static constexpr size_t kMost = 4096;
  static constexpr size_t kUnreachedMost = 64;
  static constexpr Duration kKept = std::chrono::minutes(10);
  struct Found {
    LinkWay way;
    Instant at{};
  };
  mutable std::mutex mutex_;
  std::map<std::string, Found> found_;  // guarded by mutex_
  std::set<std::string> unreached_;     // guarded by mutex_
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_RELAY_LINK_WAYS_H_

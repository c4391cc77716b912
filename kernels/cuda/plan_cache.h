// Plans by what they were made for, at most `capacity` of them: the one that was used longest ago
// makes room. A training step requests the same few dozen shapes again and again.

#ifndef ATOLL_KERNELS_CUDA_PLAN_CACHE_H_
#define ATOLL_KERNELS_CUDA_PLAN_CACHE_H_

#include <list>
#include <unordered_map>
#include <utility>

#include "common/check.h"

namespace atl {

// Key has operator== and Hash(). Used by one thread at a time.
template <typename Key, typename Plan>
class PlanCache {
 public:
  explicit PlanCache(size_t capacity) : capacity_(capacity) { ATOLL_CHECK(capacity > 0); }

  // The key's plan, made by make() if there is none. The reference is good until the next call.
  template <typename Make>
  Plan& Get(const Key& key, const Make& make) {
    const auto found = index_.find(key);
    if (found != index_.end()) {
      used_.splice(used_.begin(), used_, found->second);
      return used_.front().second;
    }
    if (used_.size() == capacity_) {
      index_.erase(used_.back().first);
      used_.pop_back();
    }
    used_.emplace_front(key, make());
    index_[key] = used_.begin();
    return used_.front().second;
  }

  size_t size() const { return used_.size(); }

 private:
  struct HashKey {
    size_t operator()(const Key& key) const { return key.Hash(); }
  };

  const size_t capacity_;
  std::list<std::pair<Key, Plan>> used_;  // the latest first
  std::unordered_map<Key, typename std::list<std::pair<Key, Plan>>::iterator, HashKey> index_;
};

}  // namespace atl

#endif  // ATOLL_KERNELS_CUDA_PLAN_CACHE_H_

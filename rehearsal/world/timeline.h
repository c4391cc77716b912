// Virtual time: a queue of things that will happen, run in order. Nothing here waits.
//
// Events at the same instant run in the order in which they were scheduled, so one seed gives one
// history.

#ifndef ATOLL_REHEARSAL_WORLD_TIMELINE_H_
#define ATOLL_REHEARSAL_WORLD_TIMELINE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "common/check.h"
#include "common/time.h"

namespace atl::rehearsal {

class Timeline {
 public:
  using Action = std::function<void()>;
  using Key = std::pair<Instant, int64_t>;

  Instant now() const { return now_; }
  bool empty() const { return events_.empty(); }
  int64_t events_run() const { return events_run_; }

  Key At(Instant when, Action action) {
    ATOLL_CHECK(when >= now_);
    const Key key(when, next_order_++);
    events_.emplace(key, std::move(action));
    return key;
  }
  void After(Duration delay, Action action) { At(now_ + delay, std::move(action)); }
  // It does not happen; what has happened stays.
  void Cancel(const Key& key) { events_.erase(key); }

  // When the next event is. REQUIRES: !empty().
  Instant next() const { return events_.begin()->first.first; }

  // Runs the next event. REQUIRES: !empty().
  void RunOne() {
    auto node = events_.extract(events_.begin());
    now_ = node.key().first;
    ++events_run_;
    node.mapped()();
  }

 private:
  Instant now_{};
  int64_t next_order_ = 1;
  int64_t events_run_ = 0;
  std::map<Key, Action> events_;
};

}  // namespace atl::rehearsal

#endif  // ATOLL_REHEARSAL_WORLD_TIMELINE_H_

// The simulator's agenda: a binary heap ordered by time, then by the order of the calls.

#ifndef ATOLL_COORDINATOR_SIMULATOR_EVENT_QUEUE_H_
#define ATOLL_COORDINATOR_SIMULATOR_EVENT_QUEUE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "coordinator/simulator/network.h"

namespace atl::sim {

enum class EventKind : uint32_t {
  kOpDone,    // token: device
  kArrive,    // token: message token
  kSent,      // token: device, which sends no longer
  kLinkFree,  // token: link
  kLaneFree,  // token: lane
};

struct Event {
  Nanos time_ns = 0;
  uint32_t sequence = 0;
  EventKind kind = EventKind::kOpDone;
  uint64_t token = 0;
};

class EventQueue {
 public:
  void Push(Nanos time_ns, EventKind kind, uint64_t token) {
    heap_.push_back({time_ns, next_++, kind, token});
    std::push_heap(heap_.begin(), heap_.end(), Later());
  }

  Event Pop() {
    std::pop_heap(heap_.begin(), heap_.end(), Later());
    const Event event = heap_.back();
    heap_.pop_back();
    return event;
  }

  bool empty() const { return heap_.empty(); }
  Nanos NextTime() const { return heap_.front().time_ns; }

 private:
  struct Later {  // a type of its own, so that the heap's functions have it inline
    bool operator()(const Event& a, const Event& b) const {
      return a.time_ns != b.time_ns ? a.time_ns > b.time_ns : a.sequence > b.sequence;
    }
  };

  std::vector<Event> heap_;
  uint32_t next_ = 0;
};

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_EVENT_QUEUE_H_

// Carries messages over the network of a problem during one simulation. Internal to the simulator.
//
// Links that share nothing are served at once, by reservation. Links on trunks or lanes wait in
// order.

#ifndef ATOLL_COORDINATOR_SIMULATOR_TRANSPORT_H_
#define ATOLL_COORDINATOR_SIMULATOR_TRANSPORT_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "coordinator/simulator/network.h"
#include "coordinator/simulator/simulate.h"

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

// The agenda: a binary heap ordered by time, then by the order of the calls.
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

class Transport {
 public:
  // `network` and `events` outlive the transport; `record`, if any, receives one span per message.
  Transport(const Network& network, EventQueue& events, std::vector<MessageSpan>* record);

  // Takes a message. It arrives as an event kArrive with `token`. `send_priority` orders
  // round-robin lanes (lower first). `span` names the message in the record.
  void Send(Nanos now, int link, int64_t bytes, uint64_t token, uint64_t send_priority,
            const MessageSpan& span);

  // The events kLinkFree and kLaneFree belong here.
  void Handle(Nanos now, const Event& event);

  // Call when everything that happens at `now` has been handled.
  void EndOfInstant(Nanos now);

 private:
  struct Waiting {
    uint64_t send_priority = 0;
    uint64_t sequence = 0;
    int link = 0;
    double bytes = 0;
    uint64_t token = 0;
    int record = -1;
  };
  enum class Service { kPrivate, kPrivateSplit, kQueued, kLane };
  struct LinkState {
    Service service = Service::kPrivate;
    double bytes_per_ns = 0;
    Nanos free_ns = 0;
    bool busy = false;
    std::vector<Nanos> edge_free_ns;
    std::vector<Waiting> queue;
    size_t head = 0;
  };
  struct LaneState {
    bool busy = false;
    bool dirty = false;
    std::vector<Waiting> heap;
  };

  // A message's way over its link.
  struct Transfer {
    Nanos start_ns = 0;
    Nanos sent_ns = 0;
    Nanos arrive_ns = 0;
    std::vector<double> bytes;   // several edges: by edge
    std::vector<Nanos> left_ns;  // when each is free again
  };

  void Start(Nanos now, const Waiting& message);
  Transfer Plan(Nanos now, const Waiting& message) const;
  Transfer PlanSplit(Nanos now, const Waiting& message) const;
  void Commit(const Transfer& transfer, const Waiting& message);
  struct Later {
    bool operator()(const Waiting& a, const Waiting& b) const {
      return std::pair(a.send_priority, a.sequence) > std::pair(b.send_priority, b.sequence);
    }
  };
  void Sent(Nanos sent_ns, Nanos arrive_ns, const Waiting& message);
  void Release(Nanos sent_ns, int link);
  void StartNext(Nanos now, int link);
  void StartLane(Nanos now, int lane);
  double TrunkRate(int trunk, Nanos now) const;
  Nanos Serialise(const Edge& edge, Nanos start_ns, double bytes) const;

  const Network& network_;
  EventQueue& events_;
  std::vector<MessageSpan>* record_;
  std::vector<LinkState> links_;
  std::vector<LaneState> lanes_;
  std::vector<int> dirty_lanes_;
  std::vector<Nanos> trunk_free_ns_;
  uint64_t next_sequence_ = 0;
};

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_TRANSPORT_H_

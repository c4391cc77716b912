// A network that loses, repeats, delays and reorders, by one seed.
//
// Nodes are names. What is sent is a closure that delivers; the closure checks whether the
// addressee is still up by then.

#ifndef ATOLL_TESTS_SIM_NETWORK_H_
#define ATOLL_TESTS_SIM_NETWORK_H_

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "common/rng.h"
#include "common/time.h"
#include "rehearsal/world/timeline.h"

namespace atl::sim {

using rehearsal::Timeline;

struct NetworkFaults {
  double drop = 0;       // probability that a message is lost
  double duplicate = 0;  // probability that it arrives twice
  Duration delay_min = std::chrono::microseconds(200);
  Duration delay_max = std::chrono::milliseconds(5);  // messages overtake each other within this
  double slow = 0;                                    // probability of a delay of up to slow_delay
  Duration slow_delay = std::chrono::seconds(3);
};

class LossyNetwork {
 public:
  LossyNetwork(Timeline* timeline, Rng* rng) : timeline_(*timeline), rng_(*rng) {}

  void SetFaults(const NetworkFaults& faults) { faults_ = faults; }

  // Cuts a node off, or joins it again.
  void Isolate(const std::string& node) { isolated_.insert(node); }
  void Rejoin(const std::string& node) { isolated_.erase(node); }
  void RejoinAll() { isolated_.clear(); }
  bool IsReachable(const std::string& a, const std::string& b) const {
    return !isolated_.contains(a) && !isolated_.contains(b);
  }

  void Send(const std::string& from, const std::string& to, Timeline::Action deliver) {
    ++sent_;
    if (!IsReachable(from, to) || rng_.Chance(faults_.drop)) {
      ++lost_;
      return;
    }
    if (rng_.Chance(faults_.duplicate)) timeline_.After(Delay(), deliver);
    timeline_.After(Delay(), std::move(deliver));
  }

  int64_t sent() const { return sent_; }
  int64_t lost() const { return lost_; }

 private:
  Duration Delay() {
    if (rng_.Chance(faults_.slow)) return Between(faults_.delay_min, faults_.slow_delay);
    return Between(faults_.delay_min, faults_.delay_max);
  }
  Duration Between(Duration low, Duration high) {
    return low + Duration(rng_.Below(static_cast<uint64_t>((high - low).count()) + 1));
  }

  Timeline& timeline_;
  Rng& rng_;
  NetworkFaults faults_;
  std::set<std::string> isolated_;
  int64_t sent_ = 0;
  int64_t lost_ = 0;
};

}  // namespace atl::sim

#endif  // ATOLL_TESTS_SIM_NETWORK_H_

// The send order on a slow line that several senders share (algorithms: JEEVES's coordination of
// replicas). Pure: events in, turns out.
//
// One worker keeps the order of one direction of a line for all that send over it. A message (or a
// chunk of one) is announced when it is ready. One at a time gets the turn: the first in the order
// of the plan among those that are ready, at once when the line is free; when its last byte has
// left, the next one. A message that is not ready is skipped and goes later, so nothing here can
// block: an announced message goes as soon as all before it have left, or have timed out after
// `patience`.
//
//   order.Ready(w1, a);      Next: a goes     order.Left(w1, a);    Next: b goes
//   order.Ready(w2, b);      Next: none       order.Left(w2, b);    Next: none

#ifndef ATOLL_WORKER_ISLAND_LINE_ORDER_H_
#define ATOLL_WORKER_ISLAND_LINE_ORDER_H_

#include <compare>
#include <cstdint>
#include <map>
#include <optional>

#include "common/ids.h"
#include "common/time.h"

namespace atl::worker {

// What goes at once: by step, place in the plan's order, rank and chunk.
struct LinePart {
  int64_t step = 0;
  int32_t place = 0;
  int32_t rank = 0;
  int32_t chunk = 0;

  auto operator<=>(const LinePart&) const = default;
};

class LineOrder {
 public:
  static constexpr size_t kReadyMax = size_t{1} << 16;

  struct Turn {
    NodeId worker;
    LinePart part;

    bool operator==(const Turn&) const = default;
  };

  explicit LineOrder(Duration patience) : patience_(patience) {}

  // False: nothing is taken, since too much waits already or this part does.
  bool Ready(const NodeId& worker, const LinePart& part);
  // The part's last byte has left, or it will never go. Also of a part that had no turn.
  void Left(const NodeId& worker, const LinePart& part);

  // The part that gets the turn now. Call it after each of the above and at the deadline: then the
  // holder of the turn has been silent for too long, and the next one goes.
  std::optional<Turn> Next(Instant now);
  std::optional<Instant> deadline() const;

  size_t ready() const { return ready_.size(); }

 private:
  struct Going {
    Turn turn;
    Instant until;
  };

  Duration patience_;
  std::map<LinePart, NodeId> ready_;
  std::optional<Going> going_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_LINE_ORDER_H_

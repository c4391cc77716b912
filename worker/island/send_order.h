// The send order on a slow link that several senders share (algorithms: JEEVES's coordination of
// replicas). Pure: events in, grants out.
//
// One worker keeps the order of one direction of a link for all that send over it. A message (or a
// chunk of one) is announced when it is ready. One at a time gets a grant: the first in the order
// of the plan among those that are ready, at once when the link is free; when its last byte has
// left, the next one. A message that is not ready is skipped and goes later, so nothing here can
// block: an announced message goes as soon as all before it have left, or have timed out after
// `patience`.
//
//   order.Ready(w1, a);      Next: a goes     order.Left(w1, a);    Next: b goes
//   order.Ready(w2, b);      Next: none       order.Left(w2, b);    Next: none

#ifndef ATOLL_WORKER_ISLAND_SEND_ORDER_H_
#define ATOLL_WORKER_ISLAND_SEND_ORDER_H_

#include <map>
#include <optional>

#include "common/ids.h"
#include "common/time.h"
#include "proto/group.plain.h"

namespace atl::worker {

class SendOrder {
 public:
  static constexpr size_t kReadyMax = size_t{1} << 16;

  struct Grant {
    NodeId worker;
    SendPart part;

    bool operator==(const Grant&) const = default;
  };

  explicit SendOrder(Duration patience) : patience_(patience) {}

  // False: nothing is taken, since too much waits already or this part does.
  bool Ready(const NodeId& worker, const SendPart& part);
  // The part's last byte has left, or it will never go. Also of a part that had no grant.
  void Left(const NodeId& worker, const SendPart& part);

  // The part that is granted now. Call it after each of the above and at the deadline: then the
  // holder of the grant has been silent for too long, and the next one goes.
  std::optional<Grant> Next(Instant now);
  std::optional<Instant> deadline() const;

  size_t ready() const { return ready_.size(); }

 private:
  struct Outstanding {
    Grant grant;
    Instant until;
  };

  Duration patience_;
  std::map<SendPart, NodeId> ready_;
  std::optional<Outstanding> outstanding_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_SEND_ORDER_H_

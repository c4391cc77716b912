// The order in which a simulated step used what several senders share, for a runtime that keeps it.
//
// A link that more than one chunk's messages take, every lane and every exclusive trunk gets one
// order: its messages by the moment their first byte left. Fair trunks carry messages side by side
// and have no order; of a link with several edges it is not recorded which carried a message, so
// its trunks get none of it.

#ifndef ATOLL_COORDINATOR_SIMULATOR_LINK_ORDERS_H_
#define ATOLL_COORDINATOR_SIMULATOR_LINK_ORDERS_H_

#include <vector>

#include "coordinator/simulator/problem.h"
#include "coordinator/simulator/simulate.h"

namespace atl::sim {

struct OrderedMessage {
  int replica = 0;  // Pipeline::replica
  int stage = 0;    // the sending chunk, counted within its pipeline
  int micro_batch = 0;
  bool gradient = false;  // false: an activation

  bool operator==(const OrderedMessage&) const = default;
};

struct LinkOrder {
  enum class On { kLink, kLane, kTrunk } on = On::kLink;
  int index = 0;  // into the network's links, lanes or trunks
  std::vector<OrderedMessage> messages;
};

// Links first, then lanes, then trunks, by rising index; what carried no message is left out.
// REQUIRES: `result` was recorded (Options::record) while this problem was simulated.
std::vector<LinkOrder> LinkOrders(const Problem& problem, const Result& result);

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_LINK_ORDERS_H_

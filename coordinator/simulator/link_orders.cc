#include "coordinator/simulator/link_orders.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace atl::sim {

std::vector<LinkOrder> LinkOrders(const Problem& problem, const Result& result) {
  std::vector<const MessageSpan*> by_start;
  for (const MessageSpan& message : result.messages) by_start.push_back(&message);
  std::stable_sort(by_start.begin(), by_start.end(),
                   [](const MessageSpan* a, const MessageSpan* b) {
                     return std::pair(a->start_ns, a->sent_ns) < std::pair(b->start_ns, b->sent_ns);
                   });
  std::vector<std::set<std::pair<int, bool>>> senders(problem.network.links.size());
  for (const MessageSpan& message : result.messages) {
    senders[message.link].insert({message.chunk, message.forward});
  }
  const std::vector<int> pipeline_of = MapChunksToPipelines(problem);
  std::map<std::pair<LinkOrder::On, int>, LinkOrder> orders;
  for (const MessageSpan* message : by_start) {
    const Pipeline& pipeline = problem.pipelines[pipeline_of[message->chunk]];
    const OrderedMessage ordered{pipeline.replica, message->chunk - pipeline.first_chunk,
                                 message->micro_batch, !message->forward};
    const auto add = [&](LinkOrder::On on, int index) {
      LinkOrder& order = orders[{on, index}];
      order.on = on;
      order.index = index;
      order.messages.push_back(ordered);
    };
    const Link& link = problem.network.links[message->link];
    if (senders[message->link].size() > 1) add(LinkOrder::On::kLink, message->link);
    if (link.lane >= 0) add(LinkOrder::On::kLane, link.lane);
    if (link.edges.size() > 1) continue;  // which of several edges carried it is not recorded
    for (const int trunk : link.edges[0].trunks) {
      if (problem.network.trunks[trunk].sharing == Sharing::kExclusive) {
        add(LinkOrder::On::kTrunk, trunk);
      }
    }
  }
  std::vector<LinkOrder> list;
  for (auto& [key, order] : orders) list.push_back(std::move(order));
  return list;
}

}  // namespace atl::sim

#include "coordinator/plan_io/link_orders.h"

#include <algorithm>
#include <set>

#include "coordinator/planner/together.h"
#include "coordinator/simulator/link_orders.h"

namespace atl {
namespace {

// How long the link is busy with a message, of those that take longest.
sim::Nanos LongestMessageTime(const sim::Problem& problem, int lane) {
  sim::Nanos longest = 0;
  const auto add = [&](int link, int64_t bytes) {
    if (link == sim::kNoLink || problem.network.links[link].lane != lane) return;
    longest =
        std::max(longest, sim::AloneSerialNs(problem.network, problem.network.links[link], bytes));
  };
  for (const sim::Chunk& chunk : problem.chunks) {
    add(chunk.forward_link, chunk.forward_bytes);
    add(chunk.backward_link, chunk.backward_bytes);
  }
  return longest;
}

}  // namespace

std::vector<PlanLinkOrder> ComputeSendOrders(const plan::Cluster& cluster, const plan::Plan& plan) {
  const plan::Together all = plan::PutTogether(cluster, plan.layout, plan.outcome);
  std::vector<PlanLinkOrder> orders;
  if (all.lanes.empty()) return orders;
  const sim::Result played = sim::SimulateUnchecked(all.problem, all.schedule, {.record = true});
  for (const sim::LinkOrder& lane : sim::LinkOrders(all.problem, played)) {
    if (lane.on != sim::LinkOrder::On::kLane) continue;
    const plan::LinkSharing::Id& id = all.lanes[lane.index];
    if (id.IsCard()) continue;  // one worker's messages, which leave as it sends them
    std::set<PlanMessage> stage_links;
    PlanLinkOrder order{id.from_site, id.to_site, {}};
    for (const sim::OrderedMessage& message : lane.messages) {
      order.messages.push_back(
          {message.replica, message.stage, message.micro_batch, message.gradient});
      stage_links.insert({message.replica, message.stage, 0, message.gradient});
    }
    if (stage_links.size() < 2 || LongestMessageTime(all.problem, lane.index) < kMinMessageTime)
      continue;
    orders.push_back(std::move(order));
  }
  return orders;
}

}  // namespace atl

#include <algorithm>
#include <set>
#include <utility>

#include "coordinator/plan_io/island_plan_conversion.h"
#include "coordinator/planner/replica_problem.h"
#include "coordinator/simulator/simulate.h"

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
  if (all.lanes.empty()) return {};
  const sim::Result played = sim::SimulateUnchecked(all.problem, all.schedule, {.record = true});
  std::vector<const sim::MessageSpan*> by_start;
  for (const sim::MessageSpan& message : played.messages) by_start.push_back(&message);
  std::ranges::stable_sort(by_start, [](const sim::MessageSpan* a, const sim::MessageSpan* b) {
    return std::pair(a->start_ns, a->sent_ns) < std::pair(b->start_ns, b->sent_ns);
  });
  const std::vector<int> pipeline_of = sim::MapChunksToPipelines(all.problem);
  std::vector<std::vector<PlanMessage>> by_lane(all.lanes.size());
  for (const sim::MessageSpan* message : by_start) {
    const int lane = all.problem.network.links[message->link].lane;
    if (lane < 0) continue;
    const sim::Pipeline& pipeline = all.problem.pipelines[pipeline_of[message->chunk]];
    by_lane[lane].push_back({pipeline.replica, message->chunk - pipeline.first_chunk,
                             message->micro_batch, !message->forward});
  }
  std::vector<PlanLinkOrder> orders;
  for (size_t lane = 0; lane < by_lane.size(); ++lane) {
    const auto& [from, to] = all.lanes[lane];
    if (from == to) continue;  // a card: one worker's messages, which leave as it sends them
    std::set<PlanMessage> stage_links;
    for (const PlanMessage& message : by_lane[lane]) {
      stage_links.insert({message.replica, message.stage, 0, message.gradient});
    }
    if (stage_links.size() < 2 ||
        LongestMessageTime(all.problem, static_cast<int>(lane)) < kMinMessageTime) {
      continue;
    }
    orders.push_back({from, to, std::move(by_lane[lane])});
  }
  return orders;
}

}  // namespace atl

#include "coordinator/plan_io/link_orders.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace atl {
namespace {

struct Sent {
  sim::Nanos start_ns = 0;
  int micro_batch = 0;
  int replica = 0;
  int stage = 0;
  bool gradient = false;

  bool operator<(const Sent& o) const {
    return std::tie(start_ns, micro_batch, replica, stage, gradient) <
           std::tie(o.start_ns, o.micro_batch, o.replica, o.stage, o.gradient);
  }
};

using Ends = std::pair<std::string, std::string>;

}  // namespace

std::vector<v1::LinkOrder> LinkOrdersOf(const plan::Cluster& cluster, const plan::Plan& plan) {
  std::map<Ends, std::vector<Sent>> between_sites;
  std::map<Ends, std::vector<Sent>> between_devices;
  for (const plan::ReplicaOutcome& kind : plan.outcome.kinds) {
    const sim::Result played =
        sim::SimulateUnchecked(kind.problem, kind.found.schedule, {.record = true});
    for (const sim::MessageSpan& message : played.messages) {
      const int to = message.chunk + (message.forward ? 1 : -1);
      for (const int r : kind.replicas) {
        const std::vector<plan::Stage>& stages = plan.layout.replicas[r].stages;
        const plan::Device& a = cluster.devices[stages[message.chunk].devices[0]];
        const plan::Device& b = cluster.devices[stages[to].devices[0]];
        const Sent sent{message.start_ns, message.micro_batch, r, message.chunk, !message.forward};
        if (a.site != b.site) {
          between_sites[{a.site, b.site}].push_back(sent);
        } else {
          between_devices[{a.id, b.id}].push_back(sent);
        }
      }
    }
  }
  for (auto& [ends, messages] : between_devices) {
    std::set<std::pair<int, bool>> senders;
    for (const Sent& sent : messages) senders.insert({sent.stage, sent.gradient});
    if (senders.size() > 1) between_sites.emplace(ends, std::move(messages));
  }
  std::vector<v1::LinkOrder> orders;
  for (auto& [ends, messages] : between_sites) {
    std::sort(messages.begin(), messages.end());
    v1::LinkOrder& order = orders.emplace_back();
    order.set_from(ends.first);
    order.set_to(ends.second);
    for (const Sent& sent : messages) {
      v1::LinkMessage* message = order.add_messages();
      message->set_replica(sent.replica);
      message->set_stage(sent.stage);
      message->set_micro_batch(sent.micro_batch);
      message->set_gradient(sent.gradient);
    }
  }
  return orders;
}

}  // namespace atl

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/planning/planning.h"

namespace atl {
namespace {

constexpr double kLikeTimes = 1.05;
constexpr double kLikeLinks = 1.25;
constexpr int64_t kSameLatencyNs = 50'000;  // a queue between two threads differs by so much

bool IsNear(double a, double b, double ratio) {
  return a == b || (a > 0 && b > 0 && std::max(a, b) <= ratio * std::min(a, b));
}

bool IsNear(int64_t a, int64_t b) {
  return IsNear(static_cast<double>(a), static_cast<double>(b), kLikeTimes);
}

bool IsLike(const DeviceInfo& a, const DeviceInfo& b) {
  return a.kind == b.kind && a.threads == b.threads && a.compute == b.compute && a.nccl == b.nccl &&
         a.price_per_hour == b.price_per_hour && a.egress_price_per_gb == b.egress_price_per_gb &&
         IsNear(a.memory_bytes, b.memory_bytes) && IsNear(a.host_memory_bytes, b.host_memory_bytes);
}

bool IsLike(const LayerCost& a, const LayerCost& b) {
  return a.kind == b.kind && a.tensor_parallel == b.tensor_parallel &&
         a.micro_batch_sequences == b.micro_batch_sequences && IsNear(a.forward_ns, b.forward_ns) &&
         IsNear(a.input_gradient_ns, b.input_gradient_ns) &&
         IsNear(a.weight_gradient_ns, b.weight_gradient_ns) &&
         IsNear(a.optimizer_ns, b.optimizer_ns) && a.parameter_bytes == b.parameter_bytes &&
         a.stash_bytes == b.stash_bytes && a.backward_stash_bytes == b.backward_stash_bytes &&
         a.output_bytes == b.output_bytes && a.workspace_bytes == b.workspace_bytes;
}

bool IsLike(const DeviceProfile& a, const DeviceProfile& b) {
  return IndexFromDevice(a.device) == IndexFromDevice(b.device) &&
         std::equal(a.layers.begin(), a.layers.end(), b.layers.begin(), b.layers.end(),
                    [](const LayerCost& x, const LayerCost& y) { return IsLike(x, y); });
}

bool IsLike(const PlanMember& a, const PlanMember& b) {
  return a.site.empty() == b.site.empty() &&
         a.member.public_key.empty() == b.member.public_key.empty() &&
         a.member.more_endpoints.size() == b.member.more_endpoints.size() &&
         std::equal(a.devices.begin(), a.devices.end(), b.devices.begin(), b.devices.end(),
                    [](const DeviceInfo& x, const DeviceInfo& y) { return IsLike(x, y); }) &&
         std::equal(a.profiles.begin(), a.profiles.end(), b.profiles.begin(), b.profiles.end(),
                    [](const DeviceProfile& x, const DeviceProfile& y) { return IsLike(x, y); });
}

// Returns for each member the first one of its site.
std::vector<size_t> SitePattern(const PlanRequest& request) {
  std::map<std::string, size_t> first;
  std::vector<size_t> pattern;
  for (size_t m = 0; m < request.members.size(); ++m) {
    pattern.push_back(first.try_emplace(request.members[m].site, m).first->second);
  }
  return pattern;
}

std::map<NodeId, size_t> IndexRequestMembers(const PlanRequest& request) {
  std::map<NodeId, size_t> index;
  for (size_t m = 0; m < request.members.size(); ++m) index[request.members[m].member.worker] = m;
  return index;
}

// Which layers each device, by its member's index in the request and its own index, has of the plan
// that ran last.
std::map<std::pair<size_t, int>, std::vector<std::pair<int32_t, int32_t>>> HoldingsByMember(
    const PlanRequest& request) {
  const std::map<NodeId, size_t> index = IndexRequestMembers(request);
  std::map<std::pair<size_t, int>, std::vector<std::pair<int32_t, int32_t>>> held;
  for (const PlanReplica& replica : request.ran) {
    for (const PlanStage& stage : replica.stages) {
      for (const std::string& device : stage.devices) {
        const auto holder = index.find(WorkerFromDevice(device));
        if (holder == index.end()) continue;
        held[{holder->second, IndexFromDevice(device)}].push_back(
            {stage.first_layer, stage.layers});
      }
    }
  }
  return held;
}

// The links by their members' indices in the request, in order.
std::vector<std::pair<std::pair<size_t, size_t>, const LinkProfile*>> LinksByMember(
    const PlanRequest& request) {
  const std::map<NodeId, size_t> index = IndexRequestMembers(request);
  std::vector<std::pair<std::pair<size_t, size_t>, const LinkProfile*>> links;
  for (const LinkProfile& link : request.links) {
    const auto from = index.find(link.from), to = index.find(link.to);
    if (from == index.end() || to == index.end()) continue;
    links.push_back({{from->second, to->second}, &link});
  }
  std::sort(links.begin(), links.end());
  return links;
}

bool AreLinksAlike(const PlanRequest& a, const PlanRequest& b) {
  const auto ours = LinksByMember(a), theirs = LinksByMember(b);
  return std::equal(
      ours.begin(), ours.end(), theirs.begin(), theirs.end(), [](const auto& x, const auto& y) {
        const LinkProfile &one = *x.second, &other = *y.second;
        const auto [least, most] = std::minmax(one.latency_ns, other.latency_ns);
        const bool latency =
            most - least <= kSameLatencyNs ||
            IsNear(static_cast<double>(least), static_cast<double>(most), kLikeLinks);
        return x.first == y.first && latency &&
               IsNear(one.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s, kLikeLinks);
      });
}

}  // namespace

bool AreAlike(const PlanRequest& a, const PlanRequest& b) {
  return a.members.size() == b.members.size() && !a.members.empty() && a.islands == b.islands &&
         (a.number == 1) == (b.number == 1) && a.seed == b.seed &&
         a.improvements == b.improvements && a.unreachable.empty() && b.unreachable.empty() &&
         a.links.size() == b.links.size() && a.spec.layout.plan.empty() && a.spec == b.spec &&
         a.facts == b.facts &&
         std::equal(a.members.begin(), a.members.end(), b.members.begin(),
                    [](const PlanMember& x, const PlanMember& y) { return IsLike(x, y); }) &&
         SitePattern(a) == SitePattern(b) && HoldingsByMember(a) == HoldingsByMember(b) &&
         AreLinksAlike(a, b);
}

}  // namespace atl

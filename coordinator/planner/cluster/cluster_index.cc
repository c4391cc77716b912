#include "coordinator/planner/cluster/cluster_index.h"

#include <map>
#include <string>
#include <utility>

namespace atl::plan {

ClusterIndex::ClusterIndex(const Cluster& cluster) : cluster_(cluster) {
  std::map<std::string, int> sites;
  std::map<std::pair<int, std::string>, int> nodes;
  const Device* before = nullptr;
  for (size_t d = 0; d < cluster.devices.size(); ++d) {
    const Device& device = cluster.devices[d];
    Location location = locations_.empty() ? Location{} : locations_.back();
    if (before == nullptr || device.site != before->site || device.node != before->node) {
      location.site = sites.try_emplace(device.site, static_cast<int>(sites.size())).first->second;
      location.node =
          nodes.try_emplace({location.site, device.node}, static_cast<int>(nodes.size()))
              .first->second;
    }
    locations_.push_back(location);
    if (location.node == std::ssize(cards_)) {
      cards_.push_back(cluster.CardBytesPerSecond(static_cast<int>(d)));
    }
    before = &device;
  }
  sites_ = static_cast<int>(sites.size());
  nodes_ = static_cast<int>(nodes.size());
  site_links_.resize(static_cast<size_t>(sites_) * sites_);
  for (const auto& [from, a] : sites) {
    for (const auto& [to, b] : sites) {
      site_links_[a * sites_ + b] = &cluster.LinkBetweenSites(from, to);
    }
  }
}

Link ClusterIndex::LinkBetween(int from, int to) const {
  const Location &a = locations_[from], &b = locations_[to];
  // Links of devices and of nodes are looked up by what the cluster's maps have.
  const bool by_site = cluster_.measured.empty() && cluster_.node_to_node.empty();
  if (!by_site || a.node == b.node) return cluster_.LinkBetween(from, to);
  return LinkBetweenSites(a.site, b.site);
}

}  // namespace atl::plan

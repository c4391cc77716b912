#include "coordinator/planner/cluster/cluster_index.h"

#include <map>
#include <string>
#include <utility>

namespace atl::plan {

ClusterIndex::ClusterIndex(const Cluster& cluster) : cluster_(cluster) {
  std::map<std::string, int> sites;
  std::map<std::pair<int, std::string>, int> nodes;
  const Device* before = nullptr;
  for (const Device& device : cluster.devices) {
    Place place = places_.empty() ? Place{} : places_.back();
    if (before == nullptr || device.site != before->site || device.node != before->node) {
      place.site = sites.try_emplace(device.site, static_cast<int>(sites.size())).first->second;
      place.node = nodes.try_emplace({place.site, device.node}, static_cast<int>(nodes.size()))
                       .first->second;
    }
    places_.push_back(place);
    before = &device;
  }
  sites_ = static_cast<int>(sites.size());
  nodes_ = static_cast<int>(nodes.size());
  wires_.resize(static_cast<size_t>(sites_) * sites_);
  for (const auto& [from, a] : sites) {
    for (const auto& [to, b] : sites) {
      wires_[a * sites_ + b] = &cluster.WireBetweenSites(from, to);
    }
  }
}

Wire ClusterIndex::WireBetween(int from, int to) const {
  const Place &a = places_[from], &b = places_[to];
  // Links of devices and of nodes are looked up by what the cluster's maps have.
  const bool by_site = cluster_.measured.empty() && cluster_.node_to_node.empty();
  if (!by_site || a.node == b.node) return cluster_.WireBetween(from, to);
  return WireBetweenSites(a.site, b.site);
}

}  // namespace atl::plan

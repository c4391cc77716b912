#include "coordinator/planner/cluster/site_floor.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>

namespace atl::plan {
namespace {

double FastestBetweenSites(const Cluster& cluster, const std::map<std::string, int>& sites) {
  double fastest = 0;
  for (const auto& [from, a] : sites) {
    for (const auto& [to, b] : sites) {
      if (a != b)
        fastest = std::max(fastest, cluster.LinkBetweenSites(from, to).FastestBytesPerSecond());
    }
  }
  for (const auto& [nodes, link] : cluster.node_to_node) {
    fastest = std::max(fastest, link.FastestBytesPerSecond());
  }
  for (const auto& [devices, link] : cluster.measured) {
    fastest = std::max(fastest, link.FastestBytesPerSecond());
  }
  return fastest;
}

}  // namespace

SiteFloor::SiteFloor(const Cluster& cluster, const Costs& costs, const Job& job,
                     const std::vector<EntityPool>& pools, int micro_batch) {
  std::map<std::string, int> sites;
  for (const EntityPool& pool : pools) {
    site_of_.push_back(sites.try_emplace(pool.site, static_cast<int>(sites.size())).first->second);
  }
  sites_ = static_cast<int>(sites.size());
  fastest_bytes_per_s_ = FastestBetweenSites(cluster, sites);
  gradient_bytes_ = static_cast<double>(costs.model().parameters()) * job.gradient_bytes;
  message_bytes_ = INFINITY;
  const std::vector<Layer>& layers = costs.model().layers;
  for (size_t l = 0; l + 1 < layers.size(); ++l) {
    const double bytes = static_cast<double>(layers[l].out_bytes) * micro_batch;
    message_bytes_ = std::min(message_bytes_, bytes);
  }
  micro_batches_ = std::ceil(1.0 * job.global_batch / micro_batch);
}

double SiteFloor::SyncSeconds(const std::vector<int>& groups_at) const {
  std::vector<int> counts;
  for (const int count : groups_at) {
    if (count > 0) counts.push_back(count);
  }
  if (counts.size() < 2) return 0;
  std::sort(counts.begin(), counts.end(), std::greater<int>());
  double n = 0;
  for (const int count : counts) n += count;
  return (counts[0] + counts[1]) / n * gradient_bytes_ / fastest_bytes_per_s_;
}

double SiteFloor::EstimateStepSeconds(const std::vector<Composition>& groups,
                                      double compute_s) const {
  if (sites_ < 2 || fastest_bytes_per_s_ <= 0) return compute_s;
  std::vector<int> groups_at(sites_, 0);
  double crossings = 0;
  bool all_cross = true, all_sites = true;
  for (const Composition& group : groups) {
    std::vector<char> here(sites_, 0);
    for (size_t t = 0; t < group.size(); ++t) {
      if (group[t] > 0) here[site_of_[t]] = 1;
    }
    const auto used = std::count(here.begin(), here.end(), 1);
    crossings += static_cast<double>(used - 1);
    all_cross = all_cross && used > 1;
    all_sites = all_sites && used == sites_;
    for (int site = 0; site < sites_; ++site) groups_at[site] += here[site];
  }
  if (crossings == 0) return compute_s + SyncSeconds(groups_at);
  if (!all_cross) return compute_s;  // the others may take most of the micro-batches
  const double site_links = all_sites ? sites_ - 1 : sites_ * (sites_ - 1) / 2;
  const double each = crossings / site_links / static_cast<double>(groups.size());
  return std::max(compute_s, micro_batches_ * each * message_bytes_ / fastest_bytes_per_s_);
}

}  // namespace atl::plan

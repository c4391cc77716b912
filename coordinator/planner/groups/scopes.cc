#include "coordinator/planner/groups/scopes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace atl::plan {

std::string GetLeaderSite(const Cluster& cluster) {
  for (const Device& device : cluster.devices) {
    if (!cluster.leader.empty() && device.node == cluster.leader) return device.site;
  }
  return "";
}

namespace {

// Sites by their power, the strongest first.
std::vector<std::string> StrongSites(const std::vector<EntityPool>& pools) {
  std::map<std::string, double> power;
  for (const EntityPool& pool : pools) {
    power[pool.site] -= pool.power * static_cast<double>(pool.entities.size());
  }
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [site, minus] : power) order.push_back({minus, site});
  std::ranges::sort(order);
  std::vector<std::string> sites;
  for (const auto& [minus, site] : order) sites.push_back(site);
  return sites;
}

}  // namespace

Composition CountEntities(const std::vector<EntityPool>& pools) {
  Composition counts;
  for (const EntityPool& pool : pools) counts.push_back(static_cast<int>(pool.entities.size()));
  return counts;
}

std::vector<EntityClass> MakeEntityClasses(const std::vector<EntityPool>& pools,
                                           const Scope& scope) {
  std::vector<EntityClass> classes;
  for (size_t t = 0; t < pools.size(); ++t) {
    classes.push_back({pools[t].power, pools[t].memory_bytes, scope.counts[t]});
  }
  return classes;
}

namespace {

// All entities but those of pools that are left out.
template <class LeavesOut>
Scope MakeScope(const std::vector<EntityPool>& pools, std::string name,
                const LeavesOut& leaves_out) {
  Scope scope{std::move(name), CountEntities(pools)};
  for (size_t t = 0; t < pools.size(); ++t) {
    if (leaves_out(pools[t])) scope.counts[t] = 0;
  }
  return scope;
}

// Two and three sites along the fastest links from each of few.
void AddNearSites(const Cluster& cluster, const std::vector<EntityPool>& pools,
                  std::vector<Scope>& scopes) {
  constexpr size_t kMostSites = 8;
  std::map<std::string, int> first;  // device
  for (const EntityPool& pool : pools) first.try_emplace(pool.site, pool.entities[0][0]);
  if (first.size() > kMostSites) return;
  std::set<std::set<std::string>> seen;
  for (const auto& [start, device] : first) {
    std::set<std::string> near = {start};
    for (int last = device; near.size() < 3;) {
      std::pair<double, std::string> nearest(INFINITY, "");
      for (const auto& [site, other] : first) {
        if (near.contains(site)) continue;
        nearest = std::min(nearest, {cluster.LinkBetween(last, other).Seconds(8e6), site});
      }
      last = first[nearest.second];
      near.insert(nearest.second);
      if (!seen.insert(near).second) continue;
      scopes.push_back(
          MakeScope(pools, absl::StrCat(" in ", absl::StrJoin(near, " and ")),
                    [&](const EntityPool& pool) { return !near.contains(pool.site); }));
    }
  }
}

}  // namespace

std::vector<Scope> ListCandidateScopes(const Cluster& cluster,
                                       const std::vector<EntityPool>& pools) {
  const std::string leaders_site = GetLeaderSite(cluster);
  std::vector<Scope> scopes = {{"", CountEntities(pools)}};
  const std::vector<std::string> sites = StrongSites(pools);
  const bool unlike = AreUnlike(pools);
  for (size_t i = 0; sites.size() > 1 && i < sites.size(); ++i) {
    if (i >= 3 && sites[i] != leaders_site) continue;
    scopes.push_back(MakeScope(pools, absl::StrCat(" in ", sites[i], " alone"),
                               [&](const EntityPool& pool) { return pool.site != sites[i]; }));
  }
  for (size_t i = 0; unlike && sites.size() > 2 && i < std::min<size_t>(8, sites.size()); ++i) {
    scopes.push_back(MakeScope(pools, absl::StrCat(" without ", sites[i]),
                               [&](const EntityPool& pool) { return pool.site == sites[i]; }));
  }
  if (unlike && sites.size() > 3) AddNearSites(cluster, pools, scopes);
  return scopes;
}

void AddCheapScopes(const std::vector<EntityPool>& pools, std::vector<Scope>& scopes) {
  constexpr size_t kMostSites = 4;
  std::vector<size_t> order(pools.size());
  std::iota(order.begin(), order.end(), 0);
  const auto worth = [&](size_t t) { return pools[t].price_per_hour / pools[t].power; };
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return worth(a) < worth(b); });
  std::vector<std::string> sites = {""};  // all of them
  for (const size_t t : order) {
    const bool known = std::ranges::find(sites, pools[t].site) != sites.end();
    if (!known && sites.size() <= kMostSites) sites.push_back(pools[t].site);
  }
  if (sites.size() == 2) sites.resize(1);
  std::set<Composition> seen;
  for (const Scope& scope : scopes) seen.insert(scope.counts);
  for (const std::string& site : sites) {
    for (int count = 1;; count += std::max(1, count / 4)) {
      Scope cheap{absl::StrCat(" of the cheapest ", count), Composition(pools.size(), 0)};
      if (!site.empty()) absl::StrAppend(&cheap.name, " in ", site);
      int left = count;
      for (const size_t t : order) {
        if (!site.empty() && pools[t].site != site) continue;
        cheap.counts[t] = std::min(left, static_cast<int>(pools[t].entities.size()));
        left -= cheap.counts[t];
      }
      if (left > 0) break;
      if (seen.insert(cheap.counts).second) scopes.push_back(std::move(cheap));
    }
  }
}

bool FitToStages(const std::vector<EntityPool>& pools, int stages,
                 std::vector<Composition>& groups) {
  Composition idle = CountEntities(pools);
  std::vector<int> missing;
  for (Composition& group : groups) {
    int more = std::accumulate(group.begin(), group.end(), 0) - stages;
    for (; more > 0; --more) {
      size_t weakest = pools.size();
      for (size_t t = 0; t < pools.size(); ++t) {
        if (group[t] == 0) continue;
        if (weakest == pools.size() || pools[t].power < pools[weakest].power) weakest = t;
      }
      --group[weakest];
    }
    missing.push_back(-more);
    for (size_t t = 0; t < pools.size(); ++t) idle[t] -= group[t];
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    std::set<std::string> sites;
    for (size_t t = 0; t < pools.size(); ++t) {
      if (groups[g][t] > 0) sites.insert(pools[t].site);
    }
    for (; missing[g] > 0; --missing[g]) {
      std::pair<bool, double> best;
      size_t chosen = pools.size();
      for (size_t t = 0; t < pools.size(); ++t) {
        const std::pair value(sites.count(pools[t].site) > 0, pools[t].power);
        if (idle[t] == 0 || (chosen < pools.size() && value <= best)) continue;
        best = value;
        chosen = t;
      }
      if (chosen == pools.size()) return false;
      sites.insert(pools[chosen].site);
      ++groups[g][chosen];
      --idle[chosen];
    }
  }
  return true;
}

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
  gradient_bytes_ = static_cast<double>(costs.model().parameters()) * kGradientBytes;
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
  std::ranges::sort(counts, std::greater<int>());
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
    const auto used = std::ranges::count(here, 1);
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

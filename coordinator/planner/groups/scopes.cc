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

}  // namespace atl::plan

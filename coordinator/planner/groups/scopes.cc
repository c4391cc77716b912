#include "coordinator/planner/groups/scopes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/candidates.h"
#include "coordinator/planner/cluster/leader.h"

namespace atl::plan {
namespace {

// Sites by their power, the strongest first.
std::vector<std::string> StrongSites(const std::vector<EntityPool>& pools) {
  std::map<std::string, double> power;
  for (const EntityPool& pool : pools) {
    power[pool.site] -= pool.power * static_cast<double>(pool.entities.size());
  }
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [site, minus] : power) order.push_back({minus, site});
  std::sort(order.begin(), order.end());
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
      Scope& scope = scopes.emplace_back(
          Scope{absl::StrCat(" in ", absl::StrJoin(near, " and ")), CountEntities(pools)});
      for (size_t t = 0; t < pools.size(); ++t) {
        if (!near.contains(pools[t].site)) scope.counts[t] = 0;
      }
    }
  }
}

}  // namespace

std::vector<Scope> ListCandidateScopes(const Cluster& cluster,
                                       const std::vector<EntityPool>& pools) {
  constexpr size_t kMostTypes = 4;
  const std::string leaders_site = GetLeaderSite(cluster);
  const Scope all{"", CountEntities(pools)};
  std::vector<Scope> scopes = {all};
  const std::vector<std::string> sites = StrongSites(pools);
  const bool unlike = AreUnlike(pools);
  for (size_t i = 0; sites.size() > 1 && i < sites.size(); ++i) {
    if (i >= 3 && sites[i] != leaders_site) continue;
    Scope& alone = scopes.emplace_back(Scope{absl::StrCat(" in ", sites[i], " alone"), all.counts});
    for (size_t t = 0; t < pools.size(); ++t) {
      if (pools[t].site != sites[i]) alone.counts[t] = 0;
    }
  }
  for (size_t i = 0; unlike && sites.size() > 2 && i < std::min<size_t>(8, sites.size()); ++i) {
    Scope& rest = scopes.emplace_back(Scope{absl::StrCat(" without ", sites[i]), all.counts});
    for (size_t t = 0; t < pools.size(); ++t) {
      if (pools[t].site == sites[i]) rest.counts[t] = 0;
    }
  }
  if (unlike && sites.size() > 3) AddNearSites(cluster, pools, scopes);
  const size_t types = cluster.types.size();
  const bool few = std::ssize(cluster.devices) <= kFewDevices && types > 1 && types <= kMostTypes;
  for (size_t type = 0; few && type < types; ++type) {
    Scope& rest =
        scopes.emplace_back(Scope{absl::StrCat(" without ", cluster.types[type].name), all.counts});
    for (size_t t = 0; t < pools.size(); ++t) {
      if (pools[t].type == static_cast<int>(type)) rest.counts[t] = 0;
    }
  }
  std::set<size_t> strongest;
  for (const size_t count : {size_t{2}, (sites.size() + 1) / 2, sites.size() - 1}) {
    if (count >= 2 && count < sites.size()) strongest.insert(count);
  }
  for (const size_t count : strongest) {
    Scope& some =
        scopes.emplace_back(Scope{absl::StrCat(" in the strongest ", count, " sites"), all.counts});
    for (size_t t = 0; t < pools.size(); ++t) {
      const auto rank = std::find(sites.begin(), sites.end(), pools[t].site) - sites.begin();
      if (static_cast<size_t>(rank) >= count) some.counts[t] = 0;
    }
  }
  std::vector<size_t> slowest(pools.size());
  std::iota(slowest.begin(), slowest.end(), 0);
  std::stable_sort(slowest.begin(), slowest.end(),
                   [&](size_t a, size_t b) { return pools[a].power < pools[b].power; });
  if (pools.size() < 3 || pools[slowest.back()].power < 1.5 * pools[slowest[0]].power) {
    return scopes;
  }
  double total = 0;
  for (size_t t = 0; t < pools.size(); ++t) total += pools[t].power * all.counts[t];
  const std::vector<double> parts =
      unlike ? std::vector{0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.35} : std::vector{0.9, 0.75, 0.5};
  for (const double part : parts) {
    Scope fast = all;
    double power = total;
    for (const size_t t : slowest) {
      if (power - pools[t].power * all.counts[t] < part * total) break;
      power -= pools[t].power * all.counts[t];
      fast.counts[t] = 0;
    }
    if (fast.counts == scopes.back().counts || fast.counts == all.counts) continue;
    fast.name = absl::StrCat(" of the fastest ",
                             std::accumulate(fast.counts.begin(), fast.counts.end(), 0));
    scopes.push_back(std::move(fast));
  }
  return scopes;
}

void AddCheapScopes(const std::vector<EntityPool>& pools, std::vector<Scope>& scopes) {
  constexpr size_t kMostSites = 4;
  std::vector<size_t> order(pools.size());
  std::iota(order.begin(), order.end(), 0);
  const auto worth = [&](size_t t) { return pools[t].price_per_hour / pools[t].power; };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return worth(a) < worth(b); });
  std::vector<std::string> sites = {""};  // all of them
  for (const size_t t : order) {
    const bool known = std::find(sites.begin(), sites.end(), pools[t].site) != sites.end();
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

bool SpansSites(const std::vector<EntityPool>& pools, const std::vector<Composition>& groups) {
  for (const Composition& group : groups) {
    const std::string* site = nullptr;
    for (size_t t = 0; t < pools.size(); ++t) {
      if (group[t] == 0) continue;
      if (site != nullptr && *site != pools[t].site) return true;
      site = &pools[t].site;
    }
  }
  return false;
}

}  // namespace atl::plan

#include "coordinator/planner/candidates.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "common/status.h"

namespace atl::plan {
namespace {

// Numbers of replicas worth trying: all small ones, then ever coarser steps.
std::vector<int> ReplicaCounts(int entities, int global_batch) {
  std::vector<int> counts;
  const int most = std::min(entities, global_batch);
  for (int d = 1; d <= most; d = d < 8 ? d + 1 : d + std::max(1, d / 4)) counts.push_back(d);
  for (const int d : {16, 32, 64, 128, 256, most}) {
    if (d <= most) counts.push_back(d);
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

std::vector<EntityClass> ClassesOf(const std::vector<EntityPool>& pools) {
  std::vector<EntityClass> classes;
  for (const EntityPool& pool : pools) {
    classes.push_back({pool.power, pool.memory_bytes, static_cast<int>(pool.entities.size())});
  }
  return classes;
}

// Equal shares of every pool; what does not divide stays idle.
std::optional<GroupChoice> EqualShares(const std::vector<EntityPool>& pools, int groups) {
  Composition share;
  for (const EntityPool& pool : pools) {
    share.push_back(static_cast<int>(pool.entities.size()) / groups);
  }
  if (std::accumulate(share.begin(), share.end(), 0) == 0) return std::nullopt;
  return GroupChoice{std::vector<Composition>(groups, share), 0};
}

// Groups that stay within a site; sites get numbers of groups by their power.
std::optional<GroupChoice> WithinSites(const std::vector<EntityPool>& pools, int groups,
                                       double micro_batches, int64_t min_bytes) {
  std::map<std::string, std::vector<size_t>> sites;
  std::map<std::string, double> power;
  double total = 0;
  for (size_t t = 0; t < pools.size(); ++t) {
    sites[pools[t].site].push_back(t);
    const double p = pools[t].power * static_cast<double>(pools[t].entities.size());
    power[pools[t].site] += p;
    total += p;
  }
  if (sites.size() < 2 || groups < 2) return std::nullopt;
  // Largest remainder.
  std::vector<std::pair<double, std::string>> remainders;
  std::map<std::string, int> shares;
  int left = groups;
  for (const auto& [site, p] : power) {
    const double exact = p / total * groups;
    shares[site] = static_cast<int>(exact);
    left -= shares[site];
    remainders.push_back({shares[site] - exact, site});
  }
  std::sort(remainders.begin(), remainders.end());
  for (int i = 0; i < left; ++i) ++shares[remainders[i % remainders.size()].second];
  GroupChoice all;
  for (const auto& [site, members] : sites) {
    if (shares[site] == 0) continue;
    std::vector<EntityPool> own;
    for (const size_t t : members) own.push_back(pools[t]);
    const auto choice = GroupByCounts(ClassesOf(own), shares[site], micro_batches, min_bytes);
    if (!choice.has_value()) return std::nullopt;
    for (const Composition& group : choice->groups) {
      Composition wide(pools.size(), 0);
      for (size_t i = 0; i < members.size(); ++i) wide[members[i]] = group[i];
      all.groups.push_back(std::move(wide));
    }
  }
  return all;
}

// All groups in one site, the rest idle: what is left when nothing is worth sending across.
std::optional<GroupChoice> InOneSite(const std::vector<EntityPool>& pools, const std::string& site,
                                     int groups, double micro_batches, int64_t min_bytes) {
  std::vector<EntityClass> classes = ClassesOf(pools);
  for (size_t t = 0; t < pools.size(); ++t) {
    if (pools[t].site != site) classes[t].count = 0;
  }
  return GroupByCounts(classes, groups, micro_batches, min_bytes);
}

// The sites with most power, at most three; none if there is only one.
std::vector<std::string> StrongSites(const std::vector<EntityPool>& pools) {
  std::map<std::string, double> power;
  for (const EntityPool& pool : pools) {
    power[pool.site] -= pool.power * static_cast<double>(pool.entities.size());
  }
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [site, minus] : power) order.push_back({minus, site});
  std::sort(order.begin(), order.end());
  std::vector<std::string> sites;
  for (size_t i = 0; order.size() > 1 && i < std::min<size_t>(3, order.size()); ++i) {
    sites.push_back(order[i].second);
  }
  return sites;
}

// Sites in the orders worth trying: every permutation of up to four, else along the nearest wires.
std::vector<std::vector<std::string>> SiteOrders(const Cluster& cluster,
                                                 const std::vector<EntityPool>& pools) {
  std::map<std::string, int> first;
  for (const EntityPool& pool : pools) first.try_emplace(pool.site, pool.entities[0][0]);
  std::vector<std::string> order;
  for (const auto& [site, device] : first) order.push_back(site);
  std::vector<std::vector<std::string>> orders;
  if (order.size() <= 4) {
    do {
      orders.push_back(order);
    } while (std::next_permutation(order.begin(), order.end()));
    return orders;
  }
  for (const auto& [start, device] : first) {
    std::vector<std::string> chain = {start};
    std::set<std::string> left;
    for (const auto& [site, d] : first) left.insert(site);
    left.erase(start);
    while (!left.empty()) {
      const std::string* nearest = nullptr;
      double least = 1e300;
      for (const std::string& site : left) {
        const double s = cluster.WireBetween(first[chain.back()], first[site]).Seconds(8e6);
        if (s < least) {
          least = s;
          nearest = &site;
        }
      }
      chain.push_back(*nearest);
      left.erase(chain.back());
    }
    orders.push_back(std::move(chain));
    if (orders.size() == 6) break;
  }
  return orders;
}

// Hands entities out: a pool in turn to all groups, so that peers of one stage share a node where
// they can; within a group sites in the given order, weak devices first.
std::vector<Replica> MapToNodes(const std::vector<EntityPool>& pools,
                                const std::vector<Composition>& groups,
                                const std::vector<std::string>& sites) {
  std::vector<size_t> order(pools.size());
  std::iota(order.begin(), order.end(), 0);
  const auto rank = [&](size_t t) {
    return std::find(sites.begin(), sites.end(), pools[t].site) - sites.begin();
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(static_cast<double>(rank(a)), pools[a].power) <
           std::pair(static_cast<double>(rank(b)), pools[b].power);
  });
  std::vector<Replica> replicas(groups.size());
  for (const size_t t : order) {
    size_t next = 0;
    for (int round = 0; next < pools[t].entities.size(); ++round) {
      bool any = false;
      for (size_t g = 0; g < groups.size() && next < pools[t].entities.size(); ++g) {
        if (groups[g][t] <= round) continue;
        any = true;
        replicas[g].stages.push_back({pools[t].entities[next++], 0, 0});
      }
      if (!any) break;
    }
  }
  return replicas;
}

double BottleneckSeconds(const Cluster& cluster, const Costs& costs, const Layout& layout,
                         const Replica& replica) {
  double slowest = 0;
  std::map<int, StageCosts> by_type;
  for (const Stage& stage : replica.stages) {
    const int type = cluster.devices[stage.devices[0]].type;
    if (by_type.find(type) == by_type.end()) {
      by_type.emplace(type,
                      costs.For(cluster.types[type], layout.tensor_parallel, layout.micro_batch));
    }
    slowest = std::max(
        slowest, by_type.at(type).TotalSeconds(stage.first_layer, stage.last_layer, stage.saving));
  }
  return slowest;
}

// Micro-batches in proportion to 1 / seconds, each at least one, by largest remainder.
std::vector<int> Shares(int total, const std::vector<double>& seconds) {
  double sum = 0;
  for (const double s : seconds) sum += 1 / s;
  std::vector<int> shares;
  std::vector<std::pair<double, size_t>> remainders;
  int left = total;
  for (size_t r = 0; r < seconds.size(); ++r) {
    const double exact = total / seconds[r] / sum;
    shares.push_back(std::max(1, static_cast<int>(exact)));
    left -= shares.back();
    remainders.push_back({shares.back() - exact, r});
  }
  std::sort(remainders.begin(), remainders.end());
  for (size_t i = 0; left > 0; --left, ++i) ++shares[remainders[i % remainders.size()].second];
  // Those rounded up to one may have taken too many: the largest give them back.
  for (; left < 0; ++left) --*std::max_element(shares.begin(), shares.end());
  return shares;
}

// Cuts all replicas, equal ones once, first with equal then with proportional micro-batches.
absl::Status CutAll(const Cluster& cluster, const Costs& costs, int total, Layout& layout) {
  const int count = static_cast<int>(layout.replicas.size());
  std::vector<int> shares(count, total / count);
  for (int r = 0; r < total % count; ++r) ++shares[r];
  const std::vector<Replica> uncut = layout.replicas;
  for (int round = 0; round < 2; ++round) {
    std::map<std::pair<std::vector<int>, int>, std::vector<Stage>> known;
    std::vector<double> seconds;
    std::map<std::vector<int>, double> known_seconds;
    for (int r = 0; r < count; ++r) {
      Replica replica = uncut[r];
      replica.micro_batches = shares[r];
      std::vector<int> types;
      for (const Stage& stage : replica.stages) {
        types.push_back(cluster.devices[stage.devices[0]].type);
      }
      const auto cut = known.find({types, shares[r]});
      if (cut != known.end() && cut->second.size() == replica.stages.size()) {
        for (size_t s = 0; s < replica.stages.size(); ++s) {
          replica.stages[s].first_layer = cut->second[s].first_layer;
          replica.stages[s].last_layer = cut->second[s].last_layer;
          replica.stages[s].saving = cut->second[s].saving;
        }
      } else {
        ATOLL_RETURN_IF_ERROR(
            CutReplica(cluster, costs, layout.tensor_parallel, layout.micro_batch, replica));
        known[{types, shares[r]}] = replica.stages;
      }
      layout.replicas[r] = std::move(replica);
      auto [time, added] = known_seconds.try_emplace(types, 0);
      if (added) time->second = BottleneckSeconds(cluster, costs, layout, layout.replicas[r]);
      seconds.push_back(time->second);
    }
    std::vector<int> better = Shares(total, seconds);
    if (better == shares) break;
    shares = std::move(better);
  }
  for (int r = 0; r < count; ++r) layout.replicas[r].micro_batches = shares[r];
  return absl::OkStatus();
}

}  // namespace

std::vector<int> TensorParallelSizes(const Job& job) {
  return job.tensor_parallel.empty() ? std::vector{1, 2, 4, 8} : job.tensor_parallel;
}

std::vector<int> MicroBatchSizes(const Job& job) {
  return job.micro_batches.empty() ? std::vector{1, 2, 4, 8} : job.micro_batches;
}

std::vector<EntityPool> PoolsOf(const Cluster& cluster, const Costs& costs, int tensor_parallel,
                                int micro_batch) {
  std::map<std::pair<std::string, int>, EntityPool> pools;
  const auto add = [&](std::vector<int> entity) {
    const Device& device = cluster.devices[entity[0]];
    EntityPool& pool = pools[{device.site, device.type}];
    pool.type = device.type;
    pool.site = device.site;
    pool.entities.push_back(std::move(entity));
  };
  std::map<std::pair<std::string, std::string>, std::vector<int>> left_over;  // by site, node
  for (const std::vector<int>& group : cluster.DevicesByNode()) {
    const auto even = static_cast<std::ptrdiff_t>(group.size() - group.size() % tensor_parallel);
    for (std::ptrdiff_t i = 0; i < even; i += tensor_parallel) {
      add({group.begin() + i, group.begin() + i + tensor_parallel});
    }
    const Device& device = cluster.devices[group[0]];
    std::vector<int>& left = left_over[{device.site, device.node}];
    left.insert(left.end(), group.begin() + even, group.end());
  }
  for (auto& [node, left] : left_over) {
    if (left.size() < static_cast<size_t>(tensor_parallel)) continue;
    SlowestFirst(cluster, costs, tensor_parallel, micro_batch, left);
    // From the fastest on, so that the slowest are those that nobody needs.
    for (size_t end = left.size(); end >= static_cast<size_t>(tensor_parallel);
         end -= tensor_parallel) {
      std::vector<int> entity(left.begin() + static_cast<std::ptrdiff_t>(end) - tensor_parallel,
                              left.begin() + static_cast<std::ptrdiff_t>(end));
      const auto bytes = [&](int d) { return cluster.types[cluster.devices[d].type].memory_bytes; };
      const bool fits = std::all_of(entity.begin(), entity.end(),
                                    [&](int d) { return bytes(entity[0]) <= bytes(d); });
      if (fits) add(std::move(entity));
    }
  }
  std::vector<EntityPool> result;
  for (auto& [key, pool] : pools) {
    const DeviceType& type = cluster.types[pool.type];
    const StageCosts all = costs.For(type, tensor_parallel, micro_batch);
    pool.power = micro_batch / all.TotalSeconds(0, all.layers());
    pool.memory_bytes = costs.UsableBytes(type) * tensor_parallel;
    result.push_back(std::move(pool));
  }
  return result;
}

std::vector<Candidate> Enumerate(const Cluster& cluster, const Costs& costs, const Job& job,
                                 const std::function<bool()>& stop, absl::Status* why_not) {
  std::vector<Candidate> candidates;
  const auto state_bytes = static_cast<int64_t>(static_cast<double>(costs.model().parameters()) *
                                                costs.options().state_bytes_per_parameter);
  for (const int tp : TensorParallelSizes(job)) {
    for (const int micro_batch : MicroBatchSizes(job)) {
      if (micro_batch > job.global_batch) continue;
      const std::vector<EntityPool> pools = PoolsOf(cluster, costs, tp, micro_batch);
      if (pools.empty()) continue;
      const int total = (job.global_batch + micro_batch - 1) / micro_batch;
      int entities = 0;
      for (const EntityPool& pool : pools) entities += static_cast<int>(pool.entities.size());
      const auto orders = SiteOrders(cluster, pools);
      const std::vector<std::string> strong_sites = StrongSites(pools);
      for (const int d : ReplicaCounts(entities, total)) {
        if (!candidates.empty() && stop && stop()) break;
        const double k = static_cast<double>(total) / d;
        std::vector<std::pair<std::string, std::optional<GroupChoice>>> choices = {
            {"by type counts", GroupByCounts(ClassesOf(pools), d, k, state_bytes)},
            {"within sites", WithinSites(pools, d, k, state_bytes)},
            {"equal shares", EqualShares(pools, d)}};
        for (const std::string& site : strong_sites) {
          choices.emplace_back(absl::StrCat("in ", site, " alone"),
                               InOneSite(pools, site, d, k, state_bytes));
        }
        for (const auto& [how, choice] : choices) {
          if (!choice.has_value()) continue;
          const bool one_site = how.compare(0, 3, "in ") == 0;
          for (const std::vector<std::string>& order : orders) {
            if (one_site && &order != &orders[0]) break;  // the order of others does not matter
            Candidate candidate{
                {tp, micro_batch, "best", MapToNodes(pools, choice->groups, order)}, how, 0};
            const absl::Status cut = CutAll(cluster, costs, total, candidate.layout);
            if (!cut.ok()) {
              *why_not = cut;
              continue;
            }
            candidate.estimate_s = EstimateSeconds(cluster, costs, job, candidate.layout);
            candidates.push_back(std::move(candidate));
          }
        }
      }
    }
  }
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [](const Candidate& a, const Candidate& b) { return a.estimate_s < b.estimate_s; });
  return candidates;
}

}  // namespace atl::plan

#include "coordinator/planner/cluster/entities.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace atl::plan {

EntitySizes EvenSizes(const Cluster& cluster, int size) {
  return EntitySizes(cluster.types.size(), size);
}

std::vector<EntitySizes> UnlikeSizes(const Cluster& cluster, const Job& job) {
  constexpr size_t kMostDevices = 512;
  constexpr size_t kMostTypes = 8;
  std::vector<int> allowed = TensorParallelSizes(job);
  std::sort(allowed.begin(), allowed.end());
  const size_t types = cluster.types.size();
  if (allowed.size() < 2 || types < 2 || types > kMostTypes ||
      cluster.devices.size() > kMostDevices) {
    return {};
  }
  std::vector<int> most(types, 0);  // devices that a node of the type has
  for (const std::vector<int>& group : cluster.DevicesByNode()) {
    int& of_type = most[cluster.devices[group[0]].type];
    of_type = std::max(of_type, static_cast<int>(group.size()));
  }
  const auto largest = [&](size_t type, int limit) {
    int size = allowed.front();
    for (const int other : allowed) {
      if (other <= std::min(limit, most[type])) size = other;
    }
    return size;
  };
  std::set<EntitySizes> sizes;
  const auto add = [&](auto size_of) {
    EntitySizes made;
    for (size_t t = 0; t < types; ++t) made.push_back(size_of(t));
    if (std::count(made.begin(), made.end(), made.front()) < std::ssize(made)) sizes.insert(made);
  };
  for (const int limit : allowed) {
    add([&](size_t t) { return largest(t, limit); });
    for (size_t one = 0; one < types; ++one) {
      add([&](size_t t) { return t == one ? allowed.front() : largest(t, limit); });
      add([&](size_t t) { return t == one ? largest(t, limit) : allowed.front(); });
    }
  }
  return {sizes.begin(), sizes.end()};
}

bool AreUnlike(const std::vector<EntityPool>& pools) {
  constexpr size_t kMostDevices = 160;
  size_t devices = 0;
  size_t sets = 0;
  for (const EntityPool& pool : pools) {
    sets += pool.entities.size();
    for (const std::vector<int>& entity : pool.entities) devices += entity.size();
  }
  return devices <= kMostDevices && 2 * pools.size() > sets;
}

std::vector<int> TensorParallelSizes(const Job& job) {
  return job.tensor_parallel.empty() ? std::vector{1, 2, 4, 8} : job.tensor_parallel;
}

std::vector<int> MicroBatchSizes(const Job& job) {
  return job.micro_batches.empty() ? std::vector{1, 2, 4, 8} : job.micro_batches;
}

std::vector<EntityPool> BuildEntityPools(const Cluster& cluster, const Costs& costs,
                                         int tensor_parallel, int micro_batch) {
  return BuildEntityPools(cluster, costs, EvenSizes(cluster, tensor_parallel), micro_batch);
}

namespace {

// Adds sets of what is left of each node's devices, from the fastest on, so that the slowest are
// left over.
template <class Add>
void AddUnlikeSets(const Cluster& cluster, const Costs& costs, int size, int micro_batch,
                   std::vector<int> left, const Add& add) {
  if (left.size() < static_cast<size_t>(size)) return;
  SlowestFirst(cluster, costs, micro_batch, left);
  for (size_t end = left.size(); end >= static_cast<size_t>(size); end -= size) {
    std::vector<int> entity(left.begin() + static_cast<std::ptrdiff_t>(end) - size,
                            left.begin() + static_cast<std::ptrdiff_t>(end));
    const auto bytes = [&](int d) { return cluster.types[cluster.devices[d].type].memory_bytes; };
    const bool fits = std::all_of(entity.begin(), entity.end(),
                                  [&](int d) { return bytes(entity[0]) <= bytes(d); });
    if (fits) add(std::move(entity));
  }
}

}  // namespace

std::vector<EntityPool> BuildEntityPools(const Cluster& cluster, const Costs& costs,
                                         const EntitySizes& sizes, int micro_batch) {
  std::map<std::pair<std::string, int>, EntityPool> pools;
  const auto add = [&](std::vector<int> entity) {
    const Device& device = cluster.devices[entity[0]];
    EntityPool& pool = pools[{device.site, device.type}];
    pool.type = device.type;
    pool.site = device.site;
    pool.size = static_cast<int>(entity.size());
    pool.entities.push_back(std::move(entity));
  };
  const bool even = std::count(sizes.begin(), sizes.end(), sizes.front()) == std::ssize(sizes);
  std::map<std::pair<std::string, std::string>, std::vector<int>> left_over;  // by site, node
  for (const std::vector<int>& group : cluster.DevicesByNode()) {
    const Device& device = cluster.devices[group[0]];
    const int size = sizes[device.type];
    const auto whole = static_cast<std::ptrdiff_t>(group.size() - group.size() % size);
    for (std::ptrdiff_t i = 0; i < whole; i += size) {
      add({group.begin() + i, group.begin() + i + size});
    }
    if (!even) continue;
    std::vector<int>& left = left_over[{device.site, device.node}];
    left.insert(left.end(), group.begin() + whole, group.end());
  }
  for (auto& [node, left] : left_over) {
    AddUnlikeSets(cluster, costs, sizes.front(), micro_batch, std::move(left), add);
  }
  std::vector<EntityPool> result;
  for (auto& [key, pool] : pools) {
    const DeviceType& type = cluster.types[pool.type];
    const StageCosts all = costs.For(type, pool.size, micro_batch);
    pool.power = micro_batch / all.TotalSeconds(0, all.layers());
    pool.price_per_hour = type.price_per_hour * pool.size;
    pool.memory_bytes = costs.UsableBytes(type) * pool.size;
    // Devices that are alike the leader's are taken first.
    std::stable_partition(pool.entities.begin(), pool.entities.end(),
                          [&](const std::vector<int>& entity) {
                            return cluster.devices[entity[0]].node == cluster.leader;
                          });
    result.push_back(std::move(pool));
  }
  return result;
}

bool EqualizeFirstAndLastStage(std::vector<Stage>& stages) {
  const auto size_of = [&](size_t s) { return stages[s].devices.size(); };
  const size_t last = stages.size() - 1;
  if (size_of(0) == size_of(last)) return true;
  for (size_t s = 1; s < last; ++s) {
    if (size_of(s) != size_of(last) && size_of(s) != size_of(0)) continue;
    std::swap(stages[s].devices, stages[size_of(s) == size_of(last) ? 0 : last].devices);
    return true;
  }
  return false;
}

}  // namespace atl::plan

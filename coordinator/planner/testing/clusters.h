// Clusters and costs by name, for tests.

#ifndef ATOLL_COORDINATOR_PLANNER_TESTING_CLUSTERS_H_
#define ATOLL_COORDINATOR_PLANNER_TESTING_CLUSTERS_H_

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/cluster/costs.h"
#include "coordinator/planner/testing/models.h"

namespace atl::plan {

// Adds `count` devices of a type, eight to a node.
inline void AddDevices(Cluster& cluster, const char* type, int count, const std::string& site) {
  cluster.types.push_back(*FindDeviceType(type));
  const int index = static_cast<int>(cluster.types.size()) - 1;
  for (int d = 0; d < count; ++d) {
    const std::string node = absl::StrCat(site, "-", type, "-", d / 8);
    cluster.devices.push_back({absl::StrCat(node, "-", d % 8), node, site, index});
  }
}

struct DeviceGroup {
  const char* type;
  int count;
  const char* site;
};
inline Cluster MakeCluster(const std::vector<DeviceGroup>& groups) {
  Cluster cluster;
  for (const auto& [type, count, site] : groups) AddDevices(cluster, type, count, site);
  return cluster;
}

// By the roofline.
inline Costs MakeCosts(const char* model) { return Costs(*FindModel(model), {}, {}); }

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_TESTING_CLUSTERS_H_

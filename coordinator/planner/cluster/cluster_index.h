// A cluster's sites and nodes by number, for loops that would compare their names.

#ifndef ATOLL_COORDINATOR_PLANNER_CLUSTER_CLUSTER_INDEX_H_
#define ATOLL_COORDINATOR_PLANNER_CLUSTER_CLUSTER_INDEX_H_

#include <vector>

#include "coordinator/planner/cluster/cluster.h"

namespace atl::plan {

// REQUIRES: the cluster outlives it and does not change.
class ClusterIndex {
 public:
  explicit ClusterIndex(const Cluster& cluster);

  // Return numbers from 0, in the order of the devices. Nodes of one name at two sites are two.
  int GetSiteIndex(int device) const { return locations_[device].site; }
  int GetNode(int device) const { return locations_[device].node; }
  int sites() const { return sites_; }
  int nodes() const { return nodes_; }

  // Return the links that Cluster has.
  Link LinkBetween(int from, int to) const;
  const Link& LinkBetweenSites(int from, int to) const { return *site_links_[from * sites_ + to]; }
  double CardBytesPerSecond(int device) const { return cards_[locations_[device].node]; }

 private:
  struct Location {
    int site = 0, node = 0;
  };

  const Cluster& cluster_;
  std::vector<Location> locations_;  // of devices
  int sites_ = 0, nodes_ = 0;
  std::vector<const Link*> site_links_;  // from site to site
  std::vector<double> cards_;            // of nodes, bytes a second
};

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_CLUSTER_CLUSTER_INDEX_H_

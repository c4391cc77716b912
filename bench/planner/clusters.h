// The clusters and jobs that the planner is measured on.

#ifndef ATOLL_BENCH_PLANNER_CLUSTERS_H_
#define ATOLL_BENCH_PLANNER_CLUSTERS_H_

#include <string>
#include <utility>
#include <vector>

#include "coordinator/planner/planner.h"

namespace atl::bench {

struct Setting {
  std::string name;
  plan::Cluster cluster;
  std::string model;
  plan::Job job;
};

// SpanTrain's testbed: 3 servers of 4 RTX 4090 (cloud), 3 of 2 RTX 3090 (edge), 4 of 1 RTX 3080
// (end devices). Setting 1: 100 Mbit/s from the cloud to the others, 1 Gbit/s otherwise. Setting 2:
// 500 Mbit/s everywhere. 5 ms between sites.
Setting SpanTrain(int setting, const std::string& model, int batch);

// AutoHet's: eight devices to a node, 400 Gbit/s between nodes, one site.
Setting AutoHet(const std::vector<std::pair<std::string, int>>& devices, const std::string& model,
                int batch);

}  // namespace atl::bench

#endif  // ATOLL_BENCH_PLANNER_CLUSTERS_H_

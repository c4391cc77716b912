// The clusters and jobs that the planner is measured on.

#ifndef ATOLL_BENCH_PLANNER_CLUSTERS_H_
#define ATOLL_BENCH_PLANNER_CLUSTERS_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/planner/planner.h"

namespace atl::bench {

struct Setting {
  std::string name;
  plan::Cluster cluster;
  std::string model;
  int64_t sequence = 0;  // tokens, or the side of an image; 0: the model's own
  plan::Job job;
  double efficiency = 0.45;  // of the datasheet

  plan::Costs costs() const;
};

// SpanTrain's testbed: 3 servers of 4 RTX 4090 (cloud), 3 of 2 RTX 3090 (edge), 4 of 1 RTX 3080
// (end devices). Setting 1: 100 Mbit/s from the cloud to the others, 1 Gbit/s otherwise. Setting 2:
// 500 Mbit/s everywhere. Images of 32 x 32, texts of 512 tokens, as published. Assumed: 5 ms
// between sites, 0.5 ms within; single precision at 20% of the half-precision datasheet.
Setting SpanTrain(int setting, const std::string& model, int batch);

// AutoHet's: eight devices to a node, 400 Gbit/s between nodes, one site. As the paper measured, an
// H800 is twice an A100; the H20 has its datasheet's share of one, and 100 GB.
Setting AutoHet(const std::vector<std::pair<std::string, int>>& devices, const std::string& model,
                int batch);

// `count` devices of each type, `per_node` to a node, one site with 100 Gbit/s between nodes.
Setting OneSite(const std::vector<std::string>& types, int count, int per_node,
                const std::string& model, int batch);

// `count` devices of `count` types, unlike in speed (a factor of 8) and memory (8 to 48 GB), each a
// node of its own, distributed over the sites; 1 Gbit/s within a site, 0.1 to 1 Gbit/s and 2 to 30
// ms between sites. The seed says which is where.
Setting Unlike(int count, int sites, uint64_t seed, const std::string& model, int batch);

// The same without the devices whose index `keep` refuses.
Setting Subset(const Setting& setting, const std::function<bool(int)>& keep);

// `count` devices of these types in nodes of eight, nodes distributed over the sites; 400 Gbit/s
// within a site, 10 Gbit/s and 5 ms between sites.
Setting Sites(const std::vector<std::string>& types, int count, int sites, const std::string& model,
              int batch);

}  // namespace atl::bench

#endif  // ATOLL_BENCH_PLANNER_CLUSTERS_H_

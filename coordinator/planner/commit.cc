#include "coordinator/planner/commit.h"

#include <algorithm>
#include <map>
#include <string>

namespace atl::plan {
namespace {

struct Last {
  int device = -1;  // of rank 0
  double seconds = 0;
};

// By site: whose sums are complete last.
std::map<std::string, Last> LastOfSites(const Cluster& cluster, const Layout& layout,
                                        const StageTimes& summed_s) {
  std::map<std::string, Last> last;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    for (size_t s = 0; s < summed_s[r].size(); ++s) {
      const int device = layout.replicas[r].stages[s].devices[0];
      Last& slowest = last[cluster.devices[device].site];
      if (slowest.device < 0 || summed_s[r][s] > slowest.seconds) {
        slowest = {device, summed_s[r][s]};
      }
    }
  }
  return last;
}

}  // namespace

StageTimes KnownSeconds(const Cluster& cluster, const Layout& layout, const StageTimes& summed_s) {
  const std::map<std::string, Last> sites = LastOfSites(cluster, layout, summed_s);
  StageTimes known_s(layout.replicas.size());
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    const std::vector<int> places = PlacesOf(layout.replicas[r]);
    for (size_t s = 0; s < places.size(); ++s) {
      if (static_cast<size_t>(places[s]) < known_s[r].size()) continue;
      const int device = layout.replicas[r].stages[s].devices[0];
      double& known = known_s[r].emplace_back(0);
      for (const auto& [site, last] : sites) {
        const bool near = site == cluster.devices[device].site;
        const double latency_s = near ? 0 : cluster.WireBetween(last.device, device).latency_s;
        known = std::max(known, last.seconds + latency_s);
      }
    }
  }
  return known_s;
}

namespace {

// The leader, and when its devices have taken their optimizer's steps.
Last LeaderOf(const Cluster& cluster, const Layout& layout, const StageTimes& known_s,
              const StageTimes& optimizer_s) {
  Last leader;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    const std::vector<int> places = PlacesOf(layout.replicas[r]);
    for (size_t s = 0; s < places.size(); ++s) {
      const int device = layout.replicas[r].stages[s].devices[0];
      if (cluster.leader.empty() || cluster.devices[device].node != cluster.leader) continue;
      const auto place = static_cast<size_t>(places[s]);
      const double ends_s = known_s[r][place] + optimizer_s[r][place];
      if (leader.device < 0 || ends_s > leader.seconds) leader = {device, ends_s};
    }
  }
  return leader;
}

}  // namespace

double CommittedSeconds(const Cluster& cluster, const Layout& layout, const StageTimes& summed_s,
                        const StageTimes& begun_s, const StageTimes& optimizer_s) {
  const StageTimes known_s = KnownSeconds(cluster, layout, summed_s);
  const Last leader = LeaderOf(cluster, layout, known_s, optimizer_s);
  double seconds = 0;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    const std::vector<int> places = PlacesOf(layout.replicas[r]);
    for (size_t s = 0; s < places.size(); ++s) {
      const auto place = static_cast<size_t>(places[s]);
      const int device = layout.replicas[r].stages[s].devices[0];
      double ready_s = known_s[r][place] + optimizer_s[r][place];
      if (leader.device >= 0 &&
          cluster.devices[leader.device].site != cluster.devices[device].site) {
        const double latency_s = cluster.WireBetween(leader.device, device).latency_s;
        ready_s = std::max(ready_s, leader.seconds + latency_s);
      }
      // Of a device's stages, the one that begins first gives the most.
      seconds = std::max(seconds, ready_s - (s == 0 ? 0 : begun_s[r][s]));
    }
  }
  return seconds;
}

}  // namespace atl::plan

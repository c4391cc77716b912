#include "coordinator/planner/commit.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/protocol/commit_exchange.h"

namespace atl::plan {
StageTimes KnownSeconds(const Cluster& cluster, const Layout& layout, const StageTimes& synced_s) {
  // The device of rank 0 stands for each entity: those of a tensor-parallel group are done
  // together.
  std::vector<int> devices;
  std::vector<std::string> sites;
  std::vector<double> ready_s;
  std::vector<size_t> entities;  // by replica
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    const size_t first = devices.size();
    const std::vector<int> stage_entities = MapStagesToEntities(layout.replicas[r]);
    for (size_t s = 0; s < stage_entities.size(); ++s) {
      const size_t at = first + static_cast<size_t>(stage_entities[s]);
      if (at == devices.size()) {
        devices.push_back(layout.replicas[r].stages[s].devices[0]);
        sites.push_back(cluster.devices[devices.back()].site);
        ready_s.push_back(0);
      }
      ready_s[at] = std::max(ready_s[at], synced_s[r][s]);
    }
    entities.push_back(devices.size() - first);
  }
  const auto message_s = [&](int from, int to) {
    return sites[from] == sites[to] ? 0 : cluster.LinkBetween(devices[from], devices[to]).latency_s;
  };
  const std::vector<double> known_s = CommitSeconds(PlanCommitExchange(sites), ready_s, message_s);
  StageTimes result;
  auto at = known_s.begin();
  for (const size_t count : entities) {
    result.emplace_back(at, at + static_cast<std::ptrdiff_t>(count));
    at += static_cast<std::ptrdiff_t>(count);
  }
  return result;
}

namespace {

struct DeviceFinish {
  int device = -1;  // of rank 0
  double seconds = 0;
};

// The leader, and when its devices have taken their optimizer's steps.
DeviceFinish FindLeader(const Cluster& cluster, const Layout& layout, const StageTimes& known_s,
                        const StageTimes& optimizer_s) {
  DeviceFinish leader;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    const std::vector<int> entities = MapStagesToEntities(layout.replicas[r]);
    for (size_t s = 0; s < entities.size(); ++s) {
      const int device = layout.replicas[r].stages[s].devices[0];
      if (cluster.leader.empty() || cluster.devices[device].node != cluster.leader) continue;
      const auto entity = static_cast<size_t>(entities[s]);
      const double ends_s = known_s[r][entity] + optimizer_s[r][entity];
      if (leader.device < 0 || ends_s > leader.seconds) leader = {device, ends_s};
    }
  }
  return leader;
}

}  // namespace

double CommittedSeconds(const Cluster& cluster, const Layout& layout, const StageTimes& synced_s,
                        const StageTimes& begun_s, const StageTimes& optimizer_s) {
  const StageTimes known_s = KnownSeconds(cluster, layout, synced_s);
  const DeviceFinish leader = FindLeader(cluster, layout, known_s, optimizer_s);
  double seconds = 0;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    const std::vector<int> entities = MapStagesToEntities(layout.replicas[r]);
    for (size_t s = 0; s < entities.size(); ++s) {
      const auto entity = static_cast<size_t>(entities[s]);
      const int device = layout.replicas[r].stages[s].devices[0];
      double ready_s = known_s[r][entity] + optimizer_s[r][entity];
      if (leader.device >= 0 &&
          cluster.devices[leader.device].site != cluster.devices[device].site) {
        const double latency_s = cluster.LinkBetween(leader.device, device).latency_s;
        ready_s = std::max(ready_s, leader.seconds + latency_s);
      }
      // The first of a device's stages to begin gives the most.
      seconds = std::max(seconds, ready_s - (s == 0 ? 0 : begun_s[r][s]));
    }
  }
  return seconds;
}

}  // namespace atl::plan

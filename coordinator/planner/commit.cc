#include "coordinator/planner/commit.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

namespace atl::plan {
namespace {

struct Entity {
  int device = -1;  // of rank 0
  double begun_s = INFINITY;
  double summed_s = 0;
  double optimizer_s = 0;
};

std::vector<Entity> EntitiesOf(const Layout& layout, const StageTimes& summed_s,
                               const StageTimes& begun_s,
                               const std::vector<std::vector<double>>& optimizer_s) {
  std::vector<Entity> all;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    const size_t first = all.size();
    const std::vector<int> places = PlacesOf(layout.replicas[r]);
    all.resize(first + optimizer_s[r].size());
    for (size_t s = 0; s < places.size(); ++s) {
      Entity& entity = all[first + static_cast<size_t>(places[s])];
      entity.device = layout.replicas[r].stages[s].devices[0];
      entity.begun_s = s == 0 ? 0 : std::min(entity.begun_s, begun_s[r][s]);
      entity.summed_s = std::max(entity.summed_s, summed_s[r][s]);
      entity.optimizer_s = optimizer_s[r][static_cast<size_t>(places[s])];
    }
  }
  return all;
}

}  // namespace

double CommittedSeconds(const Cluster& cluster, const Layout& layout, const StageTimes& summed_s,
                        const StageTimes& begun_s,
                        const std::vector<std::vector<double>>& optimizer_s) {
  const std::vector<Entity> entities = EntitiesOf(layout, summed_s, begun_s, optimizer_s);
  std::map<std::string, const Entity*> last;  // by site: whose sums are complete last
  for (const Entity& entity : entities) {
    const Entity*& slowest = last[cluster.devices[entity.device].site];
    if (slowest == nullptr || entity.summed_s > slowest->summed_s) slowest = &entity;
  }
  double seconds = 0;
  for (const Entity& entity : entities) {
    for (const auto& [site, slowest] : last) {
      const bool near = site == cluster.devices[entity.device].site;
      const double latency_s =
          near ? 0 : cluster.WireBetween(slowest->device, entity.device).latency_s;
      seconds =
          std::max(seconds, slowest->summed_s + latency_s + entity.optimizer_s - entity.begun_s);
    }
  }
  return seconds;
}

}  // namespace atl::plan

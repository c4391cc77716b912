// The scene of a rehearsal: a job, the workers of a described cluster, and how long what is
// modelled by a time alone takes.

#ifndef ATOLL_REHEARSAL_SCENE_H_
#define ATOLL_REHEARSAL_SCENE_H_

#include <array>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/job_spec.h"
#include "common/time.h"
#include "coordinator/planning/request.h"

namespace atl::rehearsal {

struct Times {
  Duration detect = std::chrono::seconds(6);    // until a silent machine counts as lost
  Duration restart = std::chrono::seconds(30);  // from a repair until the process connects
  Duration open = std::chrono::seconds(20);     // the job's model and data
  Duration plan = std::chrono::seconds(10);     // a search for a plan
  Duration set_up = std::chrono::seconds(5);    // a plan, besides moving state
};

inline constexpr int kHours = 24;  // of a day

struct ServerPlace {
  std::string site;
  int count = 1;
};

// One machine's devices are one worker.
struct SceneWorker {
  std::string name;  // of its node; with the site before it where two sites have a node of the name
  std::string site;
  std::vector<int> devices;  // of the cluster
  // Each device's, by hour of the day; the run starts at hour 0.
  std::vector<std::array<double, kHours>> prices = {};

  // Returns what it costs while it is up between these times since the run's start.
  double ComputePrice(Duration from, Duration to) const;
};

// Bandwidths and bytes are per second and direction.
struct SiteLink {
  double latency_s = 0;
  double bytes_per_s = 0;
};

struct Scene {
  JobSpec spec;
  JobFacts facts;       // the real model's layers
  PlanningInput input;  // devices are named "worker/index"
  std::vector<SceneWorker> workers;
  std::map<std::pair<std::string, std::string>, SiteLink> links;  // of all pairs of sites
  std::vector<ServerPlace> servers;
  std::string coordinator_site;
  IslandScope island_scope = IslandScope::kSite;
  Times times;
  bool free_links = false;  // transfers take no time
  bool leaps = true;        // an island between two events is played at once

  int64_t parameters() const;
  int64_t devices() const;
};

// The workers of a cluster that the job does not leave out, and its model. `efficiency`: of the
// datasheet's speed.
absl::StatusOr<Scene> MakeScene(const JobSpec& spec, plan::Cluster cluster, double efficiency);
// Lists the devices of a worker as its hello has them.
std::vector<DeviceInfo> ListDevices(const plan::Cluster& cluster, const SceneWorker& worker);
// Where parameter servers and the coordinator are, checked; and which workers share islands.
absl::Status PlaceServices(std::vector<ServerPlace> servers, const std::string& coordinator_site,
                           Scene& scene);

}  // namespace atl::rehearsal

#endif  // ATOLL_REHEARSAL_SCENE_H_

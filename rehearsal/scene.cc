#include "rehearsal/scene.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/job_model.h"
#include "common/model/layout.h"
#include "coordinator/planning/island_scope.h"

namespace atl::rehearsal {
namespace {

// Devices are named as plans name them. The job may leave them out by either name.
void NameDevices(plan::Constraints& fixed, plan::Cluster& cluster) {
  std::map<std::string, std::set<std::string>> sites_of;
  for (const plan::Device& device : cluster.devices) sites_of[device.node].insert(device.site);
  std::map<std::string, int> counts;
  std::set<std::string> here, out;
  for (plan::Device& device : cluster.devices) {
    const std::string node = device.node.empty() ? device.id : device.node;
    const bool twice = !device.node.empty() && sites_of[device.node].size() > 1;
    const bool excluded = fixed.Excludes(node, device.id);
    for (const std::string& known : {node, device.id}) {
      if (fixed.exclude.contains(known)) here.insert(known);
    }
    device.node = twice ? absl::StrCat(device.site, "-", node) : node;
    device.id = absl::StrCat(device.node, "/", counts[device.node]++);
    if (excluded) out.insert(device.id);
  }
  for (const std::string& known : here) fixed.exclude.erase(known);
  fixed.exclude.merge(out);
}

// Nodes become workers.
void MakeWorkers(const plan::Cluster& cluster, Scene& scene) {
  std::map<std::string, size_t> known;
  for (size_t d = 0; d < cluster.devices.size(); ++d) {
    const plan::Device& device = cluster.devices[d];
    const auto [found, is_new] = known.try_emplace(device.node, scene.workers.size());
    if (is_new) scene.workers.push_back({device.node, device.site, {}});
    SceneWorker& worker = scene.workers[found->second];
    worker.devices.push_back(static_cast<int>(d));
    worker.prices.emplace_back().fill(cluster.types[device.type].price_per_hour);
  }
}

void MakeLinks(const plan::Cluster& cluster, Scene& scene) {
  std::set<std::string> sites;
  for (const SceneWorker& worker : scene.workers) sites.insert(worker.site);
  for (const std::string& from : sites) {
    for (const std::string& to : sites) {
      const plan::Link& link = from == to && !cluster.site_to_site.contains({from, to})
                                   ? cluster.site_link
                                   : cluster.LinkBetweenSites(from, to);
      scene.links[{from, to}] = {link.latency_s, link.bytes_per_s};
    }
  }
}

std::string LargestSite(const Scene& scene) {
  std::map<std::string, size_t> devices;
  for (const SceneWorker& worker : scene.workers) devices[worker.site] += worker.devices.size();
  return std::max_element(devices.begin(), devices.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

absl::Status CheckSite(const Scene& scene, const std::string& site, const char* what) {
  std::set<std::string> sites;
  for (const SceneWorker& worker : scene.workers) sites.insert(worker.site);
  if (sites.contains(site)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(what, ": the cluster has no site \"", site,
                                          "\"; there are ", absl::StrJoin(sites, ", ")));
}

}  // namespace

double SceneWorker::ComputePrice(Duration from, Duration to) const {
  std::array<double, kHours> by_hour{};
  double day = 0;
  for (const auto& device : prices) {
    for (size_t hour = 0; hour < kHours; ++hour) by_hour[hour] += device[hour];
  }
  for (const double price : by_hour) day += price;
  const auto until = [&](Duration time) {
    const double hours = Seconds(time) / 3600, days = std::floor(hours / kHours);
    double price = days * day, rest = hours - days * kHours;
    for (size_t hour = 0; rest > 0; ++hour, rest -= 1) {
      price += std::min(rest, 1.0) * by_hour[hour % kHours];
    }
    return price;
  };
  return until(to) - until(from);
}

int64_t Scene::parameters() const {
  int64_t sum = 0;
  for (const LayerSize& layer : facts.layers) sum += layer.elements;
  return sum;
}

int64_t Scene::devices() const { return static_cast<int64_t>(input.cluster.devices.size()); }

absl::StatusOr<Scene> MakeScene(const JobSpec& spec, plan::Cluster cluster, double efficiency) {
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfigOfJob(spec));
  ATOLL_ASSIGN_OR_RETURN(PlanningInput input, MakeJobInput(spec, config));
  plan::CostOptions options = input.costs.options();
  options.efficiency = efficiency;
  input.costs = input.costs.With(options);
  ATOLL_RETURN_IF_ERROR(Validate(cluster));
  NameDevices(input.job.fixed, cluster);
  ATOLL_RETURN_IF_ERROR(SetCluster(spec, std::move(cluster), input));
  Scene scene{.spec = spec, .input = std::move(input)};
  scene.facts.model = ToSpec(config);
  scene.facts.train_sequences = int64_t{1} << 30;
  scene.facts.validation_sequences = std::max<int64_t>(1, spec.schedule.validation_sequences);
  for (const LayerLayout& layout : MakeLayouts(config)) {
    scene.facts.layers.push_back({layout.name, layout.size});
  }
  MakeWorkers(scene.input.cluster, scene);
  MakeLinks(scene.input.cluster, scene);
  return scene;
}

std::vector<DeviceInfo> ListDevices(const plan::Cluster& cluster, const SceneWorker& worker) {
  std::vector<DeviceInfo> devices;
  for (const int device : worker.devices) {
    const auto type = static_cast<size_t>(cluster.devices[static_cast<size_t>(device)].type);
    const plan::DeviceType& of = cluster.types[type];
    DeviceInfo info{.kind = of.name, .memory_bytes = of.memory_bytes, .threads = 1};
    info.price_per_hour = of.price_per_hour;
    // Devices that the job leaves out keep their places.
    const std::string& id = cluster.devices[static_cast<size_t>(device)].id;
    devices.resize(static_cast<size_t>(IndexFromDevice(id)) + 1, info);
  }
  return devices;
}

absl::Status PlaceServices(std::vector<ServerPlace> servers, const std::string& coordinator_site,
                           Scene& scene) {
  for (const ServerPlace& place : servers) {
    ATOLL_RETURN_IF_ERROR(CheckSite(scene, place.site, "servers.site"));
    if (place.count < 1 || place.count > 256) {
      return absl::InvalidArgumentError(
          absl::StrCat("servers.count = ", place.count, ": at least 1, at most 256"));
    }
  }
  if (!coordinator_site.empty()) {
    ATOLL_RETURN_IF_ERROR(CheckSite(scene, coordinator_site, "coordinator"));
  }
  const std::string largest = LargestSite(scene);
  const OuterSpec& outer = scene.spec.outer;
  if (servers.empty()) {
    const int64_t count = std::max(outer.min_servers, outer.shard_copies);
    servers.push_back({largest, static_cast<int>(count)});
  }
  scene.servers = std::move(servers);
  scene.coordinator_site = coordinator_site.empty() ? largest : coordinator_site;
  scene.island_scope = scene.spec.layout.island;
  if (scene.island_scope != IslandScope::kAuto) return absl::OkStatus();
  PlanRequest request;
  request.spec = scene.spec;
  request.threads = SearchThreads();
  ATOLL_ASSIGN_OR_RETURN(const ScopePlans plans, PlanScope(request, scene.input, IslandScope::kAuto,
                                                           ToIslandOptions(scene.spec)));
  scene.island_scope = plans.island_scope;
  return absl::OkStatus();
}

}  // namespace atl::rehearsal

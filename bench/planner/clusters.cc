#include "bench/planner/clusters.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "coordinator/planner/testing/models.h"

namespace atl::bench {
namespace {

void AddNodes(plan::Cluster& cluster, const std::string& type, int nodes, int per_node,
              const std::string& site) {
  cluster.types.push_back(*plan::FindDeviceType(type));
  const int index = static_cast<int>(cluster.types.size()) - 1;
  for (int n = 0; n < nodes; ++n) {
    const std::string node = absl::StrCat(site, "-", type, "-", n);
    for (int d = 0; d < per_node; ++d) {
      cluster.devices.push_back({absl::StrCat(node, ".", d), node, site, index});
    }
  }
}

}  // namespace

plan::Costs Setting::costs() const {
  return plan::Costs(*plan::FindModel(model, sequence), {}, {.efficiency = efficiency});
}

Setting SpanTrain(int setting, const std::string& model, int batch) {
  Setting made;
  made.name = absl::StrCat("SpanTrain ", setting, ", ", model, ", batch ", batch);
  plan::Cluster& cluster = made.cluster;
  AddNodes(cluster, "rtx4090", 3, 4, "cloud");
  AddNodes(cluster, "rtx3090", 3, 2, "edge");
  AddNodes(cluster, "rtx3080", 4, 1, "end");
  const double fast = setting == 1 ? 125e6 : 62.5e6;
  const double slow = setting == 1 ? 12.5e6 : 62.5e6;
  cluster.site_link = {0.5e-3, fast};
  cluster.wan_link = {5e-3, fast};
  for (const char* other : {"edge", "end"}) {
    cluster.site_to_site[{"cloud", other}] = {5e-3, slow};
    cluster.site_to_site[{other, "cloud"}] = {5e-3, slow};
  }
  made.model = model;
  made.job.global_batch = batch;
  made.job.micro_batches = {1, 2, 4, 8};
  made.job.tensor_parallel = {1};  // PCIe servers
  const bool images = model.rfind("resnet", 0) == 0 || model.rfind("efficientnet", 0) == 0;
  made.sequence = images ? 32 : 512;
  made.efficiency = 0.2;
  return made;
}

Setting AutoHet(const std::vector<std::pair<std::string, int>>& devices, const std::string& model,
                int batch) {
  Setting made;
  for (const auto& [type, count] : devices) {
    absl::StrAppend(&made.name, made.name.empty() ? "" : " + ", count, " ", type);
    const int full = count / 8;
    if (full > 0) AddNodes(made.cluster, type, full, 8, "site");
    if (count % 8 > 0) AddNodes(made.cluster, type, 1, count % 8, full > 0 ? "site-" : "site");
  }
  for (plan::Device& device : made.cluster.devices) device.site = "site";
  const double a100 = plan::FindDeviceType("a100-80")->flops_per_s;
  for (plan::DeviceType& type : made.cluster.types) {
    if (type.name == "h800") type.flops_per_s = 2 * a100;
    if (type.name == "h20") type.memory_bytes = 100'000'000'000;
  }
  absl::StrAppend(&made.name, ", ", model);
  made.model = model;
  made.job.global_batch = batch;
  made.job.micro_batches = {1, 2, 4};
  return made;
}

Setting OneSite(const std::vector<std::string>& types, int count, int per_node,
                const std::string& model, int batch) {
  Setting made;
  for (const std::string& type : types) {
    absl::StrAppend(&made.name, made.name.empty() ? "" : " + ", count, " ", type);
    AddNodes(made.cluster, type, count / per_node, per_node, "site");
  }
  made.cluster.site_link = {20e-6, 12.5e9};
  absl::StrAppend(&made.name, ", ", model);
  made.model = model;
  made.job.global_batch = batch;
  made.job.micro_batches = {1, 2};
  return made;
}

Setting Unlike(int count, int sites, uint64_t seed, const std::string& model, int batch) {
  Setting made;
  made.name = absl::StrCat(count, " types, ", sites, " sites, ", model, ", #", seed);
  Rng rng(seed);
  plan::Cluster& cluster = made.cluster;
  for (int d = 0; d < count; ++d) {
    plan::DeviceType type = *plan::FindDeviceType("rtx3090");
    const double speed = std::exp2(3.0 * static_cast<double>(rng.Below(1000)) / 1000);
    type.name = absl::StrCat("type", d);
    type.flops_per_s = 20e12 * speed;
    type.memory_bytes_per_s = 300e9 * speed;
    type.memory_bytes = static_cast<int64_t>(8 + rng.Below(41)) << 30;
    cluster.types.push_back(type);
    const std::string site = absl::StrCat("site", d % sites);
    cluster.devices.push_back({absl::StrCat("d", d), absl::StrCat("n", d), site, d});
  }
  cluster.site_link = {0.2e-3, 125e6};
  for (int a = 0; a < sites; ++a) {
    for (int b = 0; b < a; ++b) {
      const plan::Link link = {2e-3 + 28e-3 * static_cast<double>(rng.Below(1000)) / 1000,
                               12.5e6 * (1 + static_cast<double>(rng.Below(10)))};
      const std::string from = absl::StrCat("site", a), to = absl::StrCat("site", b);
      cluster.site_to_site[{from, to}] = cluster.site_to_site[{to, from}] = link;
    }
  }
  made.model = model;
  made.job.global_batch = batch;
  made.job.tensor_parallel = {1};
  return made;
}

Setting Subset(const Setting& setting, const std::function<bool(int)>& keep) {
  Setting part = setting;
  part.cluster.devices.clear();
  for (size_t d = 0; d < setting.cluster.devices.size(); ++d) {
    if (keep(static_cast<int>(d))) part.cluster.devices.push_back(setting.cluster.devices[d]);
  }
  return part;
}

Setting Sites(const std::vector<std::string>& types, int count, int sites, const std::string& model,
              int batch) {
  Setting made;
  made.name = absl::StrCat(count, " of ", types.size(), " types, ", sites,
                           sites == 1 ? " site, " : " sites, ", model);
  const int nodes = count / 8;
  for (const std::string& type : types) made.cluster.types.push_back(*plan::FindDeviceType(type));
  for (int n = 0; n < nodes; ++n) {
    const int type = n * static_cast<int>(types.size()) / nodes;
    const std::string node = absl::StrCat("n", n);
    for (int d = 0; d < 8; ++d) {
      made.cluster.devices.push_back(
          {absl::StrCat(node, ".", d), node, absl::StrCat("site", n % sites), type});
    }
  }
  made.cluster.wan_link = {5e-3, 1.25e9};
  made.model = model;
  made.job.global_batch = batch;
  made.job.micro_batches = {1, 2, 4};
  return made;
}

}  // namespace atl::bench

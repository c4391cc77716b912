#include "bench/planner/clusters.h"

#include "absl/strings/str_cat.h"

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
  cluster.site_wire = {0.5e-3, fast};
  cluster.wan_wire = {5e-3, fast};
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
  made.cluster.site_wire = {20e-6, 12.5e9};
  absl::StrAppend(&made.name, ", ", model);
  made.model = model;
  made.job.global_batch = batch;
  made.job.micro_batches = {1, 2};
  return made;
}

}  // namespace atl::bench

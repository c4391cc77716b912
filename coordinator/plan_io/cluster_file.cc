#include "coordinator/plan_io/cluster_file.h"

#include <google/protobuf/repeated_field.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/status.h"
#include "common/toml_message.h"

namespace atl {
namespace {

constexpr int64_t kPayloadBytes = 8'000'000;
constexpr size_t kMaxFileBytes = 64 << 20;

std::vector<plan::BandwidthChange> ChangesOf(
    const google::protobuf::RepeatedPtrField<v1::BandwidthChange>& changes) {
  std::vector<plan::BandwidthChange> result;
  for (const v1::BandwidthChange& change : changes) {
    result.push_back({static_cast<double>(change.time_ns()) * 1e-9, change.factor()});
  }
  return result;
}

absl::Status ReadTrunks(const v1::ClusterSpec& spec, plan::Cluster& cluster) {
  std::set<std::string> names;
  for (const v1::Trunk& trunk : spec.trunks()) {
    if (!names.insert(trunk.name()).second) {
      return absl::InvalidArgumentError(absl::StrCat("trunk \"", trunk.name(), "\" appears twice"));
    }
    cluster.trunks.push_back(
        {trunk.name(), trunk.bandwidth_bytes_per_s(), ChangesOf(trunk.changes())});
  }
  return absl::OkStatus();
}

absl::StatusOr<plan::Wire> WireOf(const plan::Cluster& cluster, const v1::Link& link) {
  std::vector<plan::WireEdge> edges;
  std::map<std::string, int> conflicts;
  for (const v1::Edge& edge : link.edges()) {
    plan::WireEdge& added = edges.emplace_back();
    added.latency_s = static_cast<double>(edge.latency_ns()) * 1e-9;
    added.bytes_per_s = edge.bandwidth_bytes_per_s();
    added.changes = ChangesOf(edge.changes());
    added.price_per_byte = edge.price_per_gb() * 1e-9;
    if (!edge.trunk().empty()) {
      const auto trunk = std::find_if(cluster.trunks.begin(), cluster.trunks.end(),
                                      [&](const plan::Trunk& t) { return t.name == edge.trunk(); });
      if (trunk == cluster.trunks.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("trunk \"", edge.trunk(), "\" is not described under [[trunks]]"));
      }
      added.trunk = static_cast<int>(trunk - cluster.trunks.begin());
    }
    if (!edge.conflict().empty()) {
      added.conflict_set =
          conflicts.try_emplace(edge.conflict(), static_cast<int>(conflicts.size())).first->second;
    }
  }
  if (edges.empty()) return absl::InvalidArgumentError("edges: a link has at least one");
  return plan::MakeWire(std::move(edges), cluster.trunks);
}

// Types by name, memory and price, as devices ask for them.
absl::StatusOr<int> TypeOf(const v1::Device& device, plan::Cluster& cluster) {
  auto type = plan::FindDeviceType(device.type());
  if (!type.ok()) return type.status();
  if (device.memory_bytes() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("memory_bytes = ", device.memory_bytes()));
  }
  if (device.memory_bytes() > 0) type->memory_bytes = device.memory_bytes();
  type->price_per_hour = device.price_per_hour();
  for (size_t t = 0; t < cluster.types.size(); ++t) {
    if (cluster.types[t].name == type->name &&
        cluster.types[t].memory_bytes == type->memory_bytes &&
        cluster.types[t].price_per_hour == type->price_per_hour) {
      return static_cast<int>(t);
    }
  }
  cluster.types.push_back(*type);
  return static_cast<int>(cluster.types.size()) - 1;
}

absl::Status CheckSitesJoined(const plan::Cluster& cluster, const std::set<std::string>& sites) {
  for (const std::string& from : sites) {
    for (const std::string& to : sites) {
      if (from == to || cluster.site_to_site.count({from, to}) > 0) continue;
      return absl::InvalidArgumentError(absl::StrCat("there is no link from site \"", from,
                                                     "\" to site \"", to,
                                                     "\"; add one under [[links]]"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::ClusterSpec> ParseClusterToml(absl::string_view text, absl::string_view name) {
  v1::ClusterSpec spec;
  ATOLL_RETURN_IF_ERROR(TomlMessage(std::string(name)).Read(text, &spec));
  return spec;
}

absl::StatusOr<plan::Cluster> ToCluster(const v1::ClusterSpec& spec) {
  plan::Cluster cluster;
  std::map<std::string, int> devices;
  std::set<std::string> sites;
  for (const v1::Device& device : spec.devices()) {
    const auto type = TypeOf(device, cluster);
    if (!type.ok()) {
      return Annotate(type.status(), absl::StrCat("device \"", device.id(), "\""));
    }
    const std::string site = device.site().empty() ? "site" : device.site();
    const std::string node = device.node().empty() ? device.id() : device.node();
    devices[device.id()] = static_cast<int>(cluster.devices.size());
    sites.insert(site);
    cluster.devices.push_back(
        {device.id(), node, site, *type, device.egress_price_per_gb() * 1e-9});
  }
  ATOLL_RETURN_IF_ERROR(ReadTrunks(spec, cluster));
  for (const v1::Link& link : spec.links()) {
    const std::string where =
        absl::StrCat("link from \"", link.from(), "\" to \"", link.to(), "\"");
    const auto wire = WireOf(cluster, link);
    if (!wire.ok()) return Annotate(wire.status(), where);
    const auto from = devices.find(link.from());
    const auto to = devices.find(link.to());
    if (from != devices.end() && to != devices.end()) {
      cluster.measured[{from->second, to->second}] = *wire;
    } else if (sites.count(link.from()) > 0 && sites.count(link.to()) > 0) {
      cluster.site_to_site[{link.from(), link.to()}] = *wire;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": both ends are devices, or both are sites, of this file"));
    }
  }
  // Links of device pairs join their sites too: the slowest of them stands for the rest.
  for (const auto& [pair, wire] : cluster.measured) {
    const std::string& a = cluster.devices[pair.first].site;
    const std::string& b = cluster.devices[pair.second].site;
    if (a == b) continue;
    const auto [known, added] = cluster.site_to_site.try_emplace({a, b}, wire);
    if (!added && wire.Seconds(kPayloadBytes) > known->second.Seconds(kPayloadBytes)) {
      known->second = wire;
    }
  }
  ATOLL_RETURN_IF_ERROR(CheckSitesJoined(cluster, sites));
  ATOLL_RETURN_IF_ERROR(plan::Validate(cluster));
  return cluster;
}

absl::StatusOr<plan::Cluster> LoadClusterFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::string text;
  char block[1 << 16];
  while (file.read(block, sizeof(block)) || file.gcount() > 0) {
    text.append(block, static_cast<size_t>(file.gcount()));
    if (text.size() > kMaxFileBytes) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": is larger than 64 MB"));
    }
  }
  ATOLL_ASSIGN_OR_RETURN(const v1::ClusterSpec spec, ParseClusterToml(text, path));
  auto cluster = ToCluster(spec);
  if (!cluster.ok()) return Annotate(cluster.status(), path);
  return cluster;
}

}  // namespace atl

#include "coordinator/plan_io/cluster_file.h"

#include <cmath>
#include <set>

#include "absl/strings/escaping.h"
#include "common/status.h"
#include "common/toml_message.h"
#include "coordinator/plan_io/links.h"
#include "coordinator/plan_io/read_text.h"

namespace atl {
namespace {

constexpr int64_t kPayloadBytes = 8'000'000;
constexpr int64_t kFileBytesMax = 64 << 20;

// Reads what a job may send over the link in a day.
absl::Status ReadLimit(const v1::Link& link, const std::set<std::string>& sites,
                       plan::Cluster& cluster) {
  const double bytes = link.bytes_per_day();
  if (bytes == 0) return absl::OkStatus();
  if (!(bytes > 0) || !std::isfinite(bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes_per_day = ", bytes, ": must be above 0, or left out for no limit"));
  }
  if (link.from() == link.to() || !sites.contains(link.from()) || !sites.contains(link.to())) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes_per_day = ", bytes, ": only a link from one site to another has it"));
  }
  cluster.bytes_per_day[{link.from(), link.to()}] = bytes;
  return absl::OkStatus();
}

absl::Status ReadLinks(const v1::ClusterSpec& spec, const DeviceIndex& devices,
                       plan::Cluster& cluster) {
  const std::set<std::string> sites = cluster.ListSites();
  for (const v1::Link& link : spec.links()) {
    const std::string where = absl::StrCat("link from \"", absl::CHexEscape(link.from()),
                                           "\" to \"", absl::CHexEscape(link.to()), "\"");
    const auto plan_link = LinkFromMessage(cluster, link);
    if (!plan_link.ok()) return Annotate(plan_link.status(), where);
    const auto from = devices.find(link.from());
    const auto to = devices.find(link.to());
    bool added = true;
    if (from != devices.end() && to != devices.end()) {
      if (from == to) {
        return absl::InvalidArgumentError(absl::StrCat(where, ": it joins a device to itself"));
      }
      added = cluster.measured.try_emplace({from->second, to->second}, *plan_link).second;
    } else if (sites.count(link.from()) > 0 && sites.count(link.to()) > 0) {
      added = cluster.site_to_site.try_emplace({link.from(), link.to()}, *plan_link).second;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": both ends are devices, or both are sites, of this file"));
    }
    if (!added) return absl::InvalidArgumentError(absl::StrCat(where, " appears twice"));
    ATOLL_RETURN_IF_ERROR(Annotate(ReadLimit(link, sites, cluster), where));
  }
  return absl::OkStatus();
}

// Adds what was measured between devices of the file, where it says nothing of them or of their
// sites.
absl::Status AddMeasuredLinks(const v1::ClusterSpec& measured, const DeviceIndex& devices,
                              plan::Cluster& cluster) {
  const auto described = cluster.site_to_site;
  for (const v1::Link& link : measured.links()) {
    const auto from = devices.find(link.from());
    const auto to = devices.find(link.to());
    if (from == devices.end() || to == devices.end() || from == to) continue;
    const plan::Device& a = cluster.devices[from->second];
    const plan::Device& b = cluster.devices[to->second];
    if (a.node != b.node && described.contains({a.site, b.site})) continue;
    // Trunks of the profile may not be those of the file.
    v1::Link plain = link;
    for (v1::Edge& edge : *plain.mutable_edges()) edge.clear_trunk();
    const auto plan_link = LinkFromMessage(cluster, plain);
    if (!plan_link.ok()) {
      return Annotate(plan_link.status(),
                      absl::StrCat("measured link from \"", a.id, "\" to \"", b.id, "\""));
    }
    cluster.measured.try_emplace({from->second, to->second}, *plan_link);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::ClusterSpec> ParseClusterToml(absl::string_view text, absl::string_view name) {
  v1::ClusterSpec spec;
  ATOLL_RETURN_IF_ERROR(TomlMessage(std::string(name)).Read(text, &spec));
  return spec;
}

absl::StatusOr<plan::Cluster> ToCluster(const v1::ClusterSpec& spec, const Measured& measured) {
  plan::Cluster cluster;
  DeviceIndex devices;
  ATOLL_RETURN_IF_ERROR(CheckTypes(spec));
  ATOLL_RETURN_IF_ERROR(ReadDevices(spec, measured, /*same_memory=*/1, cluster, devices));
  ATOLL_RETURN_IF_ERROR(ReadTrunks(spec, cluster));
  ATOLL_RETURN_IF_ERROR(ReadLinks(spec, devices, cluster));
  ATOLL_RETURN_IF_ERROR(AddMeasuredLinks(measured.cluster, devices, cluster));
  ATOLL_RETURN_IF_ERROR(CheckNodeLinks(cluster));
  // Links of device pairs join their sites too: the slowest of them stands for the rest.
  for (const auto& [pair, plan_link] : cluster.measured) {
    const std::string& a = cluster.devices[pair.first].site;
    const std::string& b = cluster.devices[pair.second].site;
    if (a == b) continue;
    const auto [known, added] = cluster.site_to_site.try_emplace({a, b}, plan_link);
    if (!added && plan_link.Seconds(kPayloadBytes) > known->second.Seconds(kPayloadBytes)) {
      known->second = plan_link;
    }
  }
  ATOLL_RETURN_IF_ERROR(CheckSitesJoined(cluster, "add one under [[links]]"));
  ATOLL_RETURN_IF_ERROR(plan::Validate(cluster));
  plan::SetRingLinks(cluster);
  return cluster;
}

absl::StatusOr<v1::ClusterSpec> LoadClusterSpec(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(const std::string text, ReadText(path, kFileBytesMax));
  return ParseClusterToml(text, path);
}

absl::StatusOr<plan::Cluster> LoadClusterFile(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(const v1::ClusterSpec spec, LoadClusterSpec(path));
  auto cluster = ToCluster(spec);
  if (!cluster.ok()) return Annotate(cluster.status(), path);
  return cluster;
}

}  // namespace atl

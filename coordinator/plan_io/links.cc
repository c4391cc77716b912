#include "coordinator/plan_io/links.h"

#include <google/protobuf/repeated_field.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr size_t kNameMax = 256;
constexpr double kFigureMax = 1e18;  // of a type
constexpr double kHostLink = 4e9;    // a copy between threads of one process

// Returns whether the name is what workers without a GPU call their devices.
bool IsHostKind(absl::string_view name) { return name.substr(0, 3) == "cpu"; }

std::vector<plan::BandwidthChange> ToBandwidthChanges(
    const google::protobuf::RepeatedPtrField<v1::BandwidthChange>& changes) {
  std::vector<plan::BandwidthChange> result;
  for (const v1::BandwidthChange& change : changes) {
    result.push_back({static_cast<double>(change.time_ns()) * 1e-9, change.factor()});
  }
  return result;
}

// Reads the times of an edge, which has no bandwidth of its own or one for larger sizes.
absl::Status ReadTimes(const v1::Edge& edge, plan::LinkEdge& plan_edge) {
  if (edge.times().empty()) return absl::OkStatus();
  std::vector<MessageTime> times;
  for (const v1::MessageTime& time : edge.times()) times.push_back({time.bytes(), time.time_ns()});
  if (plan_edge.bytes_per_s == 0) {
    const double last = sim::SizeCurve::LastBandwidth(times, plan_edge.latency_s);
    plan_edge.bytes_per_s = last > 0 ? last : 1;  // they do not rise, which Make says
  }
  ATOLL_ASSIGN_OR_RETURN(plan_edge.sizes,
                         sim::SizeCurve::Make(times, plan_edge.latency_s, plan_edge.bytes_per_s));
  return absl::OkStatus();
}

absl::Status CheckPrice(absl::string_view field, double price) {
  if (price >= 0 && std::isfinite(price)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " = ", price, ": must be a number of at least 0"));
}

// Refuses what is empty, longer than 256 bytes or has control characters, naming it as `what`.
absl::Status CheckName(absl::string_view what, absl::string_view name) {
  const bool printable = std::ranges::none_of(
      name, [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
  if (!name.empty() && name.size() <= kNameMax && printable) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is \"", absl::CHexEscape(name.substr(0, kNameMax)),
                   "\": it must have 1 to ", kNameMax, " bytes and no control characters"));
}

absl::Status CheckPrices(const v1::Device& device) {
  absl::Status checked = CheckPrice("price_per_hour", device.price_per_hour());
  checked.Update(CheckPrice("egress_price_per_gb", device.egress_price_per_gb()));
  return checked;
}

// Returns the type as the description says, else as the catalogue does. The speed of a type with
// measured times is the measured one. Memory and link are 0 where nothing says them. Others are
// refused.
absl::StatusOr<plan::DeviceType> NamedType(const std::string& name, const v1::ClusterSpec& spec,
                                           const plan::ProfileTable& times) {
  const auto said = std::find_if(spec.types().begin(), spec.types().end(),
                                 [&](const v1::DeviceType& type) { return type.name() == name; });
  const bool timed = std::ranges::any_of(
      times, [&](const auto& entry) { return std::get<0>(entry.first) == name; });
  const auto known = plan::FindDeviceType(name);
  if (!known.ok() && !timed && said == spec.types().end()) return known.status();
  plan::DeviceType type = known.ok() ? *known : plan::DeviceType{name, 0, 0, 0, 0};
  if (timed || said != spec.types().end()) type.name = name;
  if (said != spec.types().end()) {
    const auto set = [](auto value, auto& figure) {
      if (value > 0) figure = value;
    };
    set(said->memory_bytes(), type.memory_bytes);
    set(said->flops_per_s(), type.flops_per_s);
    set(said->memory_bytes_per_s(), type.memory_bytes_per_s);
    set(said->link_bytes_per_s(), type.link_bytes_per_s);
  }
  if (IsHostKind(name) && type.link_bytes_per_s == 0) type.link_bytes_per_s = kHostLink;
  // Speeds of a type with times are only compared.
  if (timed && type.flops_per_s == 0) type.flops_per_s = 100e9;
  if (timed && type.memory_bytes_per_s == 0) type.memory_bytes_per_s = 10e9;
  if (type.flops_per_s > 0 && type.memory_bytes_per_s > 0) return type;
  return absl::InvalidArgumentError(
      absl::StrCat("type \"", absl::CHexEscape(name), "\": give its flops_per_s and ",
                   "memory_bytes_per_s under [[types]], too: the catalogue does not have it"));
}

// `measured_bytes`: of the device, 0 where that is not known.
absl::StatusOr<int> FindOrAddType(const v1::Device& device, const v1::ClusterSpec& spec,
                                  int64_t measured_bytes, const plan::ProfileTable& times,
                                  double same_memory, plan::Cluster& cluster) {
  ATOLL_ASSIGN_OR_RETURN(plan::DeviceType type, NamedType(device.type(), spec, times));
  if (device.memory_bytes() < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memory_bytes = ", device.memory_bytes(), ": must be above 0; leave it out for all of it"));
  }
  if (measured_bytes > 0) type.memory_bytes = measured_bytes;
  if (device.memory_bytes() > 0) type.memory_bytes = device.memory_bytes();
  if (type.memory_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("type \"", absl::CHexEscape(device.type()),
                     "\": nothing says how much memory it has: give memory_bytes, too"));
  }
  type.price_per_hour = device.price_per_hour();
  const auto same = std::ranges::find_if(cluster.types, [&](const plan::DeviceType& known) {
    const auto [least, most] = std::minmax(known.memory_bytes, type.memory_bytes);
    return known.name == type.name && known.price_per_hour == type.price_per_hour &&
           static_cast<double>(most) <= same_memory * static_cast<double>(least);
  });
  const auto index = static_cast<int>(same - cluster.types.begin());
  if (same == cluster.types.end()) {
    cluster.types.push_back(std::move(type));
  } else {
    same->memory_bytes = std::min(same->memory_bytes, type.memory_bytes);
  }
  return index;
}

}  // namespace

absl::Status ReadDevices(const v1::ClusterSpec& spec, const Measured& measured, double same_memory,
                         plan::Cluster& cluster, DeviceIndex& devices) {
  std::map<std::string, int64_t> measured_bytes;
  for (const v1::Device& device : measured.cluster.devices()) {
    measured_bytes[device.id()] = device.memory_bytes();
  }
  for (const v1::Device& device : spec.devices()) {
    ATOLL_RETURN_IF_ERROR(CheckName("a device's id", device.id()));
    const std::string where = absl::StrCat("device \"", device.id(), "\"");
    const std::string site = device.site().empty() ? "site" : device.site();
    const std::string node = device.node().empty() ? device.id() : device.node();
    ATOLL_RETURN_IF_ERROR(CheckName("a device's site", site));
    ATOLL_RETURN_IF_ERROR(CheckName("a device's node", node));
    ATOLL_RETURN_IF_ERROR(Annotate(CheckPrices(device), where));
    const auto type = FindOrAddType(device, spec, measured_bytes[device.id()], measured.times,
                                    same_memory, cluster);
    if (!type.ok()) return Annotate(type.status(), where);
    if (!devices.try_emplace(device.id(), static_cast<int>(cluster.devices.size())).second) {
      return absl::InvalidArgumentError(absl::StrCat(where, " appears twice"));
    }
    cluster.devices.push_back(
        {device.id(), node, site, *type, device.egress_price_per_gb() * 1e-9});
  }
  return absl::OkStatus();
}

absl::Status CheckSitesJoined(const plan::Cluster& cluster, absl::string_view remedy) {
  const std::set<std::string> sites = cluster.ListSites();
  for (const std::string& from : sites) {
    for (const std::string& to : sites) {
      if (from == to || cluster.site_to_site.count({from, to}) > 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("there is no link from site \"", from, "\" to site \"", to, "\"; ", remedy));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadTrunks(const v1::ClusterSpec& spec, plan::Cluster& cluster) {
  std::set<std::string> names;
  for (const v1::Trunk& trunk : spec.trunks()) {
    ATOLL_RETURN_IF_ERROR(CheckName("a trunk's name", trunk.name()));
    if (!names.insert(trunk.name()).second) {
      return absl::InvalidArgumentError(absl::StrCat("trunk \"", trunk.name(), "\" appears twice"));
    }
    cluster.trunks.push_back(
        {trunk.name(), trunk.bandwidth_bytes_per_s(), ToBandwidthChanges(trunk.changes())});
  }
  return absl::OkStatus();
}

absl::StatusOr<plan::Link> LinkFromMessage(const plan::Cluster& cluster, const v1::Link& link) {
  for (const v1::Edge& edge : link.edges()) {
    ATOLL_RETURN_IF_ERROR(CheckPrice("price_per_gb", edge.price_per_gb()));
    if (edge.latency_ns() >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("latency_ns = ", edge.latency_ns(), ": must be at least 0"));
  }
  std::vector<plan::LinkEdge> edges;
  std::map<std::string, int> conflicts;
  for (const v1::Edge& edge : link.edges()) {
    plan::LinkEdge& added = edges.emplace_back();
    added.latency_s = static_cast<double>(edge.latency_ns()) * 1e-9;
    added.bytes_per_s = edge.bandwidth_bytes_per_s();
    added.changes = ToBandwidthChanges(edge.changes());
    added.price_per_byte = edge.price_per_gb() * 1e-9;
    ATOLL_RETURN_IF_ERROR(ReadTimes(edge, added));
    if (!edge.trunk().empty()) {
      const auto trunk = std::ranges::find_if(
          cluster.trunks, [&](const plan::Trunk& t) { return t.name == edge.trunk(); });
      if (trunk == cluster.trunks.end()) {
        return absl::InvalidArgumentError(absl::StrCat("trunk \"", absl::CHexEscape(edge.trunk()),
                                                       "\" is not described under [[trunks]]"));
      }
      added.trunk = static_cast<int>(trunk - cluster.trunks.begin());
    }
    if (!edge.conflict().empty()) {
      added.conflict_set =
          conflicts.try_emplace(edge.conflict(), static_cast<int>(conflicts.size())).first->second;
    }
  }
  if (edges.empty()) return absl::InvalidArgumentError("edges: a link has at least one");
  return plan::MakeLink(std::move(edges), cluster.trunks);
}

namespace {

absl::Status CheckFigures(const v1::DeviceType& type) {
  for (const auto& [field, value] :
       {std::pair("memory_bytes", static_cast<double>(type.memory_bytes())),
        std::pair("flops_per_s", type.flops_per_s()),
        std::pair("memory_bytes_per_s", type.memory_bytes_per_s()),
        std::pair("link_bytes_per_s", type.link_bytes_per_s())}) {
    if (value >= 0 && value <= kFigureMax) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("types: \"", absl::CHexEscape(type.name()), "\": ", field, " = ", value,
                     ": must be above 0, at most ", kFigureMax, ", or left out"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTypes(const v1::ClusterSpec& spec) {
  std::set<std::string> names;
  for (const v1::DeviceType& type : spec.types()) {
    ATOLL_RETURN_IF_ERROR(CheckName("a type's name", type.name()));
    ATOLL_RETURN_IF_ERROR(CheckFigures(type));
    if (!names.insert(type.name()).second) {
      return absl::InvalidArgumentError(absl::StrCat("type \"", type.name(), "\" appears twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNodeLinks(plan::Cluster& cluster) {
  std::map<std::pair<std::string, std::string>, std::vector<int>> nodes;  // of such types
  for (size_t d = 0; d < cluster.devices.size(); ++d) {
    const plan::Device& device = cluster.devices[d];
    if (cluster.types[device.type].link_bytes_per_s > 0) continue;
    nodes[{device.site, device.node}].push_back(static_cast<int>(d));
  }
  for (size_t d = 0; d < cluster.devices.size() && !nodes.empty(); ++d) {
    const int b = static_cast<int>(d);
    const auto node = nodes.find({cluster.devices[d].site, cluster.devices[d].node});
    if (node == nodes.end()) continue;
    for (const int a : node->second) {
      if (a == b || (cluster.measured.contains({a, b}) && cluster.measured.contains({b, a}))) {
        continue;
      }
      const plan::Device& device = cluster.devices[a];
      return absl::InvalidArgumentError(absl::StrCat(
          "type \"", absl::CHexEscape(cluster.types[device.type].name), "\": nothing says how \"",
          absl::CHexEscape(device.id), "\" and \"", absl::CHexEscape(cluster.devices[b].id),
          "\" of node \"", absl::CHexEscape(device.node), "\" are linked: give the type's ",
          "link_bytes_per_s under [[types]], or links between them in both directions"));
    }
  }
  // Nothing goes over what is left.
  for (plan::DeviceType& type : cluster.types) {
    if (type.link_bytes_per_s == 0) type.link_bytes_per_s = 1;
  }
  return absl::OkStatus();
}

}  // namespace atl

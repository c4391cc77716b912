#include "coordinator/planner/cluster/constraints.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bytes_text.h"
#include "common/status.h"

namespace atl::plan {
namespace {

constexpr size_t kNamed = 8;  // names in a message

std::string Listed(const std::set<std::string>& names) {
  std::vector<std::string> first(names.begin(),
                                 std::next(names.begin(), std::min(kNamed, names.size())));
  if (names.size() > kNamed) first.push_back(absl::StrCat("and ", names.size() - kNamed, " more"));
  return absl::StrJoin(first, ", ");
}

bool Allows(const Constraints& fixed, const Device& device) {
  return !fixed.Excludes(device.node, device.id) &&
         (fixed.sites.empty() || fixed.sites.contains(device.site));
}

absl::Status Unknown(const char* key, const std::string& name, const char* what,
                     const std::set<std::string>& known) {
  return absl::InvalidArgumentError(absl::StrCat(key, " names \"", name, "\", which is no ", what,
                                                 " of the cluster; there are: ", Listed(known)));
}

// Takes the memory that is kept back from every type, and the types that have no more with their
// devices.
absl::Status KeepBack(Constraints& fixed, Cluster& cluster) {
  const int64_t kept = fixed.memory_reserve_bytes;
  const auto has_more = [&](const Device& device) {
    return cluster.types[device.type].memory_bytes > kept;
  };
  std::set<std::string> too_small;
  int64_t most = 0;
  for (const Device& device : cluster.devices) {
    most = std::max(most, cluster.types[device.type].memory_bytes);
    if (!has_more(device)) too_small.insert(device.id);
  }
  if (most <= kept) {
    return absl::FailedPreconditionError(
        absl::StrCat("no device is left: layout.memory_reserve_bytes = ", kept, " (",
                     BytesText(kept), ") of each, and the largest has ", BytesText(most)));
  }
  if (!too_small.empty()) cluster = WithDevices(cluster, has_more);
  std::vector<DeviceType> types;
  std::vector<int> index;  // of a type, among those that are left
  for (DeviceType& type : cluster.types) {
    index.push_back(static_cast<int>(types.size()));
    if (type.memory_bytes <= kept) continue;
    type.memory_bytes -= kept;
    types.push_back(std::move(type));
  }
  for (Device& device : cluster.devices) device.type = index[device.type];
  cluster.types = std::move(types);
  fixed.too_small = std::move(too_small);
  return absl::OkStatus();
}

}  // namespace

absl::Status NothingLeft(const Constraints& fixed, size_t devices) {
  std::vector<std::string> keys;
  if (!fixed.exclude.empty()) {
    keys.push_back(absl::StrCat("layout.exclude = ", Listed(fixed.exclude)));
  }
  if (!fixed.sites.empty()) keys.push_back(absl::StrCat("layout.sites = ", Listed(fixed.sites)));
  return absl::FailedPreconditionError(
      absl::StrCat("no device is left: ", absl::StrJoin(keys, " and "),
                   keys.size() > 1 ? " leave out all of " : " leaves out all of ", devices,
                   devices == 1 ? " device" : " devices"));
}

absl::Status Constrain(Constraints& fixed, Cluster& cluster) {
  Cluster allowed = cluster;
  if (!fixed.exclude.empty() || !fixed.sites.empty()) {
    allowed = WithDevices(cluster, [&](const Device& device) { return Allows(fixed, device); });
    if (allowed.devices.empty()) return NothingLeft(fixed, cluster.devices.size());
  }
  if (fixed.memory_reserve_bytes > 0) ATOLL_RETURN_IF_ERROR(KeepBack(fixed, allowed));
  if (std::all_of(cluster.devices.begin(), cluster.devices.end(),
                  [&](const Device& device) { return fixed.sites.contains(device.site); })) {
    fixed.sites.clear();
  }
  cluster = std::move(allowed);
  for (const auto& [sites, bytes] : fixed.bytes_per_day) {
    const auto [limit, added] = cluster.bytes_per_day.try_emplace(sites, bytes);
    if (!added) limit->second = std::min(limit->second, bytes);
  }
  return absl::OkStatus();
}

absl::Status CheckNames(const Constraints& fixed, const Cluster& cluster) {
  const std::set<std::string> sites = cluster.ListSites();
  std::set<std::string> nodes, ids;
  for (const Device& device : cluster.devices) {
    nodes.insert(device.node);
    ids.insert(device.id);
  }
  for (const std::string& name : fixed.exclude) {
    if (nodes.contains(name) || ids.contains(name)) continue;
    return Unknown("layout.exclude", name, "node or device", nodes);
  }
  for (const std::string& name : fixed.sites) {
    if (!sites.contains(name)) return Unknown("layout.sites", name, "site", sites);
  }
  for (const auto& [ends, bytes] : fixed.bytes_per_day) {
    for (const std::string& name : {ends.first, ends.second}) {
      if (!sites.contains(name)) return Unknown("layout.link_limits", name, "site", sites);
    }
  }
  return absl::OkStatus();
}

std::string ConstraintsText(const Constraints& fixed) {
  std::vector<std::string> parts;
  if (!fixed.exclude.empty()) {
    parts.push_back(absl::StrCat("without ", Listed(fixed.exclude), " (layout.exclude)"));
  }
  if (!fixed.sites.empty()) {
    parts.push_back(absl::StrCat("only at ", Listed(fixed.sites), " (layout.sites)"));
  }
  if (fixed.memory_reserve_bytes > 0) {
    parts.push_back(absl::StrCat("with ", BytesText(fixed.memory_reserve_bytes),
                                 " of each device kept back (layout.memory_reserve_bytes)"));
  }
  if (!fixed.too_small.empty()) {
    parts.push_back(absl::StrCat("which leaves out ", Listed(fixed.too_small)));
  }
  return absl::StrJoin(parts, ", ");
}

}  // namespace atl::plan

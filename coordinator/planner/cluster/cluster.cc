#include "coordinator/planner/cluster/cluster.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>
#include <tuple>

#include "common/status.h"
#include "coordinator/simulator/network.h"

namespace atl::plan {
namespace {

absl::Status ValidateChanges(const std::vector<BandwidthChange>& changes, absl::string_view what) {
  double before_s = 0;
  for (const BandwidthChange& change : changes) {
    if (!(change.time_s > before_s) || !(change.factor >= 0) || !std::isfinite(change.time_s) ||
        !std::isfinite(change.factor)) {
      return absl::InvalidArgumentError(absl::StrCat(
          what, ": bandwidth changes need rising times above 0 and factors of at least 0"));
    }
    before_s = change.time_s;
  }
  if (!changes.empty() && changes.back().factor == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": the last bandwidth change leaves it without any for ever"));
  }
  return absl::OkStatus();
}

absl::Status ValidatePrice(double price, absl::string_view what) {
  if (price >= 0 && std::isfinite(price)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": a price must be a number of at least 0, not ", price));
}

absl::Status ValidateLink(const Link& plan_link, size_t trunks, absl::string_view what) {
  ATOLL_RETURN_IF_ERROR(ValidatePrice(plan_link.price_per_byte, what));
  for (const LinkEdge& edge : plan_link.edges) {
    if (edge.trunk >= static_cast<int>(trunks)) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": there is no trunk ", edge.trunk));
    }
    ATOLL_RETURN_IF_ERROR(ValidateChanges(edge.changes, what));
    ATOLL_RETURN_IF_ERROR(ValidatePrice(edge.price_per_byte, what));
    ATOLL_RETURN_IF_ERROR(ValidateLink({edge.latency_s, edge.bytes_per_s, {}}, trunks, what));
  }
  if (!(plan_link.bytes_per_s > 0) || !std::isfinite(plan_link.bytes_per_s) ||
      !(plan_link.latency_s >= 0) || !std::isfinite(plan_link.latency_s)) {
    return absl::InvalidArgumentError(absl::StrCat(what,
                                                   ": a link needs a positive bandwidth and a "
                                                   "latency of at least 0, not ",
                                                   plan_link.bytes_per_s, " bytes/s and ",
                                                   plan_link.latency_s, " s"));
  }
  return absl::OkStatus();
}

// Average linkage over a distance matrix with a heap of pairs; `may_merge` is called with the
// distance of two groups. Groups are returned with ascending members, in order of the first.
template <class MayMerge>
std::vector<std::vector<int>> Agglomerate(std::vector<std::vector<double>> distance,
                                          const MayMerge& may_merge) {
  const int n = static_cast<int>(distance.size());
  std::vector<std::vector<int>> members(n);
  std::vector<int> version(n, 0);
  using Pair = std::tuple<double, int, int, int, int>;  // distance, a, b, their versions
  std::priority_queue<Pair, std::vector<Pair>, std::greater<>> heap;
  for (int a = 0; a < n; ++a) {
    members[a] = {a};
    for (int b = a + 1; b < n; ++b) heap.push({distance[a][b], a, b, 0, 0});
  }
  while (!heap.empty()) {
    const auto [d, a, b, version_a, version_b] = heap.top();
    heap.pop();
    if (version[a] != version_a || version[b] != version_b) continue;
    if (!may_merge(d, members[a], members[b])) continue;
    const double size_a = static_cast<double>(members[a].size());
    const double size_b = static_cast<double>(members[b].size());
    members[a].insert(members[a].end(), members[b].begin(), members[b].end());
    members[b].clear();
    ++version[a];
    version[b] = -1;
    for (int c = 0; c < n; ++c) {
      if (c == a || version[c] < 0) continue;
      const double joined = (size_a * distance[a][c] + size_b * distance[b][c]) / (size_a + size_b);
      distance[a][c] = distance[c][a] = joined;
      heap.push({joined, std::min(a, c), std::max(a, c), version[std::min(a, c)],
                 version[std::max(a, c)]});
    }
  }
  std::vector<std::vector<int>> groups;
  for (std::vector<int>& group : members) {
    if (group.empty()) continue;
    std::ranges::sort(group);
    groups.push_back(std::move(group));
  }
  return groups;
}

constexpr int64_t kPayloadBytes = 8'000'000;
constexpr int kMostRing = 64;
constexpr double kTheta = 2, kPowerRatio = 1.25;  // of groups that merge

}  // namespace

double Link::Seconds(double bytes) const {
  if (edges.empty()) return latency_s + sim::EffectiveBytes(sizes, bytes) / bytes_per_s;
  std::vector<sim::EdgeOffer> offers;
  for (const LinkEdge& edge : edges) {
    offers.push_back(
        {edge.latency_s * 1e9, edge.bytes_per_s * 1e-9, edge.conflict_set, edge.sizes.get()});
  }
  return sim::SplitTransfer(bytes, offers).arrival_ns * 1e-9;
}

double Link::SerialSeconds(double bytes) const {
  if (edges.empty()) return sim::EffectiveBytes(sizes, bytes) / bytes_per_s;
  const bool curves =
      std::ranges::any_of(edges, [](const LinkEdge& edge) { return edge.sizes != nullptr; });
  return curves ? std::max(0.0, Seconds(bytes) - latency_s) : bytes / bytes_per_s;
}

double Link::FastestBytesPerSecond() const {
  double fastest = sim::FastestRate(sizes, bytes_per_s);
  double together = 0;
  for (const LinkEdge& edge : edges) together += sim::FastestRate(edge.sizes, edge.bytes_per_s);
  const bool curves =
      std::ranges::any_of(edges, [](const LinkEdge& edge) { return edge.sizes != nullptr; });
  return curves ? std::max(fastest, together) : fastest;
}

Link LinkFromProfile(const LinkProfile& link) {
  Link plan_link;
  plan_link.latency_s = static_cast<double>(std::max<int64_t>(0, link.latency_ns)) * 1e-9;
  plan_link.bytes_per_s = link.bandwidth_bytes_per_s;
  if (link.times.empty()) return plan_link;
  auto curve = sim::SizeCurve::Make(link.times, plan_link.latency_s, plan_link.bytes_per_s);
  if (curve.ok()) plan_link.sizes = *std::move(curve);
  return plan_link;
}

absl::StatusOr<Link> MakeLink(std::vector<LinkEdge> edges, const std::vector<Trunk>& trunks) {
  sim::Network network;
  network.links.emplace_back();
  for (LinkEdge& edge : edges) {
    if (edge.trunk >= static_cast<int>(trunks.size())) {
      return absl::InvalidArgumentError(absl::StrCat("there is no trunk ", edge.trunk));
    }
    if (edge.trunk >= 0)
      edge.bytes_per_s = std::min(edge.bytes_per_s, trunks[edge.trunk].bytes_per_s);
    network.links[0].edges.push_back(
        {static_cast<sim::Nanos>(std::llround(std::clamp(edge.latency_s, -1.0, 1e6) * 1e9)),
         edge.bytes_per_s,
         {},
         edge.conflict_set,
         edge.sizes});
  }
  ATOLL_RETURN_IF_ERROR(sim::Validate(network));
  Link plan_link;
  double all_bytes_per_s = 0;
  for (const LinkEdge& edge : edges) all_bytes_per_s += edge.bytes_per_s;
  for (const LinkEdge& edge : edges) {
    plan_link.price_per_byte += edge.price_per_byte * edge.bytes_per_s / all_bytes_per_s;
  }
  if (edges.size() == 1 && edges[0].trunk < 0 && edges[0].changes.empty()) {
    plan_link.latency_s = edges[0].latency_s;
    plan_link.bytes_per_s = edges[0].bytes_per_s;
    plan_link.sizes = edges[0].sizes;
    return plan_link;
  }
  const auto alone_s = [&](int64_t bytes) {
    return 1e-9 * static_cast<double>(sim::AloneTransferNs(network, network.links[0], bytes));
  };
  plan_link.latency_s = alone_s(0);
  plan_link.bytes_per_s =
      kPayloadBytes / std::max(1e-9, alone_s(kPayloadBytes) - plan_link.latency_s);
  plan_link.edges = std::move(edges);
  return plan_link;
}

Link Cluster::LinkBetween(int from, int to) const {
  if (!measured.empty()) {
    const auto exact = measured.find({from, to});
    if (exact != measured.end()) return exact->second;
  }
  const Device& a = devices[from];
  const Device& b = devices[to];
  if (a.site == b.site && a.node == b.node) {
    return {node_latency_s,
            std::min(types[a.type].link_bytes_per_s, types[b.type].link_bytes_per_s)};
  }
  if (!node_to_node.empty()) {
    const auto known = node_to_node.find({a.node, b.node});
    if (known != node_to_node.end()) return known->second;
  }
  return LinkBetweenSites(a.site, b.site);
}

double Cluster::PricePerByte(int from, int to) const {
  const bool leaves = devices[from].site != devices[to].site;
  return LinkBetween(from, to).price_per_byte + (leaves ? devices[from].egress_price_per_byte : 0);
}

bool Cluster::HasPrices() const {
  const auto any = [](const auto& links) {
    return std::ranges::any_of(links,
                               [](const auto& entry) { return entry.second.price_per_byte > 0; });
  };
  return std::ranges::any_of(types,
                             [](const DeviceType& type) { return type.price_per_hour > 0; }) ||
         std::ranges::any_of(
             devices, [](const Device& device) { return device.egress_price_per_byte > 0; }) ||
         any(site_to_site) || any(node_to_node) || any(measured);
}

const Link& Cluster::LinkBetweenSites(const std::string& from, const std::string& to) const {
  const auto known = site_to_site.find({from, to});
  if (known != site_to_site.end()) return known->second;
  return from == to ? site_link : wan_link;
}

double Cluster::CardBytesPerSecond(int device) const {
  const Device& own = devices[device];
  double fastest = 0;
  for (auto link = node_to_node.lower_bound({own.node, ""});
       link != node_to_node.end() && link->first.first == own.node; ++link) {
    fastest = std::max(fastest, link->second.bytes_per_s);
  }
  return fastest > 0 ? fastest : LinkBetweenSites(own.site, own.site).bytes_per_s;
}

std::set<std::string> Cluster::ListSites() const {
  std::set<std::string> sites;
  for (const Device& device : devices) sites.insert(device.site);
  return sites;
}

std::map<std::string, int> Cluster::IndexDevices() const {
  std::map<std::string, int> index;
  for (size_t d = 0; d < devices.size(); ++d) index[devices[d].id] = static_cast<int>(d);
  return index;
}

std::vector<std::vector<int>> Cluster::DevicesByNode() const {
  std::map<std::tuple<std::string, std::string, int>, std::vector<int>> groups;
  for (size_t d = 0; d < devices.size(); ++d) {
    groups[{devices[d].site, devices[d].node, devices[d].type}].push_back(static_cast<int>(d));
  }
  std::vector<std::vector<int>> result;
  for (auto& [key, group] : groups) result.push_back(group);
  return result;
}

absl::Status Validate(const Cluster& cluster) {
  if (cluster.devices.empty()) return absl::InvalidArgumentError("the cluster has no devices");
  if (cluster.devices.size() > 65'536) {
    return absl::InvalidArgumentError("the cluster has more than 65,536 devices");
  }
  for (const DeviceType& type : cluster.types) {
    if (!(type.flops_per_s > 0) || !(type.memory_bytes_per_s > 0) || type.memory_bytes <= 0 ||
        !(type.link_bytes_per_s > 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "device type \"", type.name, "\": speed, memory and link bandwidth must be positive"));
    }
    ATOLL_RETURN_IF_ERROR(
        ValidatePrice(type.price_per_hour, absl::StrCat("device type \"", type.name, "\"")));
  }
  std::set<std::string> ids;
  for (const Device& device : cluster.devices) {
    if (device.type < 0 || device.type >= static_cast<int>(cluster.types.size())) {
      return absl::InvalidArgumentError(absl::StrCat("device \"", device.id, "\" has no type"));
    }
    if (!ids.insert(device.id).second) {
      return absl::InvalidArgumentError(absl::StrCat("device \"", device.id, "\" appears twice"));
    }
    ATOLL_RETURN_IF_ERROR(
        ValidatePrice(device.egress_price_per_byte, absl::StrCat("device \"", device.id, "\"")));
  }
  const size_t trunks = cluster.trunks.size();
  for (const Trunk& trunk : cluster.trunks) {
    const std::string what = absl::StrCat("trunk \"", trunk.name, "\"");
    ATOLL_RETURN_IF_ERROR(ValidateLink({0, trunk.bytes_per_s, {}}, trunks, what));
    ATOLL_RETURN_IF_ERROR(ValidateChanges(trunk.changes, what));
  }
  ATOLL_RETURN_IF_ERROR(ValidateLink(cluster.site_link, trunks, "within a site"));
  ATOLL_RETURN_IF_ERROR(ValidateLink(cluster.wan_link, trunks, "between sites"));
  for (const auto& [sites, plan_link] : cluster.site_to_site) {
    ATOLL_RETURN_IF_ERROR(
        ValidateLink(plan_link, trunks, absl::StrCat(sites.first, " -> ", sites.second)));
  }
  for (const auto& [nodes, plan_link] : cluster.node_to_node) {
    ATOLL_RETURN_IF_ERROR(
        ValidateLink(plan_link, trunks, absl::StrCat(nodes.first, " -> ", nodes.second)));
  }
  const int count = static_cast<int>(cluster.devices.size());
  for (const auto& [pair, plan_link] : cluster.measured) {
    if (pair.first < 0 || pair.first >= count || pair.second < 0 || pair.second >= count) {
      return absl::InvalidArgumentError("a measured link names a device that is not there");
    }
    ATOLL_RETURN_IF_ERROR(ValidateLink(
        plan_link, trunks,
        absl::StrCat(cluster.devices[pair.first].id, " -> ", cluster.devices[pair.second].id)));
  }
  return absl::OkStatus();
}

std::optional<RingLink> FindSlowestRingLink(const Cluster& cluster,
                                            const std::vector<int>& devices) {
  if (cluster.measured.empty() || devices.size() < 2) return std::nullopt;
  bool described = false;
  RingLink slowest{0, INFINITY};
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    const int from = devices[rank], to = devices[(rank + 1) % devices.size()];
    const auto link = cluster.measured.find({from, to});
    if (link == cluster.measured.end()) {
      slowest.bytes_per_s =
          std::min(slowest.bytes_per_s, cluster.types[cluster.devices[from].type].link_bytes_per_s);
      continue;
    }
    described = true;
    slowest.latency_s = std::max(slowest.latency_s, link->second.latency_s);
    slowest.bytes_per_s = std::min(slowest.bytes_per_s, link->second.bytes_per_s);
  }
  return described ? std::optional(slowest) : std::nullopt;
}

void SetRingLinks(Cluster& cluster) {
  if (cluster.measured.empty()) return;
  using Links = std::map<int, RingLink>;  // by size of the group
  std::vector<Links> links(cluster.devices.size());
  for (const std::vector<int>& node : cluster.DevicesByNode()) {
    const int count = static_cast<int>(node.size());
    for (int size = 2; size <= std::min(count, kMostRing); size *= 2) {
      std::optional<RingLink> ring;
      for (int i = 0; i < count; ++i) {  // those that are left over are as the last group
        if (i % size == 0 && i + size <= count) {
          ring = FindSlowestRingLink(cluster, {node.begin() + i, node.begin() + i + size});
        }
        if (ring) links[node[i]][size] = *ring;
      }
    }
  }
  std::map<std::pair<int, Links>, int> types;
  std::vector<DeviceType> made;
  for (size_t d = 0; d < cluster.devices.size(); ++d) {
    int& type = cluster.devices[d].type;
    const auto [known, added] = types.try_emplace({type, links[d]}, static_cast<int>(types.size()));
    if (added) {
      made.push_back(cluster.types[type]);
      made.back().ring_links = links[d];
    }
    type = known->second;
  }
  cluster.types = std::move(made);
}

Cluster WithDevices(const Cluster& cluster, const std::function<bool(const Device&)>& keep) {
  Cluster rest;
  rest.types = cluster.types;
  rest.trunks = cluster.trunks;
  rest.node_latency_s = cluster.node_latency_s;
  rest.site_link = cluster.site_link;
  rest.wan_link = cluster.wan_link;
  rest.bytes_per_day = cluster.bytes_per_day;
  std::vector<int> index(cluster.devices.size(), -1);
  std::set<std::string> nodes, sites;
  for (size_t d = 0; d < cluster.devices.size(); ++d) {
    if (!keep(cluster.devices[d])) continue;
    sites.insert(cluster.devices[d].site);
    index[d] = static_cast<int>(rest.devices.size());
    rest.devices.push_back(cluster.devices[d]);
    nodes.insert(cluster.devices[d].node);
  }
  if (nodes.count(cluster.leader) > 0) rest.leader = cluster.leader;
  for (const std::string& from : sites) {
    for (const std::string& to : sites) {
      const auto link = cluster.site_to_site.find({from, to});
      if (link != cluster.site_to_site.end()) rest.site_to_site.insert(*link);
    }
  }
  for (const auto& [pair, link] : cluster.node_to_node) {
    if (nodes.count(pair.first) > 0 && nodes.count(pair.second) > 0) {
      rest.node_to_node.emplace_hint(rest.node_to_node.end(), pair, link);
    }
  }
  for (const auto& [pair, link] : cluster.measured) {
    if (index[pair.first] < 0 || index[pair.second] < 0) continue;
    rest.measured[{index[pair.first], index[pair.second]}] = link;
  }
  return rest;
}

Canonical MakeCanonical(const Cluster& cluster) {
  const auto key = [](const DeviceType& t) {
    return std::tie(t.name, t.memory_bytes, t.flops_per_s, t.memory_bytes_per_s, t.link_bytes_per_s,
                    t.price_per_hour, t.ring_links);
  };
  std::vector<int> types(cluster.types.size()), number(cluster.types.size());
  std::iota(types.begin(), types.end(), 0);
  std::ranges::stable_sort(
      types, [&](int a, int b) { return key(cluster.types[a]) < key(cluster.types[b]); });
  for (size_t t = 0; t < types.size(); ++t) number[types[t]] = static_cast<int>(t);
  Canonical made{cluster, std::vector<int>(cluster.devices.size())};
  std::iota(made.devices.begin(), made.devices.end(), 0);
  // A device that is named with a smaller number comes first in its node.
  const auto place = [&](int d) {
    const Device& device = cluster.devices[d];
    return std::tuple<const std::string&, const std::string&, int, size_t, const std::string&>(
        device.site, device.node, number[device.type], device.id.size(), device.id);
  };
  std::ranges::sort(made.devices, [&](int a, int b) { return place(a) < place(b); });
  std::vector<int> index(cluster.devices.size());
  for (size_t d = 0; d < index.size(); ++d) {
    index[made.devices[d]] = static_cast<int>(d);
    made.cluster.devices[d] = cluster.devices[made.devices[d]];
    made.cluster.devices[d].type = number[made.cluster.devices[d].type];
  }
  for (size_t t = 0; t < types.size(); ++t) made.cluster.types[t] = cluster.types[types[t]];
  made.cluster.measured.clear();
  for (const auto& [pair, link] : cluster.measured) {
    made.cluster.measured[{index[pair.first], index[pair.second]}] = link;
  }
  return made;
}

Grouping GroupDevices(const Cluster& cluster, const GroupingOptions& options) {
  const int n = static_cast<int>(cluster.devices.size());
  std::vector<std::vector<double>> distance(n, std::vector<double>(n, 0));
  std::vector<double> nearest(n, 1e300);
  for (int a = 0; a < n; ++a) {
    for (int b = 0; b < n; ++b) {
      if (a == b) continue;
      distance[a][b] = std::max(cluster.LinkBetween(a, b).Seconds(options.payload_bytes),
                                cluster.LinkBetween(b, a).Seconds(options.payload_bytes));
      nearest[a] = std::min(nearest[a], distance[a][b]);
    }
  }
  const auto inner = [&](const std::vector<int>& group) {
    if (group.size() == 1) return std::max(options.floor_s, nearest[group[0]]);
    double sum = 0;
    for (const int a : group) {
      for (const int b : group) sum += a == b ? 0 : distance[a][b];
    }
    const double pairs = static_cast<double>(group.size() * (group.size() - 1));
    return std::max(options.floor_s, sum / pairs);
  };
  Grouping grouping;
  grouping.sites = Agglomerate(distance, [&](double d, const auto& a, const auto& b) {
    const double theta = kTheta * (options.leniency == nullptr ? 1 : options.leniency(a, b));
    // A lone device has no distance of its own compared with a group that has one: its nearest
    // neighbour may be distant.
    if (a.size() == 1 && b.size() > 1) return d <= theta * inner(b);
    if (b.size() == 1 && a.size() > 1) return d <= theta * inner(a);
    return d <= theta * std::max(inner(a), inner(b));
  });
  for (const std::vector<int>& site : grouping.sites) {
    const int size = static_cast<int>(site.size());
    std::vector<std::vector<double>> apart(size, std::vector<double>(size, 0));
    for (int a = 0; a < size; ++a) {
      for (int b = 0; b < size; ++b) {
        const DeviceType& x = cluster.types[cluster.devices[site[a]].type];
        const DeviceType& y = cluster.types[cluster.devices[site[b]].type];
        apart[a][b] = x.memory_bytes == y.memory_bytes
                          ? std::abs(std::log(x.flops_per_s / y.flops_per_s))
                          : 1e9;
      }
    }
    const double most = std::log(kPowerRatio) + 1e-12;
    std::vector<std::vector<int>> classes =
        Agglomerate(apart, [&](double d, const auto&, const auto&) { return d <= most; });
    for (std::vector<int>& group : classes) {
      for (int& member : group) member = site[member];
    }
    grouping.classes.push_back(std::move(classes));
  }
  return grouping;
}

}  // namespace atl::plan

#include "coordinator/measurements/sites.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/number_text.h"
#include "coordinator/planner/cluster/cluster.h"

namespace atl {
namespace {

constexpr double kPayloadBytes = 1e6;
constexpr double kNearSeconds = 2e-3;  // half of what is always near: see theta
constexpr double kLatencyMax = 5e-3;
constexpr double kHysteresis = 1.5;

using Links = std::map<std::pair<NodeId, NodeId>, LinkProfile>;

// One device for each worker, in order.
struct Map {
  std::vector<NodeId> names;
  std::vector<Standing> standing;
  plan::Cluster cluster;

  bool Measured(int a, int b) const { return cluster.measured.count({a, b}) > 0; }
};

// Pairs that were not measured are as far apart as the best path over a third worker, if there is
// one: a worker that does not reach its neighbour is its neighbour all the same.
void AddPathsOverOthers(Map& map) {
  constexpr size_t kMaxPaths = size_t{1} << 22;  // a mesh of 160, or a star of 2,000
  const std::map<std::pair<int, int>, plan::Link> direct = map.cluster.measured;
  std::vector<std::vector<int>> neighbours(map.names.size());  // links are known in both directions
  for (const auto& [pair, link] : direct) neighbours[pair.first].push_back(pair.second);
  size_t paths = 0;
  for (const std::vector<int>& of : neighbours) paths += of.size() * of.size();
  if (paths > kMaxPaths) return;
  for (size_t over = 0; over < neighbours.size(); ++over) {
    for (const int a : neighbours[over]) {
      for (const int b : neighbours[over]) {
        if (a == b || direct.count({a, b}) > 0) continue;
        const plan::Link& first = direct.at({a, static_cast<int>(over)});
        const plan::Link& second = direct.at({static_cast<int>(over), b});
        plan::Link link;
        link.latency_s = first.latency_s + second.latency_s;
        link.bytes_per_s = std::min(first.bytes_per_s, second.bytes_per_s);
        const auto [known, is_new] = map.cluster.measured.try_emplace({a, b}, link);
        if (!is_new && link.latency_s < known->second.latency_s) known->second = link;
      }
    }
  }
}

Map BuildMap(const std::map<NodeId, Standing>& workers, const Links& links) {
  Map map;
  std::set<NodeId> linked;
  for (const auto& [pair, link] : links) linked.insert({pair.first, pair.second});
  plan::DeviceType type;
  type.name = "any";
  type.flops_per_s = type.memory_bytes_per_s = type.link_bytes_per_s = 1;
  type.memory_bytes = 1;
  map.cluster.types = {type};
  map.cluster.site_link = {1, 1e6, {}};  // between workers that were not measured: far
  for (const auto& [name, standing] : workers) {
    if (linked.count(name) == 0 && standing.before.empty() && standing.declared.empty()) continue;
    map.names.push_back(name);
    map.standing.push_back(standing);
    map.cluster.devices.push_back({name, name, "", 0});
  }
  for (size_t a = 0; a < map.names.size(); ++a) {
    for (size_t b = 0; b < map.names.size(); ++b) {
      auto link = links.find({map.names[a], map.names[b]});
      if (link == links.end()) link = links.find({map.names[b], map.names[a]});
      if (a == b || link == links.end()) continue;
      map.cluster.measured[{static_cast<int>(a), static_cast<int>(b)}] =
          plan::LinkFromProfile(link->second);
    }
  }
  AddPathsOverOthers(map);
  return map;
}

// The one name that all of these have, where they have any; `many`: they have several.
struct Label {
  std::string name;
  bool many = false;

  void Add(const std::string& other) {
    if (other.empty()) return;
    many = many || (!name.empty() && name != other);
    name = other;
  }
};

Label Declared(const Map& map, const std::vector<int>& group) {
  Label label;
  for (const int w : group) label.Add(map.standing[w].declared);
  return label;
}

Label Before(const Map& map, const std::vector<int>& group) {
  Label label;
  for (const int w : group) label.Add(map.standing[w].site());
  return label;
}

// How much easier than as GroupDevices says two groups merge; 0: never.
double Leniency(const Map& map, const std::vector<int>& a, const std::vector<int>& b) {
  const Label declared_a = Declared(map, a), declared_b = Declared(map, b);
  if (!declared_a.name.empty() && !declared_b.name.empty()) {
    return declared_a.name == declared_b.name ? std::numeric_limits<double>::infinity() : 0;
  }
  const Label before_a = Before(map, a), before_b = Before(map, b);
  const bool known = !before_a.name.empty() && !before_b.name.empty();
  const bool together = known && !before_a.many && !before_b.many && before_a.name == before_b.name;
  double latency_s = 0;
  int pairs = 0;
  for (const int x : a) {
    for (const int y : b) {
      if (!map.Measured(x, y)) continue;
      latency_s += map.cluster.measured.at({x, y}).latency_s;
      ++pairs;
    }
  }
  if (pairs == 0) return together ? std::numeric_limits<double>::infinity() : 0;
  const double factor = together ? kHysteresis : known ? 1 / kHysteresis : 1;
  return latency_s / pairs > kLatencyMax * factor ? 0 : factor;
}

// By group: the name that most of its workers had, else one after its first worker.
std::vector<std::string> SelectSiteNames(const Map& map,
                                         const std::vector<std::vector<int>>& groups) {
  std::vector<std::string> names(groups.size());
  std::set<std::string> taken;
  std::vector<std::tuple<int, std::string, size_t>> claims;  // fewest workers last
  for (size_t g = 0; g < groups.size(); ++g) {
    names[g] = Declared(map, groups[g]).name;
    if (!names[g].empty()) taken.insert(names[g]);
    std::map<std::string, int> had;
    for (const int w : groups[g]) {
      if (!map.standing[w].before.empty()) ++had[map.standing[w].before];
    }
    for (const auto& [name, count] : had) claims.emplace_back(-count, name, g);
  }
  std::sort(claims.begin(), claims.end());
  for (const auto& [count, name, g] : claims) {
    if (names[g].empty() && taken.insert(name).second) names[g] = name;
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string first = absl::StrCat("site-", map.names[groups[g][0]]);
    for (int n = 1; names[g].empty(); ++n) {
      const std::string name = n == 1 ? first : absl::StrCat(first, "-", n);
      if (taken.insert(name).second) names[g] = name;
    }
  }
  return names;
}

// Mean latency and bandwidth of the links from some workers to some others.
struct Between {
  double latency_s = 0;
  double bytes_per_s = 0;
  int pairs = 0;

  std::string Text() const {
    const double mbit = 8e-6 * bytes_per_s;
    return absl::StrCat(
        SecondsText(latency_s), ", ",
        mbit >= 1e4 ? NumberText(1e-3 * mbit, 3) + " Gbit/s" : NumberText(mbit, 2) + " Mbit/s");
  }
};

Between Measure(const Map& map, const std::vector<int>& from, const std::vector<int>& to) {
  Between between;
  for (const int a : from) {
    for (const int b : to) {
      if (a == b || !map.Measured(a, b)) continue;
      const plan::Link& link = map.cluster.measured.at({a, b});
      between.latency_s += link.latency_s;
      between.bytes_per_s += link.bytes_per_s;
      ++between.pairs;
    }
  }
  if (between.pairs > 0) {
    between.latency_s /= between.pairs;
    between.bytes_per_s /= between.pairs;
  }
  return between;
}

std::string DescribeSiteSource(const Map& map, const std::vector<std::vector<int>>& groups,
                               const std::vector<std::string>& names, size_t g) {
  const Between inside = Measure(map, groups[g], groups[g]);
  std::string text = inside.pairs > 0        ? absl::StrCat(inside.Text(), " inside")
                     : groups[g].size() == 1 ? "alone"
                                             : "together before";
  double nearest_s = std::numeric_limits<double>::infinity();
  std::string other;
  for (size_t h = 0; h < groups.size(); ++h) {
    const Between there = Measure(map, groups[g], groups[h]);
    if (h == g || there.pairs == 0) continue;
    const double seconds = there.latency_s + kPayloadBytes / there.bytes_per_s;
    if (seconds >= nearest_s) continue;
    nearest_s = seconds;
    other = absl::StrCat("; ", there.Text(), " to ", names[h]);
  }
  return absl::StrCat("measured: ", text, other);
}

}  // namespace

std::map<NodeId, MeasuredSite> FindSites(const std::map<NodeId, Standing>& workers,
                                         const Links& links) {
  const Map map = BuildMap(workers, links);
  std::map<NodeId, MeasuredSite> sites;
  if (map.names.empty()) return sites;
  plan::GroupingOptions options;
  options.payload_bytes = kPayloadBytes;
  options.floor_s = kNearSeconds;
  options.leniency = [&](const std::vector<int>& a, const std::vector<int>& b) {
    return Leniency(map, a, b);
  };
  const std::vector<std::vector<int>> groups = plan::GroupDevices(map.cluster, options).sites;
  const std::vector<std::string> names = SelectSiteNames(map, groups);
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string source = DescribeSiteSource(map, groups, names, g);
    for (const int w : groups[g]) sites[map.names[w]] = {names[g], source};
  }
  return sites;
}

std::map<std::pair<std::string, std::string>, double> RatesBetweenSites(
    const std::map<NodeId, Standing>& workers, const Links& links) {
  const auto site_of = [&](const NodeId& name) {
    const auto worker = workers.find(name);
    return worker == workers.end() ? "" : worker->second.site();
  };
  std::map<std::pair<std::string, std::string>, std::pair<double, int>> sums;
  for (const auto& [pair, link] : links) {
    const std::string from = site_of(pair.first), to = site_of(pair.second);
    if (from.empty() || to.empty() || !(link.bandwidth_bytes_per_s > 0)) continue;
    auto& [sum, count] = sums[{from, to}];
    sum += link.bandwidth_bytes_per_s;
    ++count;
  }
  std::map<std::pair<std::string, std::string>, double> rates;
  for (const auto& [pair, sum] : sums) rates[pair] = sum.first / sum.second;
  return rates;
}

}  // namespace atl

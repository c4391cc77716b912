#include "coordinator/planner/gradient_sync.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

namespace atl::plan {
namespace {

// Resources that rings share, and what one ring needs of them.
class Resources {
 public:
  int Of(const std::string& name) {
    return index_.try_emplace(name, static_cast<int>(index_.size())).first->second;
  }
  void Need(int resource, double seconds) {
    if (static_cast<size_t>(resource) >= free_s_.size()) free_s_.resize(resource + 1, 0);
    needs_[resource] += seconds;
  }
  // Runs a ring with the needs named since the last one; returns its end.
  double Run(double ready_s, double latency_s) {
    double start_s = ready_s;
    double longest_s = 0;
    for (const auto& [resource, seconds] : needs_) {
      start_s = std::max(start_s, free_s_[resource]);
      longest_s = std::max(longest_s, seconds);
    }
    for (const auto& [resource, seconds] : needs_) free_s_[resource] = start_s + seconds;
    needs_.clear();
    return start_s + longest_s + latency_s;
  }

 private:
  std::map<std::string, int> index_;
  std::vector<double> free_s_;
  std::map<int, double> needs_;
};

double RingShare(size_t members) {
  return members < 2 ? 0 : 2.0 * static_cast<double>(members - 1) / static_cast<double>(members);
}

class Synchroniser {
 public:
  Synchroniser(const Cluster& cluster, const Costs& costs, const Job& job, const Layout& layout)
      : cluster_(cluster), layout_(layout) {
    bytes_before_.push_back(0);
    for (const Layer& layer : costs.model().layers) {
      bytes_before_.push_back(bytes_before_.back() +
                              static_cast<double>(layer.parameters) * job.gradient_bytes);
    }
    for (const Replica& replica : layout.replicas) {
      places_.push_back(PlacesOf(replica));
      for (const Stage& stage : replica.stages) cuts_.push_back(stage.first_layer);
    }
    cuts_.push_back(static_cast<int>(costs.model().layers.size()));
    std::sort(cuts_.begin(), cuts_.end());
    cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
  }

  StageTimes Run(const StageTimes& ready_s) {
    StageTimes end_s = ready_s;
    const size_t replicas = layout_.replicas.size();
    if (replicas < 2) return end_s;
    // The stage of each replica that holds the layers in question, from the last one on.
    std::vector<size_t> holder(replicas);
    for (size_t r = 0; r < replicas; ++r) holder[r] = layout_.replicas[r].stages.size() - 1;
    for (size_t c = cuts_.size() - 1; c-- > 0;) {
      double all_ready_s = 0;
      for (size_t r = 0; r < replicas; ++r) {
        while (layout_.replicas[r].stages[holder[r]].first_layer > cuts_[c]) --holder[r];
        all_ready_s = std::max(all_ready_s, ready_s[r][holder[r]]);
      }
      const double bytes = bytes_before_[cuts_[c + 1]] - bytes_before_[cuts_[c]];
      const double done_s = layout_.reduction == Reduction::kRing
                                ? Ring(holder, bytes, all_ready_s)
                                : Hierarchy(holder, bytes, all_ready_s);
      for (size_t r = 0; r < replicas; ++r) {
        end_s[r][holder[r]] = std::max(end_s[r][holder[r]], done_s);
      }
    }
    return end_s;
  }

 private:
  const Stage& StageOf(size_t replica, const std::vector<size_t>& holder) const {
    return layout_.replicas[replica].stages[holder[replica]];
  }
  // Of a layer, on one device.
  double LargestShare() const {
    const std::vector<int>& shares = layout_.tensor_shares;
    if (shares.empty()) return 1.0 / layout_.tensor_parallel;
    return *std::max_element(shares.begin(), shares.end()) /
           std::accumulate(shares.begin(), shares.end(), 0.0);
  }
  int Entity(size_t replica, size_t stage) {
    return resources_.Of(absl::StrCat("entity ", replica, ",", places_[replica][stage]));
  }
  int Card(const Device& device) {
    return resources_.Of(absl::StrCat("card ", device.site, "|", device.node));
  }
  int Line(const std::string& from, const std::string& to) {
    return resources_.Of(absl::StrCat("line ", from, "|", to));
  }

  double Ring(const std::vector<size_t>& holder, double bytes, double ready_s) {
    const size_t n = holder.size();
    const double sent = RingShare(n) * bytes;
    double latency_s = 0;
    for (size_t r = 0; r < n; ++r) {
      const int from = StageOf(r, holder).devices[0];
      const int to = StageOf((r + 1) % n, holder).devices[0];
      const Device& a = cluster_.devices[from];
      const Device& b = cluster_.devices[to];
      const Wire wire = cluster_.WireBetween(from, to);
      latency_s = std::max(latency_s, 2.0 * static_cast<double>(n - 1) * wire.latency_s);
      resources_.Need(Entity(r, holder[r]), sent * LargestShare() / wire.bytes_per_s);
      if (a.site != b.site) {
        resources_.Need(Line(a.site, b.site),
                        sent / cluster_.WireBetweenSites(a.site, b.site).bytes_per_s);
      } else if (a.node != b.node) {
        resources_.Need(Card(a), sent / cluster_.WireBetweenSites(a.site, a.site).bytes_per_s);
      }
    }
    return resources_.Run(ready_s, bytes == 0 ? 0 : latency_s);
  }

  double Hierarchy(const std::vector<size_t>& holder, double bytes, double ready_s) {
    // Site -> node -> the devices that lead their tensor-parallel sets there.
    std::map<std::string, std::map<std::string, std::vector<size_t>>> sites;
    for (size_t r = 0; r < holder.size(); ++r) {
      const Device& device = cluster_.devices[StageOf(r, holder).devices[0]];
      sites[device.site][device.node].push_back(r);
    }
    double within_node_s = 0;
    double within_site_s = 0;
    double latency_s = 0;
    for (const auto& [site, nodes] : sites) {
      const Wire& card = cluster_.WireBetweenSites(site, site);
      const double card_s = RingShare(nodes.size()) * bytes / card.bytes_per_s;
      within_site_s = std::max(within_site_s, card_s);
      latency_s = std::max(latency_s, 2.0 * static_cast<double>(nodes.size() - 1) * card.latency_s);
      for (const auto& [node, members] : nodes) {
        const int first = StageOf(members[0], holder).devices[0];
        resources_.Need(Card(cluster_.devices[first]), card_s);
        if (members.size() < 2) continue;
        const Wire wire = cluster_.WireBetween(first, StageOf(members[1], holder).devices[0]);
        const double node_s =
            RingShare(members.size()) * bytes / layout_.tensor_parallel / wire.bytes_per_s;
        within_node_s = std::max(within_node_s, node_s);
        for (const size_t r : members) resources_.Need(Entity(r, holder[r]), node_s);
      }
    }
    double between_sites_s = 0;
    double between_latency_s = 0;
    for (auto site = sites.begin(); sites.size() > 1 && site != sites.end(); ++site) {
      const auto next = std::next(site) == sites.end() ? sites.begin() : std::next(site);
      const Wire& wire = cluster_.WireBetweenSites(site->first, next->first);
      const double line_s = RingShare(sites.size()) * bytes / wire.bytes_per_s;
      resources_.Need(Line(site->first, next->first), line_s);
      between_sites_s = std::max(between_sites_s, line_s);
      between_latency_s =
          std::max(between_latency_s, 2.0 * static_cast<double>(sites.size() - 1) * wire.latency_s);
    }
    // The phases follow each other; Run() counts the longest need alone.
    const double all_s = within_node_s + within_site_s + between_sites_s;
    const double longest_s = std::max({within_node_s, within_site_s, between_sites_s});
    return resources_.Run(ready_s, all_s - longest_s + latency_s + between_latency_s);
  }

  const Cluster& cluster_;
  const Layout& layout_;
  std::vector<double> bytes_before_;      // of the layers before
  std::vector<int> cuts_;                 // where any replica's stages begin, and the end
  std::vector<std::vector<int>> places_;  // per replica, per stage
  Resources resources_;
};

}  // namespace

StageTimes SynchroniseGradients(const Cluster& cluster, const Costs& costs, const Job& job,
                                const Layout& layout, const StageTimes& ready_s) {
  return Synchroniser(cluster, costs, job, layout).Run(ready_s);
}

double SyncSeconds(const Cluster& cluster, const Costs& costs, const Job& job,
                   const Layout& layout) {
  StageTimes ready_s;
  for (const Replica& replica : layout.replicas) ready_s.emplace_back(replica.stages.size(), 0.0);
  double slowest = 0;
  for (const auto& stages : SynchroniseGradients(cluster, costs, job, layout, ready_s)) {
    for (const double end_s : stages) slowest = std::max(slowest, end_s);
  }
  return slowest;
}

}  // namespace atl::plan

#include "coordinator/planner/gradient_sync.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "common/protocol/commit_exchange.h"

namespace atl::plan {
namespace {

// Resources that rings share, and what one ring needs of them.
class Resources {
 public:
  explicit Resources(int count) : free_s_(count, 0), needs_s_(count, 0) {}

  // Adds a message that goes before rings.
  void AddMessage(int resource, double ready_s, double seconds) {
    messages_[resource].emplace_back(ready_s, seconds);
  }
  // After the last message.
  void Begin() {
    for (auto& [resource, messages] : messages_) std::ranges::sort(messages);
  }

  void Need(int resource, double seconds) {
    if (needs_s_[resource] == 0) needed_.push_back(resource);
    needs_s_[resource] += std::max(seconds, 1e-18);
  }
  // Runs a ring with the needs named since the last one; returns its end.
  double Run(double ready_s, double latency_s) {
    double start_s = ready_s;
    double longest_s = 0;
    for (const int resource : needed_) start_s = std::max(start_s, free_s_[resource]);
    for (const int resource : needed_) {
      needs_s_[resource] += MessageSeconds(resource, start_s, needs_s_[resource]);
      longest_s = std::max(longest_s, needs_s_[resource]);
    }
    for (const int resource : needed_) {
      free_s_[resource] = start_s + needs_s_[resource];
      needs_s_[resource] = 0;
    }
    needed_.clear();
    return start_s + longest_s + latency_s;
  }

 private:
  // Returns the time of the messages that become ready before a ring is through that starts then
  // and needs so long.
  double MessageSeconds(int resource, double start_s, double needs_s) const {
    const auto messages = messages_.find(resource);
    if (messages == messages_.end()) return 0;
    double added_s = 0;
    for (auto next = std::ranges::lower_bound(messages->second, std::pair(start_s, 0.0));
         next != messages->second.end() && next->first < start_s + needs_s + added_s; ++next) {
      added_s += next->second;
    }
    return added_s;
  }

  std::map<int, std::vector<std::pair<double, double>>> messages_;  // ready, seconds; by resource
  std::vector<double> free_s_;
  std::vector<double> needs_s_;
  std::vector<int> needed_;
};

// A stage's part of a ring: the site and node of its device, and its resources.
struct Holder {
  int device = 0;
  int site = 0;
  int node = 0;
  int entity = 0;
  double ranks = 1;
};

// From one replica's holder to the next one's.
struct Hop {
  double latency_s = 0;
  double bytes_per_s = 0;
  int shared = -1;  // a node's card or an inter-site link; -1: neither
  double shared_bytes_per_s = 0;
  sim::SizeCurvePtr sizes = {};
  sim::SizeCurvePtr shared_sizes = {};
};

// Returns what so many bytes count as in a ring's equal messages, of `members` members.
double Carried(double bytes, size_t members, const sim::SizeCurvePtr& sizes) {
  if (sizes == nullptr || members < 2) return bytes;
  const double messages = 2.0 * static_cast<double>(members - 1);
  return messages * sizes->EffectiveBytes(bytes / messages);
}

double RingShare(size_t members) {
  return members < 2 ? 0 : 2.0 * static_cast<double>(members - 1) / static_cast<double>(members);
}

class Synchroniser {
 public:
  Synchroniser(const ClusterIndex& index, const Costs& costs, const Layout& layout)
      : index_(index), layout_(layout) {
    // An all-reduce that takes so much longer is one of so many more bytes.
    const double counted = kGradientBytes * costs.options().runtime.all_reduce_ratio;
    bytes_before_.push_back(0);
    for (const Layer& layer : costs.model().layers) {
      bytes_before_.push_back(bytes_before_.back() +
                              static_cast<double>(layer.parameters) * counted);
    }
    int entities = 0;
    for (const Replica& replica : layout.replicas) {
      const std::vector<int> stage_entities = MapStagesToEntities(replica);
      std::vector<Holder>& holders = holders_.emplace_back();
      for (size_t s = 0; s < replica.stages.size(); ++s) {
        const int device = replica.stages[s].devices[0];
        holders.push_back({device, index.GetSiteIndex(device), index.GetNode(device),
                           entities + stage_entities[s],
                           static_cast<double>(replica.stages[s].devices.size())});
        cuts_.push_back(replica.stages[s].first_layer);
      }
      entities += 1 + *std::ranges::max_element(stage_entities);
    }
    first_card_ = entities;
    first_shared_link_ = entities + index.nodes();
    resources_.emplace(first_shared_link_ + index.sites() * index.sites());
    cuts_.push_back(static_cast<int>(costs.model().layers.size()));
    std::ranges::sort(cuts_);
    cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
  }

  void AddMessages(const std::vector<StageMessage>& messages) {
    for (const StageMessage& message : messages) {
      const auto holder = [&](int device) {
        return Holder{device, index_.GetSiteIndex(device), index_.GetNode(device), 0, 1};
      };
      const Hop hop = HopBetween(holder(message.from), holder(message.to));
      if (hop.shared < 0) continue;
      resources_->AddMessage(hop.shared, message.ready_s, message.bytes / hop.shared_bytes_per_s);
    }
    resources_->Begin();
  }

  StageTimes Run(const StageTimes& ready_s) {
    StageTimes end_s = ready_s;
    const size_t replicas = layout_.replicas.size();
    // The stage of each replica that holds the layers in question, from the last one on.
    std::vector<size_t> holder(replicas);
    std::vector<Hop> hops(replicas);
    for (size_t r = 0; r < replicas; ++r) holder[r] = layout_.replicas[r].stages.size() - 1;
    std::vector<char> moved(replicas, 1);
    for (size_t c = cuts_.size() - 1; c-- > 0;) {
      double all_ready_s = 0;
      for (size_t r = 0; r < replicas; ++r) {
        while (layout_.replicas[r].stages[holder[r]].first_layer > cuts_[c]) {
          --holder[r];
          moved[r] = 1;
        }
        all_ready_s = std::max(all_ready_s, ready_s[r][holder[r]]);
      }
      for (size_t r = 0; r < replicas; ++r) {
        const size_t next = (r + 1) % replicas;
        if (moved[r] || moved[next]) hops[r] = HopBetween(At(r, holder), At(next, holder));
      }
      const bool any_moved = std::ranges::count(moved, 0) < std::ssize(moved);
      if (any_moved && !layout_.one_ring) FindSites(holder);
      std::fill(moved.begin(), moved.end(), 0);
      const double bytes = bytes_before_[cuts_[c + 1]] - bytes_before_[cuts_[c]];
      const double done_s = Sum(holder, hops, bytes, all_ready_s);
      for (size_t r = 0; r < replicas; ++r) {
        end_s[r][holder[r]] = std::max(end_s[r][holder[r]], done_s);
      }
    }
    return end_s;
  }

 private:
  // Returns the part of a layer on one of the devices that hold it.
  double LargestShare(const Holder& holder) const {
    const std::vector<int>& ratios = layout_.tensor_split_ratios;
    if (ratios.empty()) return 1.0 / holder.ranks;
    return *std::ranges::max_element(ratios) / std::accumulate(ratios.begin(), ratios.end(), 0.0);
  }
  const Holder& At(size_t replica, const std::vector<size_t>& holder) const {
    return holders_[replica][holder[replica]];
  }
  int Card(const Holder& holder) const { return first_card_ + holder.node; }
  // No card is slower than a link through it.
  double CardRate(const Holder& holder, const Hop& hop) const {
    return std::max(hop.bytes_per_s, index_.CardBytesPerSecond(holder.device));
  }
  int SharedLinkResource(int from, int to) const {
    return first_shared_link_ + from * index_.sites() + to;
  }

  Hop HopBetween(const Holder& from, const Holder& to) const {
    const Link link = index_.LinkBetween(from.device, to.device);
    Hop hop{link.latency_s, link.bytes_per_s};
    hop.sizes = link.sizes;
    if (from.site == to.site && from.node == to.node) return hop;
    const Link& shared = index_.LinkBetweenSites(from.site, to.site);
    hop.shared = from.site != to.site ? SharedLinkResource(from.site, to.site) : Card(from);
    hop.shared_bytes_per_s = from.site != to.site ? shared.bytes_per_s : CardRate(from, hop);
    hop.shared_sizes = shared.sizes;
    return hop;
  }

  double Ring(const std::vector<size_t>& holder, const std::vector<Hop>& hops, double bytes,
              double ready_s) {
    const size_t n = holder.size();
    const double sent = RingShare(n) * bytes;
    const double own = sent * LargestShare(At(0, holder));
    double latency_s = 0;
    for (size_t r = 0; r < n; ++r) {
      const Hop& hop = hops[r];
      latency_s = std::max(latency_s, hop.latency_s);
      resources_->Need(At(r, holder).entity, Carried(own, n, hop.sizes) / hop.bytes_per_s);
      if (hop.shared < 0) continue;
      resources_->Need(hop.shared, Carried(sent, n, hop.shared_sizes) / hop.shared_bytes_per_s);
    }
    return resources_->Run(ready_s, bytes == 0 ? 0 : 2.0 * static_cast<double>(n - 1) * latency_s);
  }

  double Sum(const std::vector<size_t>& holder, const std::vector<Hop>& hops, double bytes,
             double ready_s) {
    return at_site_.size() > 1 ? BySite(holder, bytes, ready_s)
                               : Ring(holder, hops, bytes, ready_s);
  }

  // The replicas whose holders are at one site, and from each to the next of them.
  struct AtSite {
    std::vector<size_t> replicas;
    std::vector<Hop> hops;
  };

  void FindSites(const std::vector<size_t>& holder) {
    at_site_.clear();
    for (size_t r = 0; r < holder.size(); ++r) {
      at_site_[At(r, holder).site].replicas.push_back(r);
    }
    if (at_site_.size() < 2) return;
    for (auto& [site, at] : at_site_) {
      const size_t n = at.replicas.size();
      for (size_t i = 0; n > 1 && i < n; ++i) {
        const size_t next = at.replicas[(i + 1) % n];
        at.hops.push_back(HopBetween(At(at.replicas[i], holder), At(next, holder)));
      }
    }
  }

  // Every member owns a part. Within a site as many bytes move as around a ring of its members.
  // Between two sites go, in each direction, the sums of what the other one owns and the results of
  // what is owned here. All in blocks, so that it overlaps; two waits at a site, two between sites.
  double BySite(const std::vector<size_t>& holder, double bytes, double ready_s) {
    const double part = bytes / static_cast<double>(holder.size());
    double near_s = 0, far_s = 0;  // latencies
    for (const auto& [site, at] : at_site_) {
      const double sent = RingShare(at.replicas.size()) * bytes;
      for (size_t i = 0; i < at.hops.size(); ++i) {
        const Hop& hop = at.hops[i];
        near_s = std::max(near_s, hop.latency_s);
        const double own = sent * LargestShare(At(at.replicas[i], holder));
        const size_t n = at.replicas.size();
        resources_->Need(At(at.replicas[i], holder).entity,
                         Carried(own, n, hop.sizes) / hop.bytes_per_s);
        if (hop.shared < 0) continue;
        resources_->Need(hop.shared, Carried(sent, n, hop.shared_sizes) / hop.shared_bytes_per_s);
      }
      for (const auto& [other, there] : at_site_) {
        if (other == site) continue;
        const Hop hop = HopBetween(At(at.replicas[0], holder), At(there.replicas[0], holder));
        const double both = static_cast<double>(at.replicas.size() + there.replicas.size());
        far_s = std::max(far_s, hop.latency_s);
        // All members send at once, each over its own link.
        const double members = static_cast<double>(at.replicas.size());
        resources_->Need(hop.shared,
                         both * part / std::min(hop.shared_bytes_per_s, members * hop.bytes_per_s));
      }
    }
    return resources_->Run(ready_s, bytes == 0 ? 0 : 2 * (near_s + far_s));
  }

  const ClusterIndex& index_;
  const Layout& layout_;
  std::map<int, AtSite> at_site_;               // of the holders in question
  std::vector<double> bytes_before_;            // of the layers before
  std::vector<int> cuts_;                       // where any replica's stages begin, and the end
  std::vector<std::vector<Holder>> holders_;    // per replica, per stage
  int first_card_ = 0, first_shared_link_ = 0;  // resources after the entities
  std::optional<Resources> resources_;
};

}  // namespace

StageTimes SynchroniseGradients(const Cluster& cluster, const Costs& costs, const Layout& layout,
                                const StageTimes& ready_s,
                                const std::vector<StageMessage>& messages) {
  if (layout.replicas.size() < 2) return ready_s;
  const ClusterIndex index(cluster);
  Synchroniser synchroniser(index, costs, layout);
  synchroniser.AddMessages(messages);
  return synchroniser.Run(ready_s);
}

double SyncSeconds(const ClusterIndex& index, const Costs& costs, const Layout& layout) {
  if (layout.replicas.size() < 2) return 0;
  StageTimes ready_s;
  for (const Replica& replica : layout.replicas) ready_s.emplace_back(replica.stages.size(), 0.0);
  double slowest = 0;
  for (const auto& stages : Synchroniser(index, costs, layout).Run(ready_s)) {
    for (const double end_s : stages) slowest = std::max(slowest, end_s);
  }
  return slowest;
}

StageTimes KnownSeconds(const Cluster& cluster, const Layout& layout, const StageTimes& synced_s) {
  // The device of rank 0 stands for each entity: those of a tensor-parallel group are done
  // together.
  std::vector<int> devices;
  std::vector<std::string> sites;
  std::vector<double> ready_s;
  std::vector<size_t> entities;  // by replica
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    const size_t first = devices.size();
    const std::vector<int> stage_entities = MapStagesToEntities(layout.replicas[r]);
    for (size_t s = 0; s < stage_entities.size(); ++s) {
      const size_t at = first + static_cast<size_t>(stage_entities[s]);
      if (at == devices.size()) {
        devices.push_back(layout.replicas[r].stages[s].devices[0]);
        sites.push_back(cluster.devices[devices.back()].site);
        ready_s.push_back(0);
      }
      ready_s[at] = std::max(ready_s[at], synced_s[r][s]);
    }
    entities.push_back(devices.size() - first);
  }
  const auto message_s = [&](int from, int to) {
    return sites[from] == sites[to] ? 0 : cluster.LinkBetween(devices[from], devices[to]).latency_s;
  };
  const std::vector<double> known_s = CommitSeconds(PlanCommitExchange(sites), ready_s, message_s);
  StageTimes result;
  auto at = known_s.begin();
  for (const size_t count : entities) {
    result.emplace_back(at, at + static_cast<std::ptrdiff_t>(count));
    at += static_cast<std::ptrdiff_t>(count);
  }
  return result;
}

namespace {

struct DeviceFinish {
  int device = -1;  // of rank 0
  double seconds = 0;
};

// The leader, and when its devices have taken their optimizer's steps.
DeviceFinish FindLeader(const Cluster& cluster, const Layout& layout, const StepEnds& ends) {
  DeviceFinish leader;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    const std::vector<int> entities = MapStagesToEntities(layout.replicas[r]);
    for (size_t s = 0; s < entities.size(); ++s) {
      const int device = layout.replicas[r].stages[s].devices[0];
      if (cluster.leader.empty() || cluster.devices[device].node != cluster.leader) continue;
      const auto entity = static_cast<size_t>(entities[s]);
      const double ends_s = ends.known_s[r][entity] + ends.optimizer_s[r][entity];
      if (leader.device < 0 || ends_s > leader.seconds) leader = {device, ends_s};
    }
  }
  return leader;
}

}  // namespace

double CommittedSeconds(const Cluster& cluster, const Layout& layout, const StepEnds& ends,
                        const StageTimes& begun_s) {
  const DeviceFinish leader = FindLeader(cluster, layout, ends);
  double seconds = 0;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    const std::vector<int> entities = MapStagesToEntities(layout.replicas[r]);
    for (size_t s = 0; s < entities.size(); ++s) {
      const auto entity = static_cast<size_t>(entities[s]);
      const int device = layout.replicas[r].stages[s].devices[0];
      double ready_s = ends.known_s[r][entity] + ends.optimizer_s[r][entity];
      if (leader.device >= 0 &&
          cluster.devices[leader.device].site != cluster.devices[device].site) {
        const double latency_s = cluster.LinkBetween(leader.device, device).latency_s;
        ready_s = std::max(ready_s, leader.seconds + latency_s);
      }
      // The first of a device's stages to begin gives the most.
      seconds = std::max(seconds, ready_s - (s == 0 ? 0 : begun_s[r][s]));
    }
  }
  return seconds;
}

}  // namespace atl::plan

#include "coordinator/planner/replica_problem.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "common/status.h"

namespace atl::plan {
namespace {

void Scale(double factor, Link& plan_link) {
  plan_link.bytes_per_s *= factor;
  for (LinkEdge& edge : plan_link.edges) edge.bytes_per_s *= factor;
}

// Appends values as they are in memory: keys are only compared.
template <class... Values>
void AppendRaw(std::string& key, Values... values) {
  (key.append(reinterpret_cast<const char*>(&values), sizeof(values)), ...);
}

// By what it is: the search numbers types in an order of its own.
void AppendType(const Cluster& cluster, int device, std::string& key) {
  const DeviceType& type = cluster.types[cluster.devices[device].type];
  key.append(type.name).push_back('\0');
  AppendRaw(key, type.flops_per_s, type.memory_bytes_per_s, type.memory_bytes,
            type.link_bytes_per_s);
}

void AppendLink(const Link& plan_link, std::string& key) {
  AppendRaw(key, plan_link.latency_s, plan_link.bytes_per_s, plan_link.edges.size());
  if (plan_link.sizes != nullptr) plan_link.sizes->AppendTo(key);
  for (const LinkEdge& edge : plan_link.edges) {
    AppendRaw(key, edge.latency_s, edge.bytes_per_s, edge.trunk, edge.conflict_set,
              edge.changes.size());
    for (const BandwidthChange& change : edge.changes) {
      AppendRaw(key, change.time_s, change.factor);
    }
    if (edge.sizes != nullptr) edge.sizes->AppendTo(key);
  }
}

// Adds the replica's links to the simulator's network, each once.
class NetworkBuilder {
 public:
  NetworkBuilder(const Cluster& cluster, const LinkSharing& sharing, sim::Network& network)
      : cluster_(cluster), sharing_(sharing), network_(network) {}

  // The link from one entity to another, as of `from` to `to`.
  int LinkBetween(std::pair<int, int> entities, const Stage& from, const Stage& to) {
    const auto [known, added] =
        links_.try_emplace(entities, static_cast<int>(network_.links.size()));
    if (!added) return known->second;
    const int a = from.devices[0], b = to.devices[0];
    network_.links.push_back(ToSimLink(sharing_.LinkBetween(from, to)));
    if (const int shared = sharing_.FindLane(from, to); shared >= 0) {
      const auto [lane, first] = lane_numbers_.try_emplace(shared, network_.lanes);
      if (first) ++network_.lanes;
      if (first) lanes_.emplace_back(cluster_.devices[a].site, cluster_.devices[b].site);
      network_.links.back().lane = lane->second;
    }
    return known->second;
  }

  // Returns them as Together has them.
  const std::vector<std::pair<std::string, std::string>>& lanes() const { return lanes_; }

 private:
  sim::Link ToSimLink(const Link& plan_link) {
    if (plan_link.edges.empty()) {
      return {{sim::Edge{
          ToNanos(plan_link.latency_s), plan_link.bytes_per_s, {}, -1, plan_link.sizes}}};
    }
    sim::Link link;
    for (const LinkEdge& edge : plan_link.edges) {
      sim::Edge added{ToNanos(edge.latency_s), edge.bytes_per_s, {}, edge.conflict_set, edge.sizes};
      if (edge.trunk >= 0) added.trunks.push_back(SharedTrunk(edge.trunk));
      if (!edge.changes.empty()) {
        added.trunks.push_back(AddTrunk(edge.bytes_per_s, edge.changes));
        for (const BandwidthChange& change : edge.changes) {
          added.bytes_per_s = std::max(added.bytes_per_s, edge.bytes_per_s * change.factor);
        }
      }
      link.edges.push_back(std::move(added));
    }
    return link;
  }

  int SharedTrunk(int index) {
    const auto [known, added] = trunks_.try_emplace(index, -1);
    if (added) {
      const Trunk& trunk = cluster_.trunks[index];
      known->second = AddTrunk(trunk.bytes_per_s / sharing_.CountUsers(index), trunk.changes);
    }
    return known->second;
  }

  int AddTrunk(double bytes_per_s, const std::vector<BandwidthChange>& changes) {
    sim::Trunk trunk{bytes_per_s, {}};
    for (const BandwidthChange& change : changes) {
      trunk.trace.push_back({ToNanos(change.time_s), bytes_per_s * change.factor});
    }
    network_.trunks.push_back(std::move(trunk));
    return static_cast<int>(network_.trunks.size()) - 1;
  }

  const Cluster& cluster_;
  const LinkSharing& sharing_;
  sim::Network& network_;
  std::map<std::pair<int, int>, int> links_;
  std::map<int, int> lane_numbers_;  // by what is shared
  std::vector<std::pair<std::string, std::string>> lanes_;
  std::map<int, int> trunks_;
};

// Makes devices idle while they send and while they receive, in place of links.
void BlockForMessages(sim::Problem& problem) {
  const auto seconds = [&](int& link, int64_t bytes) {
    return sim::TransferNs(problem, std::exchange(link, sim::kNoLink), bytes);
  };
  for (size_t c = 0; c + 1 < problem.chunks.size(); ++c) {
    sim::Chunk &chunk = problem.chunks[c], &next = problem.chunks[c + 1];
    chunk.forward_send_ns = seconds(chunk.forward_link, chunk.forward_bytes);
    next.backward_send_ns = seconds(chunk.backward_link, chunk.backward_bytes);
    next.forward_ns += chunk.forward_send_ns;
    chunk.backward_ns += next.backward_send_ns;
  }
}

// Every entity must hold its state and one micro-batch's activations of all its stages.
absl::Status SetMemory(const Cluster& cluster, const Costs& costs, const Layout& layout,
                       const Replica& replica, ReplicaOutcome& kind) {
  const std::vector<std::vector<int>> stages = sim::ListChunksByDevice(kind.problem);
  for (size_t entity = 0; entity < stages.size(); ++entity) {
    const Stage& first = replica.stages[stages[entity][0]];
    const StageCosts stage_costs =
        GroupCosts(cluster, costs, layout.micro_batch, first.devices, layout.tensor_split_ratios);
    int64_t state = 0;
    int64_t activations = 0;
    std::string layers;
    for (const int s : stages[entity]) {
      const Stage& stage = replica.stages[s];
      state += stage_costs.StateBytes(stage.first_layer, stage.last_layer, stage.saving);
      activations += kind.problem.chunks[s].activation_bytes;
      absl::StrAppend(&layers, layers.empty() ? "" : " and ", stage.first_layer, " to ",
                      stage.last_layer - 1);
    }
    const int64_t usable = GroupBytes(cluster, costs, first.devices, layout.tensor_split_ratios);
    if (state + activations > usable) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "device \"", cluster.devices[first.devices[0]].id, "\" lacks ",
          state + activations - usable, " bytes: layers ", layers, " need ", state + activations,
          " with one micro-batch of ", layout.micro_batch, ", it has ", usable));
    }
    kind.state_bytes.push_back(state);
    kind.memory_bytes.push_back(usable);
    kind.problem.devices[entity].memory_bytes = usable - state;
  }
  return absl::OkStatus();
}

}  // namespace

bool IsPlain(const Link& plan_link) {
  return plan_link.edges.empty() || (plan_link.edges.size() == 1 && plan_link.edges[0].trunk < 0 &&
                                     plan_link.edges[0].changes.empty());
}

sim::Nanos ToNanos(double seconds) {
  return static_cast<sim::Nanos>(std::llround(std::min(seconds, 1e6) * 1e9));
}

void LinkSharing::Count(const Layout& layout) {
  links_.assign(static_cast<size_t>(index_.sites()) * index_.sites() + index_.nodes(), {});
  trunks_.clear();
  std::vector<int> own;  // of a replica
  for (const Replica& replica : layout.replicas) {
    own.clear();
    std::set<int> trunks;
    for (size_t s = 0; s + 1 < replica.stages.size(); ++s) {
      const Stage &here = replica.stages[s], &next = replica.stages[s + 1];
      for (const auto& [from, to] : {std::pair(&here, &next), std::pair(&next, &here)}) {
        if (const int number = Find(*from, *to); number >= 0) {
          SharedLink& shared_link = links_[number];
          ++shared_link.stage_links;
          if (IsCard(number)) {
            shared_link.card_bytes_per_s = index_.CardBytesPerSecond(from->devices[0]);
          }
          if (std::ranges::find(own, number) == own.end()) {
            own.push_back(number);
            ++shared_link.replicas;
          }
        }
        if (cluster_.trunks.empty()) continue;
        for (const LinkEdge& edge : cluster_.LinkBetween(from->devices[0], to->devices[0]).edges) {
          if (edge.trunk >= 0) trunks.insert(edge.trunk);
        }
      }
    }
    for (const int trunk : trunks) ++trunks_[trunk];
  }
}

void LinkSharing::SetAlone() {
  for (SharedLink& shared_link : links_) shared_link.replicas = 1;
  trunks_.clear();
}

int LinkSharing::Find(const Stage& from, const Stage& to) const {
  const int a = from.devices[0], b = to.devices[0];
  const int site = index_.GetSiteIndex(a), other = index_.GetSiteIndex(b);
  if (site != other) return site * index_.sites() + other;
  const int node = index_.GetNode(a);
  return node == index_.GetNode(b) ? -1 : index_.sites() * index_.sites() + node;
}

int LinkSharing::FindLane(const Stage& from, const Stage& to) const {
  return IsPlain(index_.LinkBetween(from.devices[0], to.devices[0])) ? Find(from, to) : -1;
}

int LinkSharing::CountUsers(int trunk) const {
  const auto users = trunks_.find(trunk);
  return users == trunks_.end() ? 1 : users->second;
}

Link LinkSharing::LinkBetween(const Stage& from, const Stage& to) const {
  Link link = index_.LinkBetween(from.devices[0], to.devices[0]);
  const int number = Find(from, to);
  if (number < 0) {
    Scale(static_cast<double>(std::min(from.devices.size(), to.devices.size())), link);
  } else if (const SharedLink& shared_link = links_[number]; !IsCard(number)) {
    Scale(1.0 / std::max(1, IsPlain(link) ? shared_link.replicas : shared_link.stage_links), link);
  } else {
    // No card is slower than a link through it.
    const double users = std::max(1, shared_link.replicas);
    const double part = std::max(1.0, shared_link.card_bytes_per_s / link.bytes_per_s) / users;
    if (IsPlain(link) && part < 1) Scale(part, link);
  }
  // Each of fewer senders sends to several ranks.
  if (from.devices.size() < to.devices.size()) {
    const size_t copies = (to.devices.size() + from.devices.size() - 1) / from.devices.size();
    Scale(1.0 / static_cast<double>(copies), link);
  }
  return link;
}

Link LinkAtShare(const Cluster& cluster, const Layout& layout, int from, int to) {
  if (from == to) return {0, 1e18, {}};  // a group of one: nothing goes between its members
  const Device &a = cluster.devices[from], &b = cluster.devices[to];
  Link link = cluster.LinkBetween(from, to);
  double share = 1;
  if (a.site != b.site) {
    share = 1.0 / static_cast<double>(layout.replicas.size());
  } else if (a.node != b.node && link.edges.empty()) {
    const auto on_node = [&](const Stage& stage) {
      const Device& other = cluster.devices[stage.devices[0]];
      return other.node == a.node && other.site == a.site;
    };
    const auto users = std::ranges::count_if(layout.replicas, [&](const Replica& replica) {
      return std::ranges::any_of(replica.stages, on_node);
    });
    const double card = std::max(1.0, cluster.CardBytesPerSecond(from) / link.bytes_per_s);
    share = std::min(1.0, card / static_cast<double>(users));
  }
  Scale(share, link);
  return link;
}

int64_t StageLinkBytes(const Costs& costs, const Stage& stage, int micro_batch) {
  const int64_t copies = costs.options().runtime.whole_messages ? std::ssize(stage.devices) : 1;
  return costs.model().layers[stage.last_layer - 1].out_bytes * micro_batch * copies;
}

std::string MakeReplicaKey(const Cluster& cluster, const Layout& layout, const LinkSharing& sharing,
                           const Replica& replica) {
  std::string kind =
      absl::StrCat(layout.micro_batch, ",", layout.schedule, ",",
                   layout.split_backward ? "split" : "whole", ",", replica.micro_batches);
  const std::vector<int> stage_entities = MapStagesToEntities(replica);
  std::map<int, size_t> shared_links;  // of the replica, numbered
  for (size_t s = 0; s < replica.stages.size(); ++s) {
    const Stage& stage = replica.stages[s];
    AppendRaw(kind, stage_entities[s], stage.devices.size(), stage.first_layer, stage.last_layer,
              stage.saving.any() ? stage.saving.recomputed : -1);
    AppendType(cluster, stage.devices[0], kind);
    if (const std::optional<RingLink> ring = FindSlowestRingLink(cluster, stage.devices); ring) {
      AppendRaw(kind, ring->latency_s, ring->bytes_per_s);
    }
    for (size_t rank = 0; rank < layout.tensor_split_ratios.size(); ++rank) {
      AppendRaw(kind, layout.tensor_split_ratios[rank]);
      AppendType(cluster, stage.devices[rank], kind);
    }
    if (s + 1 == replica.stages.size() || stage_entities[s] == stage_entities[s + 1]) continue;
    const Stage& next = replica.stages[s + 1];
    for (const auto& [from, to] : {std::pair(&stage, &next), std::pair(&next, &stage)}) {
      AppendLink(sharing.LinkBetween(*from, *to), kind);
      const int lane = sharing.FindLane(*from, *to);
      if (lane < 0) continue;
      AppendRaw(kind, shared_links.try_emplace(lane, shared_links.size()).first->second);
    }
  }
  return kind;
}

absl::StatusOr<ReplicaOutcome> BuildReplica(const Cluster& cluster, const Costs& costs,
                                            const Layout& layout, const LinkSharing& sharing,
                                            const Replica& replica) {
  ReplicaOutcome kind;
  const std::vector<int> stage_entities = MapStagesToEntities(replica);
  const int stages = static_cast<int>(replica.stages.size());
  const int entities = 1 + *std::ranges::max_element(stage_entities);
  kind.problem.pipelines = {{0, stages, replica.micro_batches, 0}};
  kind.problem.devices.resize(entities);
  kind.problem.fixed_slots = costs.options().fixed_slots;
  kind.optimizer_ns.assign(entities, 0);
  NetworkBuilder network(cluster, sharing, kind.problem.network);
  for (int s = 0; s < stages; ++s) {
    const Stage& stage = replica.stages[s];
    const StageCosts stage_costs =
        GroupCosts(cluster, costs, layout.micro_batch, stage.devices, layout.tensor_split_ratios);
    const LayerTimes times = stage_costs.Of(stage.first_layer, stage.last_layer, stage.saving);
    sim::Chunk chunk;
    chunk.device = stage_entities[s];
    chunk.forward_ns = ToNanos(times.forward_s);
    chunk.backward_ns = ToNanos(times.backward_s);
    chunk.weight_ns = ToNanos(times.weight_s);
    chunk.optimizer_ns = ToNanos(times.optimizer_s);
    kind.optimizer_ns[stage_entities[s]] += chunk.optimizer_ns;
    chunk.activation_bytes =
        stage_costs.StashBytes(stage.first_layer, stage.last_layer, stage.saving);
    chunk.weight_bytes = chunk.weight_ns == 0
                             ? 0
                             : static_cast<int64_t>(costs.options().weight_share *
                                                    static_cast<double>(chunk.activation_bytes));
    if (s + 1 < stages && stage_entities[s] != stage_entities[s + 1]) {
      const Stage& next = replica.stages[s + 1];
      chunk.forward_link =
          network.LinkBetween({stage_entities[s], stage_entities[s + 1]}, stage, next);
      chunk.backward_link =
          network.LinkBetween({stage_entities[s + 1], stage_entities[s]}, next, stage);
      chunk.forward_bytes = chunk.backward_bytes = StageLinkBytes(costs, stage, layout.micro_batch);
    }
    kind.problem.chunks.push_back(chunk);
  }
  if (costs.options().runtime.blocking_messages) BlockForMessages(kind.problem);
  ATOLL_RETURN_IF_ERROR(SetMemory(cluster, costs, layout, replica, kind));
  return kind;
}

namespace {

class TogetherBuilder {
 public:
  TogetherBuilder(const Cluster& cluster, const Layout& layout)
      : layout_(layout),
        sharing_(cluster, layout),
        network_(cluster, sharing_, together_.problem.network) {
    sharing_.SetAlone();  // messages are in order
  }

  void Add(int r, const ReplicaOutcome& kind) {
    const sim::Problem& alone = kind.problem;
    sim::Problem& all = together_.problem;
    all.fixed_slots = alone.fixed_slots;
    const auto chunks = static_cast<int>(all.chunks.size());
    const auto devices = static_cast<int>(all.devices.size());
    all.devices.insert(all.devices.end(), alone.devices.begin(), alone.devices.end());
    const std::vector<Stage>& stages = layout_.replicas[r].stages;
    for (size_t s = 0; s < alone.chunks.size(); ++s) {
      sim::Chunk& chunk = all.chunks.emplace_back(alone.chunks[s]);
      chunk.device += devices;
      if (chunk.forward_link == sim::kNoLink) continue;
      const int next = alone.chunks[s + 1].device + devices;
      chunk.forward_link = network_.LinkBetween({chunk.device, next}, stages[s], stages[s + 1]);
      chunk.backward_link = network_.LinkBetween({next, chunk.device}, stages[s + 1], stages[s]);
    }
    all.pipelines.push_back(
        {chunks, static_cast<int>(alone.chunks.size()), alone.pipelines[0].micro_batches, r});
    for (std::vector<sim::Op> ops : kind.found.schedule.device_ops) {
      for (sim::Op& op : ops) op.chunk += chunks;
      together_.schedule.device_ops.push_back(std::move(ops));
    }
  }

  Together Take() {
    together_.lanes = network_.lanes();
    return std::move(together_);
  }

 private:
  const Layout& layout_;
  LinkSharing sharing_;
  Together together_;
  NetworkBuilder network_;
};

}  // namespace

Together PutTogether(const Cluster& cluster, const Layout& layout, const Outcome& outcome) {
  std::vector<const ReplicaOutcome*> kinds(layout.replicas.size(), nullptr);
  for (const ReplicaOutcome& kind : outcome.kinds) {
    for (const int r : kind.replicas) kinds[r] = &kind;
  }
  TogetherBuilder builder(cluster, layout);
  for (size_t r = 0; r < kinds.size(); ++r) builder.Add(static_cast<int>(r), *kinds[r]);
  return builder.Take();
}

}  // namespace atl::plan

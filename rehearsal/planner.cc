#include "rehearsal/planner.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/ownership.h"
#include "coordinator/planning/planning.h"

namespace atl::rehearsal {
namespace {

IslandPlan Renamed(IslandPlan plan, const std::map<std::string, NodeId>& names) {
  for (PlanReplica& replica : plan.replicas) {
    for (PlanStage& stage : replica.stages) {
      for (std::string& device : stage.devices) {
        const size_t slash = device.rfind('/');
        device = names.at(device.substr(0, slash)) + device.substr(slash);
      }
    }
  }
  return plan;
}

// The workers that hold a layer of a replica, by rank.
std::vector<NodeId> ListLayerHolders(const PlanReplica& replica, int32_t layer) {
  std::vector<NodeId> holders;
  for (const PlanStage& stage : replica.stages) {
    if (layer < stage.first_layer || layer >= stage.first_layer + stage.layers) continue;
    for (const std::string& device : stage.devices) holders.push_back(WorkerFromDevice(device));
  }
  return holders;
}

// The workers that have each part of the state: by layer, rank and shard of replicas.
using Holders = std::map<std::tuple<int32_t, size_t, int>, std::set<NodeId>>;

Holders ListHolders(const IslandPlan& plan, size_t layers) {
  const Ownership ownership = OwnershipFromPlan(plan);
  Holders holders;
  for (int r = 0; r < static_cast<int>(plan.replicas.size()); ++r) {
    for (size_t l = 0; l < layers; ++l) {
      const auto layer = static_cast<int32_t>(l);
      const std::vector<NodeId> ranks =
          ListLayerHolders(plan.replicas[static_cast<size_t>(r)], layer);
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        holders[{layer, rank, ownership.GetShardIndex(r)}].insert(ranks[rank]);
      }
    }
  }
  return holders;
}

std::vector<NodeId> WithPart(const IslandPlan& plan, const NodeId& leader) {
  std::set<NodeId> names = {leader};
  for (const PlanReplica& replica : plan.replicas) {
    for (const PlanStage& stage : replica.stages) {
      for (const std::string& device : stage.devices) names.insert(WorkerFromDevice(device));
    }
  }
  return {names.begin(), names.end()};
}

// One replica a member, or, where the batch has too few sequences for that, one of all of them.
IslandPlan Carried(const IslandPlan& real, const PlanRequest& query,
                   const std::vector<NodeId>& with_part, int32_t layers) {
  IslandPlan plan;
  plan.number = query.number;
  plan.step_ns = real.step_ns;
  plan.bound_ns = real.bound_ns;
  plan.schedule = real.schedule;
  plan.reason = real.reason;
  std::vector<std::string> devices;
  for (const PlanMember& member : query.members) {
    if (!std::binary_search(with_part.begin(), with_part.end(), member.member.worker)) continue;
    plan.members.push_back(member.member);
    devices.push_back(member.member.worker + "/0");
  }
  const int64_t batch = query.spec.inner.batch_sequences;
  const auto n = static_cast<int64_t>(devices.size());
  if (batch < n) {
    plan.replicas.push_back({{{0, layers, devices, {}}}, batch, 1});
  } else {
    for (int64_t r = 0; r < n; ++r) {
      const int64_t share = batch * (r + 1) / n - batch * r / n;
      plan.replicas.push_back({{{0, layers, {devices[static_cast<size_t>(r)]}, {}}}, share, 1});
    }
  }
  const std::vector<PlanOp> compute = {{PlanOpKind::kForward, 0, 0, 0, false},
                                       {PlanOpKind::kInputGradient, 0, 0, 0, false},
                                       {PlanOpKind::kWeightGradient, 0, 0, 0, false}};
  for (const std::string& device : devices) {
    plan.programs.push_back(CompleteProgram(plan, device, compute));
  }
  return plan;
}

}  // namespace

absl::StatusOr<IslandPlan> Searches::Search(const PlanRequest& query,
                                            const std::map<NodeId, std::string>& names) const {
  PlanRequest request = query;
  request.spec = scene_.spec;
  request.facts = scene_.facts;
  request.ran.clear();  // in the cores' form
  request.threads = SearchThreads();
  PlanningInput input = scene_.input;
  input.cluster = plan::WithDevices(scene_.input.cluster, [&](const plan::Device& device) {
    return names.contains(device.node);
  });
  for (plan::Device& device : input.cluster.devices) {
    device.id = names.at(device.node) + device.id.substr(device.id.rfind('/'));
    device.node = names.at(device.node);
  }
  std::map<NodeId, const SceneWorker*> described;
  for (const SceneWorker& worker : scene_.workers) described[worker.name] = &worker;
  for (PlanMember& member : request.members) {
    member.devices = ListDevices(scene_.input.cluster, *described.at(member.member.worker));
    member.member.worker = names.at(member.member.worker);
  }
  input.cluster.leader = request.members.front().member.worker;
  ATOLL_ASSIGN_OR_RETURN(FoundPlan found, FindPlan(request, input));
  found.island.programs.clear();
  return std::move(found.island);
}

absl::StatusOr<IslandPlan> Searches::Find(const PlanRequest& query) {
  const plan::Cluster& all = scene_.input.cluster;
  // Links between nodes by name are those of these very nodes.
  const bool by_name = !all.measured.empty() || !all.node_to_node.empty();
  std::map<NodeId, const SceneWorker*> known;
  for (const SceneWorker& worker : scene_.workers) known[worker.name] = &worker;
  std::string key = query.number > 1 ? "again" : "first";
  std::vector<std::string> sites;
  std::map<NodeId, std::string> names;
  std::map<std::string, NodeId> back;
  for (const PlanMember& member : query.members) {
    const SceneWorker& worker = *known.at(member.member.worker);
    const auto site = std::find(sites.begin(), sites.end(), worker.site) - sites.begin();
    if (site == std::ssize(sites)) sites.push_back(worker.site);
    absl::StrAppend(&key, ";", site, by_name ? worker.name : "");
    for (const int device : worker.devices) {
      absl::StrAppend(&key, ",", all.devices[static_cast<size_t>(device)].type);
    }
    const std::string name = by_name ? worker.name : absl::StrCat("m", names.size());
    names[worker.name] = name;
    back[name] = worker.name;
  }
  for (const std::string& from : sites) {
    for (const std::string& to : sites) {
      const SiteLink& link = scene_.links.at({from, to});
      absl::StrAppend(&key, "|", link.latency_s, "/", link.bytes_per_s);
    }
  }
  const std::lock_guard lock(mutex_);
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, Search(query, names)).first;
  if (!found->second.ok()) return found->second.status();
  return Renamed(*found->second, back);
}

int64_t Searches::searches() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(plans_.size());
}

absl::StatusOr<IslandPlan> Planner::Plan(const PlanRequest& query, int32_t layers) {
  absl::StatusOr<IslandPlan> real = searches_.Find(query);
  if (!real.ok()) return real.status();
  const std::vector<NodeId> with_part = WithPart(*real, query.members.front().member.worker);
  IslandPlan carried = Carried(*real, query, with_part, layers);
  real_.insert_or_assign(with_part, *std::move(real));
  return carried;
}

const IslandPlan* Planner::FindReal(std::vector<NodeId> members) const {
  std::sort(members.begin(), members.end());
  const auto found = real_.find(members);
  return found == real_.end() ? nullptr : &found->second;
}

bool Planner::Survives(const std::vector<NodeId>& members, const std::set<NodeId>& lost) const {
  const IslandPlan* plan = FindReal(members);
  if (lost.empty() || plan == nullptr) return lost.empty();
  const Holders holders = ListHolders(*plan, scene_.facts.layers.size());
  return std::all_of(holders.begin(), holders.end(), [&](const auto& entry) {
    return std::any_of(entry.second.begin(), entry.second.end(),
                       [&](const NodeId& name) { return !lost.contains(name); });
  });
}

bool Planner::IsRedundant(const std::vector<NodeId>& members) const {
  const IslandPlan* plan = FindReal(members);
  if (plan == nullptr) return false;
  const Holders holders = ListHolders(*plan, scene_.facts.layers.size());
  return std::all_of(holders.begin(), holders.end(),
                     [](const auto& entry) { return entry.second.size() > 1; });
}

}  // namespace atl::rehearsal

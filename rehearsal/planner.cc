#include "rehearsal/planner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/ownership.h"
#include "coordinator/planning/planning.h"

namespace atl::rehearsal {
namespace {

std::string Rename(const std::string& device, const std::map<NodeId, NodeId>& names) {
  const size_t slash = device.rfind('/');
  return names.at(device.substr(0, slash)) + device.substr(slash);
}

IslandPlan Renamed(const IslandPlan& plan, const std::vector<NodeId>& from,
                   const PlanRequest& query) {
  std::map<NodeId, NodeId> names;
  for (size_t i = 0; i < from.size(); ++i) names[from[i]] = query.members[i].member.worker;
  IslandPlan renamed = plan;
  for (PlanReplica& replica : renamed.replicas) {
    for (PlanStage& stage : replica.stages) {
      for (std::string& device : stage.devices) device = Rename(device, names);
    }
  }
  return renamed;
}

// The workers that hold a layer of a replica, by rank.
std::vector<NodeId> HoldersOf(const PlanReplica& replica, int32_t layer) {
  std::vector<NodeId> holders;
  for (const PlanStage& stage : replica.stages) {
    if (layer < stage.first_layer || layer >= stage.first_layer + stage.layers) continue;
    for (const std::string& device : stage.devices) holders.push_back(WorkerFromDevice(device));
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

absl::StatusOr<IslandPlan> Planner::FindReal(const PlanRequest& query) {
  std::map<std::string, size_t> at;
  for (size_t i = 0; i < scene_.workers.size(); ++i) at[scene_.workers[i].name] = i;
  const plan::Cluster& all = scene_.input.cluster;
  const bool by_name = !all.measured.empty() || !all.node_to_node.empty();
  std::string key = query.number > 1 ? "again" : "first";
  std::set<std::string> names;
  std::vector<NodeId> members;
  for (const PlanMember& member : query.members) {
    const SceneWorker& worker = scene_.workers[at.at(member.member.worker)];
    absl::StrAppend(&key, ";", worker.site, by_name ? worker.name : "");
    for (const int device : worker.devices) {
      absl::StrAppend(&key, ",", all.devices[static_cast<size_t>(device)].type);
    }
    names.insert(worker.name);
    members.push_back(worker.name);
  }
  const auto known = plans_.find(key);
  if (known != plans_.end()) {
    if (!known->second.plan.ok()) return known->second.plan;
    return Renamed(*known->second.plan, known->second.members, query);
  }
  PlanRequest request = query;
  request.spec = scene_.spec;
  request.facts = scene_.facts;
  request.ran.clear();  // in the cores' form
  request.threads = SearchThreads();
  PlanningInput input = scene_.input;
  input.cluster = plan::WithDevices(
      all, [&](const plan::Device& device) { return names.contains(device.node); });
  input.cluster.leader = members.front();
  absl::StatusOr<FoundPlan> found = FindPlan(request, input);
  Found made{found.ok() ? absl::StatusOr<IslandPlan>(std::move(found->island)) : found.status(),
             members};
  if (made.plan.ok()) made.plan->programs.clear();
  return plans_.emplace(key, std::move(made)).first->second.plan;
}

absl::StatusOr<IslandPlan> Planner::Plan(const PlanRequest& query, int32_t layers) {
  absl::StatusOr<IslandPlan> real = FindReal(query);
  if (!real.ok()) return real.status();
  const std::vector<NodeId> with_part = WithPart(*real, query.members.front().member.worker);
  IslandPlan carried = Carried(*real, query, with_part, layers);
  real_.insert_or_assign(with_part, *std::move(real));
  return carried;
}

bool Planner::Survives(const std::vector<NodeId>& members, const std::set<NodeId>& lost) const {
  if (lost.empty()) return true;
  std::vector<NodeId> sorted = members;
  std::sort(sorted.begin(), sorted.end());
  const auto found = real_.find(sorted);
  if (found == real_.end()) return false;
  const IslandPlan& plan = found->second;
  const Ownership ownership = OwnershipFromPlan(plan);
  std::map<std::tuple<int32_t, size_t, int>, bool> held;  // layer, rank, shard of replicas
  for (int r = 0; r < static_cast<int>(plan.replicas.size()); ++r) {
    for (size_t l = 0; l < scene_.facts.layers.size(); ++l) {
      const auto layer = static_cast<int32_t>(l);
      const std::vector<NodeId> holders = HoldersOf(plan.replicas[static_cast<size_t>(r)], layer);
      for (size_t rank = 0; rank < holders.size(); ++rank) {
        held[{layer, rank, ownership.GetShardIndex(r)}] |= !lost.contains(holders[rank]);
      }
    }
  }
  return std::all_of(held.begin(), held.end(), [](const auto& entry) { return entry.second; });
}

}  // namespace atl::rehearsal

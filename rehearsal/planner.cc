#include "rehearsal/planner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/encoding.h"
#include "common/model/outer_cut.h"
#include "common/model/ownership.h"
#include "coordinator/planning/objective.h"
#include "coordinator/planning/planning.h"

namespace atl::rehearsal {
namespace {

constexpr size_t kPlansKept = 8;  // of an island

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

// The workers that have each part of the state, of a layer's rank and shard of replicas.
std::set<std::set<NodeId>> ListHolders(const IslandPlan& plan) {
  const Ownership ownership = OwnershipFromPlan(plan);
  std::set<int32_t> layers;  // where other workers begin to hold them
  for (const PlanReplica& replica : plan.replicas) {
    for (const PlanStage& stage : replica.stages) layers.insert(stage.first_layer);
  }
  std::set<std::set<NodeId>> all;
  for (const int32_t layer : layers) {
    std::map<std::pair<size_t, int>, std::set<NodeId>> holders;  // by rank and shard
    for (int r = 0; r < static_cast<int>(plan.replicas.size()); ++r) {
      const std::vector<NodeId> ranks =
          ListLayerHolders(plan.replicas[static_cast<size_t>(r)], layer);
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        holders[{rank, ownership.GetShardIndex(r)}].insert(ranks[rank]);
      }
    }
    for (auto& [part, names] : holders) all.insert(std::move(names));
  }
  return all;
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

// One replica of one stage: lists of devices, however many members there are.
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
  plan.replicas.push_back({{{0, layers, devices, {}}}, query.spec.inner.batch_sequences, 1});
  const std::vector<PlanOp> compute = {{PlanOpKind::kForward, 0, 0, 0, false},
                                       {PlanOpKind::kInputGradient, 0, 0, 0, false},
                                       {PlanOpKind::kWeightGradient, 0, 0, 0, false}};
  for (const std::string& device : devices) {
    plan.programs.push_back(CompleteProgram(plan, device, compute));
  }
  return plan;
}

}  // namespace

Searches::Searches(const Scene* scene) : scene_(*scene) {
  for (const SceneWorker& worker : scene_.workers) described_[worker.name] = &worker;
}

absl::StatusOr<IslandPlan> Searches::Search(const PlanRequest& query,
                                            const std::map<NodeId, std::string>& names) const {
  PlanRequest request = query;
  request.spec = scene_.spec;
  request.facts = scene_.facts;
  request.ran.clear();  // in the cores' form
  request.threads = SearchThreads();
  for (PlanMember& member : request.members) {
    member.devices = ListDevices(scene_.input.cluster, *described_.at(member.member.worker));
    member.member.worker = names.at(member.member.worker);
  }
  // The scene is without what the job leaves out.
  const auto make_input = [&](const PlanRequest& of) -> absl::StatusOr<PlanningInput> {
    PlanningInput input = scene_.input;
    ATOLL_ASSIGN_OR_RETURN(input.job, ToPlanJob(of.spec, of.facts.model, of.islands));
    input.cluster = plan::WithDevices(scene_.input.cluster, [&](const plan::Device& device) {
      return names.contains(device.node);
    });
    for (plan::Device& device : input.cluster.devices) {
      device.id = names.at(device.node) + device.id.substr(device.id.rfind('/'));
      device.node = names.at(device.node);
    }
    input.cluster.leader = of.members.front().member.worker;
    for (auto& [sites, bytes] : input.cluster.bytes_per_day) bytes /= of.islands_at_site;
    return input;
  };
  ATOLL_ASSIGN_OR_RETURN(IslandPlan found, PlanIsland(request, make_input));
  found.programs.clear();
  return found;
}

// Describes what a plan depends on besides the members.
std::string Searches::DescribeKind(const PlanRequest& query, bool by_name) const {
  std::string key = query.number > 1 ? "again" : "first";
  if (scene_.spec.layout.deadline_hours > 0) absl::StrAppend(&key, ", islands ", query.islands);
  if (!scene_.input.cluster.bytes_per_day.empty()) {
    absl::StrAppend(&key, ", at site ", query.islands_at_site);
    for (const auto& [site, share] : query.servers) absl::StrAppend(&key, ", ", site, " ", share);
  }
  const plan::Cluster& all = scene_.input.cluster;
  std::vector<std::string> sites;
  for (const PlanMember& member : query.members) {
    const SceneWorker& worker = *described_.at(member.member.worker);
    const auto site = std::find(sites.begin(), sites.end(), worker.site) - sites.begin();
    if (site == std::ssize(sites)) sites.push_back(worker.site);
    absl::StrAppend(&key, ";", site, by_name ? worker.name : "");
    for (const int device : worker.devices) {
      absl::StrAppend(&key, ",", all.devices[static_cast<size_t>(device)].type);
    }
  }
  for (const std::string& from : sites) {
    for (const std::string& to : sites) {
      const SiteLink& link = scene_.links.at({from, to});
      absl::StrAppend(&key, "|", link.latency_s, "/", link.bytes_per_s);
    }
  }
  return key;
}

absl::StatusOr<IslandPlan> Searches::Find(const PlanRequest& query) {
  const plan::Cluster& all = scene_.input.cluster;
  // Links and plans by name are of these very nodes, and limits of these very sites.
  const bool by_name = !all.measured.empty() || !all.node_to_node.empty() ||
                       !all.bytes_per_day.empty() || !scene_.spec.layout.plan.empty();
  std::map<NodeId, std::string> names;
  std::map<std::string, NodeId> back;
  for (const PlanMember& member : query.members) {
    const NodeId& worker = member.member.worker;
    const std::string name = by_name ? worker : absl::StrCat("m", names.size());
    names[worker] = name;
    back[name] = worker;
  }
  const std::string key = DescribeKind(query, by_name);
  const std::lock_guard lock(mutex_);
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, Search(query, names)).first;
  if (!found->second.ok()) return found->second.status();
  return Renamed(*found->second, back);
}

double Planner::Rank(const PlanRequest& query, const IslandPlan& real) const {
  const LayoutSpec& layout = scene_.spec.layout;
  if (layout.objective == PlanObjective::kTime && layout.budget == 0) return 0;
  PlanningInput input = scene_.input;
  input.job.objective = MakeObjective(scene_.spec, query.islands);
  return Rate(query, input, real, 1e-9 * static_cast<double>(real.step_ns)).rank;
}

PlanMade Planner::Plan(IslandId island, const PlanRequest& query,
                       const std::optional<IslandPlan>& current, int32_t layers) {
  PlanMade made;
  absl::StatusOr<IslandPlan> real = searches_.Find(query);
  if (!real.ok()) {
    made.plan = real.status();
    return made;
  }
  const NodeId& leader = query.members.front().member.worker;
  if (current) {
    made.current_step_ns = current->step_ns;
    std::vector<NodeId> members;
    for (const IslandMember& member : current->members) members.push_back(member.worker);
    if (const Kept* const now = FindReal(island, members); now != nullptr) {
      made.rank = Rank(query, *real);
      made.current_rank = Rank(query, now->plan);
      Keep(island, std::vector(now->members), IslandPlan(now->plan));
    }
  }
  const std::vector<NodeId> with_part = WithPart(*real, leader);
  made.plan = Carried(*real, query, with_part, layers);
  Keep(island, with_part, *std::move(real));
  return made;
}

// An island needs that of the plan in force, however many are made and not taken, and of the one
// that is being set up.
void Planner::Keep(IslandId island, std::vector<NodeId> members, IslandPlan real) {
  auto& kept = real_[island];
  std::erase_if(kept, [&](const Kept& plan) { return plan.members == members; });
  std::set<std::set<NodeId>> holders = ListHolders(real);
  kept.push_back({std::move(members), std::move(real), std::move(holders)});
  if (kept.size() > kPlansKept) kept.pop_front();
}

const Planner::Kept* Planner::FindReal(IslandId island, std::vector<NodeId> members) const {
  std::sort(members.begin(), members.end());
  const auto kept = real_.find(island);
  if (kept == real_.end()) return nullptr;
  const auto found = std::find_if(kept->second.begin(), kept->second.end(),
                                  [&](const Kept& plan) { return plan.members == members; });
  return found == kept->second.end() ? nullptr : &*found;
}

bool Planner::Survives(IslandId island, const std::vector<NodeId>& members,
                       const std::set<NodeId>& lost) const {
  const Kept* const kept = FindReal(island, members);
  if (lost.empty() || kept == nullptr) return lost.empty();
  return std::all_of(kept->holders.begin(), kept->holders.end(), [&](const auto& holders) {
    return std::any_of(holders.begin(), holders.end(),
                       [&](const NodeId& name) { return !lost.contains(name); });
  });
}

std::map<std::string, double> Planner::ShareBySite(IslandId island,
                                                   const std::vector<NodeId>& members) const {
  const auto site_of = [&](const NodeId& name) -> const std::string& {
    return searches_.Describe(name).site;
  };
  const std::string& site = site_of(members.front());
  const Kept* const kept = FindReal(island, members);
  const bool one_site = std::all_of(members.begin(), members.end(),
                                    [&](const NodeId& name) { return site_of(name) == site; });
  if (kept == nullptr || one_site) return {{site, 1.0}};
  std::vector<ShardPlacement> layers;
  for (const LayerSize& layer : scene_.facts.layers) {
    ShardPlacement& placement = layers.emplace_back();
    placement.shard = placement.layer = static_cast<int32_t>(layers.size()) - 1;
    placement.elements = layer.elements;
  }
  std::map<std::string, double> shares;
  const auto all = static_cast<double>(scene_.parameters());
  for (const OuterPart& part :
       CutByOwners(kept->plan, layers, PartBlock(scene_.spec.outer.push_encoding))) {
    shares[site_of(part.holders.front())] += static_cast<double>(part.range.size()) / all;
  }
  return shares;
}

std::map<NodeId, int64_t> Planner::CountDevices(IslandId island,
                                                const std::vector<NodeId>& members) const {
  std::map<NodeId, int64_t> counts;
  const Kept* const kept = FindReal(island, members);
  if (kept == nullptr) return counts;
  for (const NodeId& member : members) counts[member] = 0;
  std::set<std::string> devices;  // several stages may share one
  for (const PlanReplica& replica : kept->plan.replicas) {
    for (const PlanStage& stage : replica.stages) {
      devices.insert(stage.devices.begin(), stage.devices.end());
    }
  }
  for (const std::string& device : devices) ++counts[WorkerFromDevice(device)];
  return counts;
}

bool Planner::IsRedundant(IslandId island, const std::vector<NodeId>& members) const {
  const Kept* const kept = FindReal(island, members);
  return kept != nullptr && std::all_of(kept->holders.begin(), kept->holders.end(),
                                        [](const auto& holders) { return holders.size() > 1; });
}

}  // namespace atl::rehearsal

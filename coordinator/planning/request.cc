#include "coordinator/planning/request.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/machine/limits.h"
#include "common/model/job_model.h"
#include "common/status.h"
#include "coordinator/planner/cluster/constraints.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planning/auxiliary_memory.h"
#include "coordinator/planning/objective.h"

namespace atl {
namespace {

constexpr double kSameSpeed = 1.10;  // devices this near in time and memory are one type

// "" where the worker does not say.
std::string GetComputeType(const DeviceInfo& device) {
  return device.compute.empty() && IsHost(device) ? "fp32" : device.compute;
}

// Returns the type that is assumed for a device without measurements.
plan::DeviceType AssumedType(const DeviceInfo& device) {
  plan::DeviceType type;
  if (IsHost(device)) {
    const double threads = std::max(1, device.threads);
    type.flops_per_s = 100e9 * threads;
    type.memory_bytes_per_s = 10e9;
    type.link_bytes_per_s = 4e9;  // a copy between threads of one process
    return type;
  }
  return plan::FindDeviceTypeByKind(device.kind)
      .value_or(plan::DeviceType{"", 100e12, 1e12, 0, 32e9});
}

// ------------------------------------------------------------------------------------- model ----

// Returns the model as workers found it, or, where these have not reported it, as the job says.
absl::StatusOr<ModelConfig> GetModelConfig(const PlanRequest& request) {
  const bool found = request.facts.model.hidden > 0 || !request.facts.model.config_json.empty();
  ATOLL_ASSIGN_OR_RETURN(
      const ModelConfig config,
      ModelConfigFromFacts(found ? request.facts.model : request.spec.model, request.spec));
  const auto layers = static_cast<int64_t>(request.facts.layers.size());
  if (config.layers + 2 != layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has ", config.layers + 2, " layers, and workers found ", layers));
  }
  return config;
}

// ----------------------------------------------------------------------------------- devices ----

struct DeviceFacts {
  std::string id;
  size_t member = 0;
  DeviceInfo info;
  const DeviceProfile* profile = nullptr;
  double seconds_per_sequence = 0;  // of the whole model; 0: not measured
};

double SecondsPerSequence(const DeviceProfile& profile, int layers) {
  int most = 0;
  for (const LayerCost& cost : profile.layers) {
    if (cost.tensor_parallel == 1) most = std::max(most, cost.micro_batch_sequences);
  }
  double ns = 0;
  for (const LayerCost& cost : profile.layers) {
    if (cost.tensor_parallel != 1 || cost.micro_batch_sequences != most) continue;
    const double times = cost.kind == LayerKind::kBlock ? layers - 2 : 1;
    ns += times *
          static_cast<double>(cost.forward_ns + cost.input_gradient_ns + cost.weight_gradient_ns);
  }
  return most == 0 ? 0 : ns * 1e-9 / most;
}

bool Near(double a, double b) {
  if (a == 0 || b == 0) return a == b;
  return std::max(a, b) <= kSameSpeed * std::min(a, b);
}

// The measured block is the first one with experts, where there are any: a dense block among them
// has its times in proportion to its operations and parameters.
const plan::Layer* FindMeasured(const plan::Model& model, size_t layer) {
  if (model.experts == 0 || GetLayerKind(layer, model.layers.size()) != LayerKind::kBlock) {
    return nullptr;
  }
  const auto measured = std::find_if(model.layers.begin(), model.layers.end(),
                                     [](const auto& each) { return each.expert_share > 0; });
  return measured == model.layers.end() ? nullptr : &*measured;
}
double RelativeWork(const plan::Model& model, size_t layer) {
  const plan::Layer* measured = FindMeasured(model, layer);
  return measured == nullptr ? 1 : model.layers[layer].forward_flops / measured->forward_flops;
}
double RelativeParameters(const plan::Model& model, size_t layer) {
  const plan::Layer* measured = FindMeasured(model, layer);
  return measured == nullptr ? 1
                             : static_cast<double>(model.layers[layer].parameters) /
                                   static_cast<double>(measured->parameters);
}

// The measured times of one type: the mean of its devices, where the first of them has all kinds.
void AddTimes(const std::string& type, const std::vector<const DeviceProfile*>& profiles,
              const plan::Model& model, plan::ProfileTable& table) {
  using Key = std::pair<int, int>;  // tensor parallel, micro-batch
  std::map<Key, std::map<LayerKind, std::pair<plan::LayerTimes, int>>> sums;
  for (const DeviceProfile* profile : profiles) {
    for (const LayerCost& cost : profile->layers) {
      auto& [sum, count] = sums[{cost.tensor_parallel, cost.micro_batch_sequences}][cost.kind];
      sum.forward_s += static_cast<double>(cost.forward_ns) * 1e-9;
      sum.backward_s += static_cast<double>(cost.input_gradient_ns) * 1e-9;
      sum.weight_s += static_cast<double>(std::max<int64_t>(1, cost.weight_gradient_ns)) * 1e-9;
      sum.optimizer_s += static_cast<double>(cost.optimizer_ns) * 1e-9;
      ++count;
    }
  }
  for (const auto& [key, kinds] : sums) {
    if (!kinds.contains(LayerKind::kEmbedding) || !kinds.contains(LayerKind::kBlock) ||
        !kinds.contains(LayerKind::kHead)) {
      continue;
    }
    std::vector<plan::LayerTimes> times;
    for (size_t l = 0; l < model.layers.size(); ++l) {
      const auto& [sum, count] = kinds.at(GetLayerKind(l, model.layers.size()));
      const double work = RelativeWork(model, l) / count;
      times.push_back({sum.forward_s * work, sum.backward_s * work, sum.weight_s * work,
                       sum.optimizer_s * RelativeParameters(model, l) / count});
    }
    table[{type, key.first, key.second}] = std::move(times);
  }
}

// Selects the devices that the job does not exclude: what they compute in, and whether they were
// measured, does not matter.
absl::StatusOr<std::vector<DeviceFacts>> SelectDevices(const PlanRequest& request,
                                                       const plan::Constraints& fixed) {
  std::vector<DeviceFacts> devices;
  size_t all = 0;
  const int layers = static_cast<int>(request.facts.layers.size());
  std::set<NodeId> names;
  for (size_t m = 0; m < request.members.size(); ++m) {
    const PlanMember& member = request.members[m];
    const NodeId& worker = member.member.worker;
    if (!names.insert(worker).second) {
      return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " is named twice"));
    }
    if (member.devices.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " has no device"));
    }
    for (size_t i = 0; i < member.devices.size(); ++i) {
      DeviceFacts facts{absl::StrCat(worker, "/", i), m, member.devices[i]};
      ++all;
      if (fixed.Excludes(worker, facts.id)) continue;
      for (const DeviceProfile& profile : member.profiles) {
        if (profile.device != facts.id || layers < 3) continue;
        facts.profile = &profile;
        facts.seconds_per_sequence = SecondsPerSequence(profile, layers);
      }
      devices.push_back(std::move(facts));
    }
  }
  if (devices.empty()) return plan::NothingLeft(fixed, all);
  // Activations of one type cannot be another's.
  for (const DeviceFacts& device : devices) {
    const std::string first = GetComputeType(devices[0].info), other = GetComputeType(device.info);
    if (first.empty() || other.empty() || first == other) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(devices[0].id, " computes in ", first, " and ", device.id, " in ", other,
                     ": an island computes in one type; start its workers with the same --compute, "
                     "or keep them in islands of their own (layout.island)"));
  }
  return devices;
}

// Devices of one kind that are near each other in speed and memory are of one type, with the mean
// times and the least memory.
void MakeTypes(const PlanRequest& request, const std::vector<DeviceFacts>& devices,
               PlanningInput& input) {
  std::vector<const DeviceFacts*> first;
  std::vector<std::vector<const DeviceProfile*>> profiles;
  std::vector<plan::DeviceType>& types = input.cluster.types;
  for (const DeviceFacts& device : devices) {
    size_t t = 0;
    for (; t < types.size(); ++t) {
      const DeviceFacts& other = *first[t];
      if (other.info.kind == device.info.kind && other.info.threads == device.info.threads &&
          Near(static_cast<double>(other.info.memory_bytes),
               static_cast<double>(device.info.memory_bytes)) &&
          other.info.price_per_hour == device.info.price_per_hour &&
          Near(other.seconds_per_sequence, device.seconds_per_sequence)) {
        break;
      }
    }
    if (t == types.size()) {
      plan::DeviceType type = AssumedType(device.info);
      int same = 1;
      for (const DeviceFacts* other : first) same += other->info.kind == device.info.kind ? 1 : 0;
      type.name = same == 1 ? device.info.kind : absl::StrCat(device.info.kind, " #", same);
      type.memory_bytes = std::max<int64_t>(1, device.info.memory_bytes);
      type.price_per_hour = device.info.price_per_hour;
      types.push_back(std::move(type));
      first.push_back(&device);
      profiles.emplace_back();
    }
    types[t].memory_bytes =
        std::min(types[t].memory_bytes, std::max<int64_t>(1, device.info.memory_bytes));
    if (device.profile != nullptr) profiles[t].push_back(device.profile);
    const PlanMember& member = request.members[device.member];
    input.cluster.devices.push_back({device.id, member.member.worker, member.site,
                                     static_cast<int>(t), device.info.egress_price_per_gb * 1e-9});
  }
  input.cluster.leader = request.members[0].member.worker;
  plan::ProfileTable table;
  for (size_t t = 0; t < types.size(); ++t) {
    AddTimes(types[t].name, profiles[t], input.costs.model(), table);
  }
  plan::Model model = input.costs.model();
  model.expert_tokens = request.expert_tokens;
  input.costs = plan::Costs(std::move(model), std::move(table), input.costs.options());
}

// ------------------------------------------------------------------------------------- links ----

std::map<std::pair<NodeId, NodeId>, plan::Link> BuildLinks(const PlanRequest& request) {
  std::map<std::pair<NodeId, NodeId>, plan::Link> links;
  for (const LinkProfile& link : request.links) {
    if (!(link.bandwidth_bytes_per_s > 0) || !std::isfinite(link.bandwidth_bytes_per_s)) continue;
    links[{link.from, link.to}] = plan::LinkFromProfile(link);
  }
  const auto measured = links;
  for (const auto& [pair, link] : measured) links.try_emplace({pair.second, pair.first}, link);
  return links;
}

// Sites that were not declared: that of a worker of the same group that has one, else a new name.
void FindSites(double stage_link_bytes, plan::Cluster& cluster) {
  plan::GroupingOptions options;
  options.payload_bytes = stage_link_bytes;
  const plan::Grouping grouping = plan::GroupDevices(cluster, options);
  int unnamed = 0;
  for (const std::vector<int>& group : grouping.sites) {
    std::string name;
    for (const int d : group) {
      if (name.empty()) name = cluster.devices[d].site;
    }
    if (name.empty()) name = absl::StrCat("site", ++unnamed);
    for (const int d : group) {
      if (cluster.devices[d].site.empty()) cluster.devices[d].site = name;
    }
  }
}

// Measured links for every pair of workers, and the best of them between sites. Returns how many
// pairs of workers have none.
int AddLinks(const PlanRequest& request, double stage_link_bytes, plan::Cluster& cluster) {
  cluster.node_latency_s = 50e-6;  // a queue between two threads, and their waking up
  cluster.site_link.latency_s = 200e-6;
  cluster.site_link.bytes_per_s = 1.25e9;
  const auto links = BuildLinks(request);
  int unknown = 0;
  for (const PlanMember& a : request.members) {
    for (const PlanMember& b : request.members) {
      const NodeId& from = a.member.worker;
      const NodeId& to = b.member.worker;
      if (from == to) continue;
      const auto link = links.find({from, to});
      if (link != links.end()) {
        cluster.node_to_node[{from, to}] = link->second;
      } else {
        unknown += from < to ? 1 : 0;  // what is measured in one direction holds for both
      }
    }
  }
  const bool declared = std::all_of(cluster.devices.begin(), cluster.devices.end(),
                                    [](const plan::Device& d) { return !d.site.empty(); });
  if (!declared) FindSites(stage_link_bytes, cluster);
  std::map<NodeId, std::string> site_of;
  for (const plan::Device& device : cluster.devices) site_of[device.node] = device.site;
  for (const auto& [nodes, link] : cluster.node_to_node) {
    const std::pair sites(site_of[nodes.first], site_of[nodes.second]);
    const auto [known, added] = cluster.site_to_site.try_emplace(sites, link);
    if (!added && link.bytes_per_s > known->second.bytes_per_s) known->second = link;
  }
  return unknown;
}

// --------------------------------------------------------------------------------------- job ----

std::string Assumptions(const std::vector<DeviceFacts>& devices, int unknown_links) {
  int unmeasured = 0;
  for (const DeviceFacts& device : devices) unmeasured += device.profile == nullptr ? 1 : 0;
  std::string text;
  if (unmeasured > 0) {
    absl::StrAppend(&text, unmeasured, " of ", devices.size(), " devices not measured");
  }
  if (unknown_links > 0) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", unknown_links,
                    " pairs of workers not measured (assumed: 10 Gbit/s within a site, 1 Gbit/s "
                    "and 10 ms between sites)");
  }
  return text;
}

absl::Status Check(const PlanRequest& request) {
  if (request.members.empty()) return absl::InvalidArgumentError("the island has no members");
  if (request.facts.layers.empty()) {
    return absl::InvalidArgumentError("nothing is known of the job's layers");
  }
  return absl::OkStatus();
}

}  // namespace

LayerKind GetLayerKind(size_t layer, size_t layers) {
  if (layer == 0) return LayerKind::kEmbedding;
  return layer + 1 == layers ? LayerKind::kHead : LayerKind::kBlock;
}

PlanRequest OnlyMembers(const PlanRequest& all, const std::vector<size_t>& members) {
  PlanRequest request = all;
  request.members.clear();
  std::set<NodeId> names;
  for (const size_t m : members) {
    request.members.push_back(all.members[m]);
    names.insert(all.members[m].member.worker);
  }
  const auto outside = [&](const auto& pair) {
    return !names.contains(pair.from) || !names.contains(pair.to);
  };
  std::erase_if(request.links, outside);
  std::erase_if(request.unreachable, outside);
  return request;
}

int SearchThreads() { return CoresUpTo(plan::Options::kThreadsMax); }

ElementBytes GetElementBytes(const PlanRequest& request) {
  const std::vector<std::string>& excluded = request.spec.layout.exclude;
  const std::set<std::string> names(excluded.begin(), excluded.end());
  for (const PlanMember& member : request.members) {
    const NodeId& worker = member.member.worker;
    for (size_t i = 0; i < member.devices.size(); ++i) {
      if (names.contains(worker) || names.contains(absl::StrCat(worker, "/", i))) continue;
      if (GetComputeType(member.devices[i]) == "fp32") return {4, 4};
    }
  }
  return {2, 4};
}

absl::StatusOr<PlanningInput> MakePlanningInput(const PlanRequest& request) {
  ATOLL_RETURN_IF_ERROR(Check(request));
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, GetModelConfig(request));
  ATOLL_ASSIGN_OR_RETURN(
      PlanningInput input,
      MakeJobInput(request.spec, config, GetElementBytes(request), request.islands));
  ATOLL_ASSIGN_OR_RETURN(std::vector<DeviceFacts> devices, SelectDevices(request, input.job.fixed));
  // The part of what owners keep that does not depend on the plan.
  const int64_t owned = LeastOwnerBytes(request);
  for (DeviceFacts& device : devices) {
    if (!IsHost(device.info)) continue;
    const auto hosts = static_cast<int64_t>(request.members[device.member].devices.size());
    device.info.memory_bytes -= owned / hosts;
  }
  MakeTypes(request, devices, input);
  ATOLL_RETURN_IF_ERROR(CheckPrices(request.spec, input.cluster));
  const int64_t out_bytes = std::max<int64_t>(1, input.costs.model().layers[0].out_bytes);
  const double stage_link = static_cast<double>(out_bytes) * input.job.micro_batches.back();
  const int unknown = AddLinks(request, stage_link, input.cluster);
  input.assumptions = Assumptions(devices, unknown);
  ATOLL_RETURN_IF_ERROR(plan::Constrain(input.job.fixed, input.cluster));
  // Islands at one site share its links.
  for (auto& [sites, bytes] : input.cluster.bytes_per_day) bytes /= request.islands_at_site;
  if (!input.cluster.leader.empty()) return input;
  return absl::FailedPreconditionError(
      absl::StrCat("worker ", request.members[0].member.worker,
                   " leads the island and takes no part: layout.exclude, layout.sites or "
                   "layout.memory_reserve_bytes leave out all of its devices"));
}

std::vector<std::pair<NodeId, std::string>> ExcludeUnreachable(PlanRequest& request) {
  std::vector<std::pair<NodeId, std::string>> left_out;
  for (;;) {
    // By worker: which ones it lacks; a pair counts for both. The leader's never goes.
    std::map<NodeId, std::map<NodeId, const UnreachablePair*>> lacks;
    std::map<NodeId, size_t> index;
    for (const PlanMember& member : request.members)
      index.emplace(member.member.worker, index.size());
    for (const UnreachablePair& pair : request.unreachable) {
      if (index.count(pair.from) == 0 || index.count(pair.to) == 0 || pair.from == pair.to)
        continue;
      lacks[pair.from].try_emplace(pair.to, &pair);
      lacks[pair.to].try_emplace(pair.from, &pair);
    }
    if (lacks.empty()) return left_out;
    const NodeId leader = request.members[0].member.worker;
    const auto rank = [&](const NodeId& worker) {
      return std::tuple(lacks.at(worker).count(leader), lacks.at(worker).size(), index.at(worker));
    };
    NodeId worst;
    for (const auto& [worker, others] : lacks) {
      if (worker == leader) continue;
      if (worst.empty() || rank(worker) > rank(worst)) worst = worker;
    }
    const auto& others = lacks.at(worst);
    const UnreachablePair& pair =
        others.count(leader) > 0 ? *others.at(leader) : *others.begin()->second;
    left_out.emplace_back(worst, absl::StrCat(pair.from, " > ", pair.to, ": ", pair.reason));
    std::erase_if(request.members,
                  [&](const PlanMember& member) { return member.member.worker == worst; });
  }
}

}  // namespace atl

#include "coordinator/measurements/live_profile.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace atl {
namespace {

PlanRequest MakePlanRequest(const std::vector<MemberView>& members, const JobView* job,
                            const ProfileRegistry& registry) {
  PlanRequest request;
  if (job != nullptr) request.spec = job->spec;
  if (job != nullptr && job->facts) request.facts = *job->facts;
  request.spec.inner.micro_batch_sequences = 0;  // all sizes are of interest
  request.spec.layout = {};
  if (request.facts.layers.empty()) {
    // No model: placeholder sizes, so that devices and links come out all the same.
    request.spec.data.sequence_length = 1;
    ModelSpec& model = request.facts.model;
    model.vocabulary = model.hidden = model.feed_forward = 2;
    model.layers = model.heads = model.key_value_heads = 1;
    for (const char* layer : {"embedding", "block", "head"}) {
      request.facts.layers.push_back({layer, 1});
    }
  }
  for (const MemberView& member : members) {
    if (IsServer(member) || !member.attached || member.devices.empty()) continue;
    request.members.push_back({{member.name, member.incarnation, member.peer_endpoint, ""},
                               member.site,
                               member.devices,
                               {}});
  }
  registry.FillIn(request);
  return request;
}

// The largest spread that any device of the type has for this kind of layer, size and sharing.
double FindLargestSpread(const PlanRequest& request, const std::set<std::string>& devices,
                         LayerKind kind, int tensor_parallel, int micro_batch) {
  double spread = 0;
  for (const PlanMember& member : request.members) {
    for (const DeviceProfile& profile : member.profiles) {
      if (devices.count(profile.device) == 0) continue;
      for (const LayerCost& cost : profile.layers) {
        if (cost.kind == kind && cost.tensor_parallel == tensor_parallel &&
            cost.micro_batch_sequences == micro_batch) {
          spread = std::max(spread, cost.spread_ratio);
        }
      }
    }
  }
  return spread;
}

int64_t Nanos(double seconds) { return static_cast<int64_t>(seconds * 1e9 + 0.5); }

void AddTimes(const PlanRequest& request, const PlanningInput& input, v1::ClusterProfile& profile) {
  std::map<std::string, std::set<std::string>> devices;
  for (const plan::Device& device : input.cluster.devices) {
    devices[input.cluster.types[device.type].name].insert(device.id);
  }
  for (const auto& [key, times] : input.costs.profile()) {
    const auto& [type, tensor_parallel, micro_batch] = key;
    for (size_t l = 0; l < times.size(); ++l) {
      v1::LayerTime* time = profile.add_times();
      time->set_type(type);
      time->set_tensor_parallel(tensor_parallel);
      time->set_micro_batch_sequences(micro_batch);
      time->set_layer(static_cast<int32_t>(l));
      time->set_forward_ns(Nanos(times[l].forward_s));
      time->set_input_gradient_ns(Nanos(times[l].backward_s));
      time->set_weight_gradient_ns(Nanos(times[l].weight_s));
      time->set_optimizer_ns(Nanos(times[l].optimizer_s));
      time->set_spread_ratio(FindLargestSpread(
          request, devices[type], GetLayerKind(l, times.size()), tensor_parallel, micro_batch));
    }
  }
}

// Adds for each size what the device that needs most needs.
void AddMemory(const PlanRequest& request, v1::ClusterProfile& profile) {
  const size_t layers = request.facts.layers.size();
  std::map<std::tuple<LayerKind, int, int>, LayerCost> most;
  for (const PlanMember& member : request.members) {
    for (const DeviceProfile& device : member.profiles) {
      for (const LayerCost& cost : device.layers) {
        const auto [entry, added] =
            most.try_emplace({cost.kind, cost.tensor_parallel, cost.micro_batch_sequences}, cost);
        if (!added && cost.stash_bytes > entry->second.stash_bytes) entry->second = cost;
      }
    }
  }
  for (const auto& [key, cost] : most) {
    for (size_t l = 0; l < layers; ++l) {
      if (GetLayerKind(l, layers) != cost.kind) continue;
      v1::LayerMemory* memory = profile.add_memory();
      memory->set_layer(static_cast<int32_t>(l));
      memory->set_tensor_parallel(cost.tensor_parallel);
      memory->set_micro_batch_sequences(cost.micro_batch_sequences);
      memory->set_parameter_bytes(cost.parameter_bytes);
      memory->set_stash_bytes(cost.stash_bytes);
      memory->set_output_bytes(cost.output_bytes);
      memory->set_workspace_bytes(cost.workspace_bytes);
    }
  }
}

void AddCluster(Instant now, const PlanningInput& input, const ProfileRegistry& registry,
                v1::ClusterSpec& cluster) {
  std::map<std::pair<NodeId, NodeId>, LinkReport> reports;
  for (const LinkReport& report : registry.Links()) {
    reports[{report.link.from, report.link.to}] = report;
  }
  for (const plan::Device& device : input.cluster.devices) {
    v1::Device* added = cluster.add_devices();
    const plan::DeviceType& type = input.cluster.types[device.type];
    added->set_id(device.id);
    added->set_type(type.name);
    added->set_node(device.node);
    added->set_site(device.site);
    added->set_memory_bytes(type.memory_bytes);
    added->set_price_per_hour(type.price_per_hour);
    added->set_egress_price_per_gb(device.egress_price_per_byte * 1e9);
  }
  std::map<NodeId, std::string> first_device;  // represents its worker
  for (const plan::Device& device : input.cluster.devices) {
    first_device.try_emplace(device.node, device.id);
  }
  for (const auto& [nodes, plan_link] : input.cluster.node_to_node) {
    v1::Link* link = cluster.add_links();
    link->set_from(first_device[nodes.first]);
    link->set_to(first_device[nodes.second]);
    v1::Edge* edge = link->add_edges();
    edge->set_latency_ns(Nanos(plan_link.latency_s));
    edge->set_bandwidth_bytes_per_s(plan_link.bytes_per_s);
    if (plan_link.sizes != nullptr) {
      for (const MessageTime& time :
           plan_link.sizes->Times(plan_link.latency_s, plan_link.bytes_per_s)) {
        v1::MessageTime* row = edge->add_times();
        row->set_bytes(time.bytes);
        row->set_time_ns(time.time_ns);
      }
    }
    const auto report = reports.find(nodes);
    if (report == reports.end()) continue;
    link->set_residual_ratio(report->second.link.residual_ratio);
    link->set_age_s(Seconds(now - report->second.at));
    link->set_live(report->second.live);
  }
}

void AddSites(const std::vector<MemberView>& members, const ProfileRegistry& registry,
              v1::ClusterProfile& profile) {
  const std::map<NodeId, MeasuredSite> found = registry.Sites();
  std::map<std::string, v1::SiteOfWorkers> sites;
  for (const MemberView& member : members) {
    if (IsServer(member) || !member.attached || member.site.empty()) continue;
    v1::SiteOfWorkers& site = sites[member.site];
    site.set_name(member.site);
    site.add_workers(member.name);
    const auto now = found.find(member.name);
    if (member.site_source == "declared" || site.source() == "declared") {
      site.set_source("declared");
    } else if (now != found.end() && now->second.site == member.site) {
      site.set_source(now->second.source);
    } else if (site.source().empty()) {
      site.set_source(member.site_source);
    }
  }
  for (const auto& [name, site] : sites) *profile.add_sites() = site;
}

}  // namespace

absl::StatusOr<v1::ClusterProfile> LiveProfile(Instant now, const std::vector<MemberView>& members,
                                               const JobView* job,
                                               const ProfileRegistry& registry) {
  const PlanRequest request = MakePlanRequest(members, job, registry);
  if (request.members.empty()) {
    return absl::FailedPreconditionError("no worker is attached: there is nothing to measure");
  }
  ATOLL_ASSIGN_OR_RETURN(const PlanningInput input, MakePlanningInput(request));
  v1::ClusterProfile profile;
  AddCluster(now, input, registry, *profile.mutable_cluster());
  profile.set_assumptions(input.assumptions);
  AddSites(members, registry, profile);
  for (const std::string& text : registry.ListTroubles(now)) profile.add_troubles(text);
  for (const std::string& text : registry.DescribeTurns()) profile.add_measuring(text);
  for (const MemberView& member : members) {
    if (!member.attached || member.measuring.empty()) continue;
    profile.add_measuring(absl::StrCat(member.name, " ", member.measuring));
  }
  if (job == nullptr || !job->facts) return profile;
  profile.set_job(job->summary.job);
  profile.set_model_digest(absl::StrCat(
      absl::Hex(ComputeModelDigest(request.facts.model, request.spec), absl::kZeroPad16)));
  AddTimes(request, input, profile);
  AddMemory(request, profile);
  return profile;
}

PlanRequest RequestFor(const JobView& job, const IslandPlan& plan,
                       const std::vector<MemberView>& members, const ProfileRegistry& registry) {
  PlanRequest request;
  request.spec = job.spec;
  if (job.facts) request.facts = *job.facts;
  for (const IslandMember& member : plan.members) {
    PlanMember& added = request.members.emplace_back();
    added.member = member;
    for (const MemberView& seen : members) {
      if (IsServer(seen) || seen.name != member.worker) continue;
      added.site = seen.site;
      added.devices = seen.devices;
    }
  }
  std::erase_if(request.members, [](const PlanMember& m) { return m.devices.empty(); });
  registry.FillIn(request);
  return request;
}

}  // namespace atl

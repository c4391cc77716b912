#include "coordinator/plan_io/plan_message.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/proto_json.h"
#include "common/protocol/tensor_groups.h"
#include "common/status.h"
#include "coordinator/plan_io/island_plan_conversion.h"

namespace atl {
namespace {

// The device at the other end of a send or receive; the first one of several; empty: none.
std::string GetPeerDevice(const PlanReplica& replica, const PlanOp& op, const std::string& device) {
  const std::vector<std::string>& here = replica.stages[op.stage].devices;
  const bool towards_next = (op.kind == PlanOpKind::kSend) != op.gradient;
  const std::vector<std::string>& there =
      replica.stages[op.stage + (towards_next ? 1 : -1)].devices;
  const auto rank = static_cast<size_t>(std::ranges::find(here, device) - here.begin());
  if (op.kind == PlanOpKind::kReceive) return there[SendingRank(rank, there.size())];
  return rank < there.size() ? there[rank] : "";
}

// Adds what workers derive: the devices at the other ends, and replicas' shares of the samples.
void AddDerived(const IslandPlan& plan, v1::PlannedIsland& island) {
  int total = 0;
  std::map<std::string, const PlanReplica*> replica_of;
  for (const PlanReplica& replica : plan.replicas) {
    total += replica.micro_batches;
    for (const PlanStage& stage : replica.stages) {
      for (const std::string& device : stage.devices) replica_of[device] = &replica;
    }
  }
  for (v1::Replica& replica : *island.mutable_replicas()) {
    replica.set_sample_share(static_cast<double>(replica.micro_batches()) / total);
  }
  for (size_t p = 0; p < plan.programs.size(); ++p) {
    const PlanProgram& program = plan.programs[p];
    v1::DeviceProgram* message = island.mutable_programs(static_cast<int>(p));
    for (size_t o = 0; o < program.ops.size(); ++o) {
      const PlanOp& op = program.ops[o];
      if (op.kind != PlanOpKind::kSend && op.kind != PlanOpKind::kReceive) continue;
      message->mutable_operations(static_cast<int>(o))
          ->set_peer(GetPeerDevice(*replica_of.at(program.device), op, program.device));
    }
  }
}

void AddTimes(const plan::Cluster& cluster, const plan::Plan& plan, v1::PlannedIsland& island) {
  struct Use {
    const sim::DeviceUse* device = nullptr;
    int64_t state_bytes = 0;
  };
  std::map<std::string, Use> uses;
  for (const plan::ReplicaOutcome& kind : plan.outcome.kinds) {
    for (const int r : kind.replicas) {
      const plan::Replica& replica = plan.layout.replicas[r];
      const std::vector<int> stage_entities = plan::MapStagesToEntities(replica);
      for (size_t s = 0; s < stage_entities.size(); ++s) {
        for (const int device : replica.stages[s].devices) {
          const int entity = stage_entities[s];
          uses[cluster.devices[device].id] = {&kind.found.result.devices[entity],
                                              kind.state_bytes[entity]};
        }
      }
    }
  }
  for (v1::DeviceProgram& program : *island.mutable_programs()) {
    const auto use = uses.find(program.device());
    if (use == uses.end()) continue;
    program.set_first_ns(use->second.device->first_ns);
    program.set_last_ns(use->second.device->last_ns);
    program.set_busy_ns(use->second.device->busy_ns);
    program.set_state_bytes(use->second.state_bytes);
    program.set_activation_bytes(use->second.device->peak_bytes);
  }
}

constexpr size_t kAlternatives = 12;

v1::StepParts ToMessage(const plan::StepParts& parts) {
  v1::StepParts message;
  message.set_work_ns(std::llround(1e9 * parts.work_s));
  message.set_wait_ns(std::llround(1e9 * parts.wait_s));
  message.set_sync_ns(std::llround(1e9 * parts.sync_s));
  message.set_commit_ns(std::llround(1e9 * parts.commit_s));
  return message;
}

void SetAlternatives(const plan::Plan& plan, v1::Plan& message) {
  const plan::StepParts own = plan::GetStepParts(plan.outcome);
  *message.mutable_parts() = ToMessage(own);
  for (const plan::Alternative& other : plan::SelectUnlike(plan, kAlternatives)) {
    v1::PlanAlternative* added = message.add_alternatives();
    added->set_what(other.what);
    added->set_step_ns(std::llround(1e9 * other.step_s));
    added->set_step_price(other.price);
    added->set_simulated(other.simulated());
    if (!other.simulated()) continue;
    *added->mutable_parts() = ToMessage(*other.parts);
    added->set_why(plan::WhyLonger(*other.parts, own));
  }
}

void SetTraffic(const plan::Cluster& cluster, const plan::IslandChoice& choice, v1::Plan& message) {
  for (const auto& [sites, bytes] : choice.day) {
    v1::SiteTraffic* added = message.add_traffic();
    added->set_from(sites.first);
    added->set_to(sites.second);
    added->set_bytes_per_day(bytes);
    const auto limit = cluster.bytes_per_day.find(sites);
    if (limit != cluster.bytes_per_day.end()) added->set_limit_bytes_per_day(limit->second);
  }
}

// Sets the times of the slowest island.
void SetTimes(const plan::Plan& plan, v1::Plan& message) {
  const sim::Result& slowest = plan::SlowestKind(plan.outcome).found.result;
  message.set_step_ns(std::llround(plan.outcome.step_s * 1e9));
  message.set_makespan_ns(slowest.makespan_ns);
  message.set_period_ns(slowest.period_ns);
  message.set_bound_ns(std::llround(plan.outcome.bound_s * 1e9));
  message.set_gap_ratio(plan.outcome.step_s / plan.outcome.bound_s - 1);
  SetAlternatives(plan, message);
}

int CountSamples(const plan::Layout& layout) {
  int samples = 0;
  for (const plan::Replica& replica : layout.replicas) {
    samples += replica.micro_batches * layout.micro_batch;
  }
  return samples;
}

// Adds the plan as the next island; `used` receives its devices.
void AddIsland(const plan::Cluster& cluster, const plan::Costs& costs, const plan::Plan& plan,
               v1::Plan& message, std::set<std::string>& used) {
  IslandPlan runtime = ToIslandPlan(cluster, plan);
  ListRecomputed(costs, plan.layout, &runtime);
  runtime.reason.clear();  // the message says it
  v1::PlannedIsland& island = *message.add_islands();
  EncodePlan(runtime, &island);
  island.set_island(message.islands_size() - 1);
  AddDerived(runtime, island);
  AddTimes(cluster, plan, island);
  for (const PlanProgram& program : runtime.programs) used.insert(program.device);
}

}  // namespace

v1::Plan ToMessage(const plan::Cluster& cluster, const plan::Costs& costs,
                   const std::vector<plan::IslandOfSite>& islands, int64_t tokens_per_sample) {
  v1::Plan message;
  std::set<std::string> used;
  const plan::Plan* slowest = nullptr;
  double tokens_per_s = 0;
  for (const auto& [site, part, plan] : islands) {
    AddIsland(part, costs, plan, message, used);
    message.set_step_price(message.step_price() + plan.price);
    tokens_per_s +=
        static_cast<double>(tokens_per_sample) * CountSamples(plan.layout) / plan.outcome.step_s;
    if (slowest == nullptr || plan.outcome.step_s > slowest->outcome.step_s) slowest = &plan;
  }
  for (const plan::Device& device : cluster.devices) {
    if (used.count(device.id) == 0) message.add_idle_devices(device.id);
  }
  SetTimes(*slowest, message);
  message.set_tokens_per_s(tokens_per_s);
  message.set_reason(slowest->reason);
  message.set_seed(slowest->seed);
  return message;
}

v1::Plan ToMessage(const plan::Cluster& cluster, const plan::Costs& costs,
                   const plan::IslandChoice& choice, int64_t tokens_per_sample) {
  v1::Plan message = ToMessage(cluster, costs, choice.islands, tokens_per_sample);
  SetTraffic(cluster, choice, message);
  if (!choice.use_islands) {
    message.set_reason(absl::StrCat(message.reason(), "; ", choice.reason));
    return message;
  }
  for (v1::PlannedIsland& island : *message.mutable_islands()) {
    island.set_steps_per_round(choice.steps_per_round);
  }
  message.set_tokens_per_s(static_cast<double>(tokens_per_sample) * choice.samples_per_s);
  message.set_reason(choice.reason);
  return message;
}

std::string ToJson(const v1::Plan& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  ATOLL_CHECK(status.ok(), status.ToString());
  return json;
}

namespace {

absl::Status CheckStage(const v1::Stage& stage, int next_layer, int layers) {
  if (stage.first_layer() != next_layer || stage.layers() < 1 ||
      stage.layers() > layers - next_layer) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers ", stage.first_layer(), " and ", stage.layers() - 1,
                     " more: a replica's stages hold the model's ", layers,
                     " layers one after the other, and at least one each"));
  }
  if (stage.devices().empty()) return absl::InvalidArgumentError("a stage has no devices");
  return absl::OkStatus();
}

// A stage recomputes the first ones of its layers that can (costs.h): others cannot be listed.
absl::Status ReadRecomputed(const v1::Stage& stage, const plan::Model& model,
                            plan::Saving& saving) {
  const auto& listed = stage.recomputed_layers();
  if (listed.empty()) return absl::OkStatus();
  std::vector<int> able;
  for (int l = stage.first_layer(); l < stage.first_layer() + stage.layers(); ++l) {
    if (model.layers[l].again_bytes > 0) able.push_back(l);
  }
  const auto count = std::ssize(listed);
  if (count <= std::ssize(able) && std::equal(listed.begin(), listed.end(), able.begin())) {
    saving = {true, static_cast<int>(count)};
    return absl::OkStatus();
  }
  const std::string what =
      absl::StrCat("recomputed_layers = [", absl::StrJoin(listed, ", "), "]: ");
  if (able.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "none of layers ", stage.first_layer(), " to ",
                     stage.first_layer() + stage.layers() - 1,
                     " can be recomputed, as far as the model is known; leave it out"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, "a stage recomputes its first blocks, in order: list the first of [",
                   absl::StrJoin(able, ", "), "], or leave it out"));
}

absl::StatusOr<plan::Replica> ReadReplica(const v1::Replica& replica, const plan::Model& model,
                                          const std::map<std::string, int>& index,
                                          std::map<std::string, int>& used, int number) {
  if (replica.micro_batches() < 1 || replica.micro_batches() > 1 << 20 ||
      replica.stages().empty()) {
    return absl::InvalidArgumentError("a replica has stages and 1 to 1048576 micro-batches");
  }
  const int layers = static_cast<int>(model.layers.size());
  plan::Replica made;
  made.micro_batches = replica.micro_batches();
  int next_layer = 0;
  for (const v1::Stage& stage : replica.stages()) {
    ATOLL_RETURN_IF_ERROR(CheckStage(stage, next_layer, layers));
    plan::Stage& added = made.stages.emplace_back();
    added.first_layer = next_layer;
    added.last_layer = next_layer += stage.layers();
    ATOLL_RETURN_IF_ERROR(ReadRecomputed(stage, model, added.saving));
    for (const std::string& device : stage.devices()) {
      const auto found = index.find(device);
      if (found == index.end()) {
        return absl::NotFoundError(
            absl::StrCat("device \"", absl::CHexEscape(device), "\" is not in the cluster"));
      }
      if (used.try_emplace(device, number).first->second != number) {
        return absl::InvalidArgumentError(
            absl::StrCat("device \"", absl::CHexEscape(device), "\" is in two replicas"));
      }
      added.devices.push_back(found->second);
    }
  }
  if (next_layer != layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("the stages end with layer ", next_layer - 1, " of ", layers));
  }
  return made;
}

absl::StatusOr<v1::Plan> ParsePlan(absl::string_view text, absl::string_view name) {
  v1::Plan message;
  if (!absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "{")) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(name),
                     ": is no plan as `atoll plan --json` prints it: it is not a JSON object"));
  }
  const absl::Status parsed = ReadJson(text, &message);
  const bool whole = !message.islands().empty() &&
                     std::none_of(message.islands().begin(), message.islands().end(),
                                  [](const v1::PlannedIsland& i) { return i.replicas().empty(); });
  if (parsed.ok() && whole) return message;
  return absl::InvalidArgumentError(absl::StrCat(std::string(name),
                                                 ": is no plan as `atoll plan --json` prints it",
                                                 parsed.ok() ? "" : ": ", parsed.message()));
}

const v1::PlannedIsland& GetPlannedIsland(const v1::Plan& message, const plan::Cluster& cluster,
                                          const std::string& node) {
  std::set<std::string> own;
  for (const plan::Device& device : cluster.devices) {
    if (node.empty() || device.node == node) own.insert(device.id);
  }
  for (const v1::PlannedIsland& island : message.islands()) {
    for (const v1::Replica& replica : island.replicas()) {
      for (const v1::Stage& stage : replica.stages()) {
        for (const std::string& device : stage.devices()) {
          if (own.count(device) > 0) return island;
        }
      }
    }
  }
  return message.islands(0);
}

// Stages of a replica that have a device in common have all of them in common, by rank.
absl::Status CheckSharing(const std::string& name, const plan::Cluster& cluster,
                          const plan::Replica& replica) {
  std::map<int, const plan::Stage*> first;  // that a device is in
  for (const plan::Stage& stage : replica.stages) {
    for (const int d : stage.devices) {
      const plan::Stage& other = *first.try_emplace(d, &stage).first->second;
      if (other.devices == stage.devices) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": the stages at layers ", other.first_layer, " and ",
                       stage.first_layer, " both name device ", cluster.devices[d].id,
                       ": such stages name the same devices, in one order"));
    }
  }
  return absl::OkStatus();
}

// The devices that share a stage's layers are of one node, each once.
absl::Status CheckGroups(const std::string& name, const plan::Cluster& cluster,
                         const plan::Layout& layout) {
  for (const plan::Replica& replica : layout.replicas) {
    ATOLL_RETURN_IF_ERROR(CheckSharing(name, cluster, replica));
    for (const plan::Stage& stage : replica.stages) {
      const plan::Device& first = cluster.devices[stage.devices[0]];
      std::set<int> seen;
      for (const int d : stage.devices) {
        const plan::Device& device = cluster.devices[d];
        if (!seen.insert(d).second) {
          return absl::InvalidArgumentError(
              absl::StrCat(name, ": a stage names device ", device.id, " twice"));
        }
        if (device.node == first.node) continue;
        return absl::InvalidArgumentError(
            absl::StrCat(name, ": ", first.id, " and ", device.id,
                         " share layers, but are not of one worker or node"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> IslandsJson(absl::string_view text,
                                                     absl::string_view name) {
  ATOLL_ASSIGN_OR_RETURN(const v1::Plan whole, ParsePlan(text, name));
  std::vector<std::string> islands;
  for (const v1::PlannedIsland& island : whole.islands()) {
    v1::Plan alone;
    *alone.add_islands() = island;
    islands.push_back(ToJson(alone));
  }
  return islands;
}

absl::StatusOr<std::string> PinnedJson(absl::string_view text, absl::string_view name) {
  ATOLL_ASSIGN_OR_RETURN(const v1::Plan whole, ParsePlan(text, name));
  v1::Plan pinned;
  for (const v1::PlannedIsland& island : whole.islands()) {
    v1::PlannedIsland& kept = *pinned.add_islands();
    *kept.mutable_replicas() = island.replicas();
    for (v1::Replica& replica : *kept.mutable_replicas()) replica.clear_sample_share();
    *kept.mutable_tensor_split_ratios() = island.tensor_split_ratios();
    ATOLL_RETURN_IF_ERROR(Annotate(KeepOrders(island, kept), std::string(name)));
  }
  std::string json;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_enums_as_ints = true;  // an operation's kind
  const auto printed = google::protobuf::util::MessageToJsonString(pinned, &json, options);
  ATOLL_CHECK(printed.ok(), printed.ToString());
  return json;
}

absl::StatusOr<PinnedLayout> ParsePinnedJson(absl::string_view text, absl::string_view name,
                                             const plan::Cluster& cluster, const plan::Costs& costs,
                                             const std::string& node, bool with_orders) {
  ATOLL_ASSIGN_OR_RETURN(const v1::Plan message, ParsePlan(text, name));
  const v1::PlannedIsland& island = GetPlannedIsland(message, cluster, node);
  const std::map<std::string, int> index = cluster.IndexDevices();
  std::map<std::string, int> used;
  PinnedLayout pinned;
  plan::Layout& layout = pinned.layout;
  layout.micro_batch = island.replicas(0).micro_batch_sequences();
  int size = 0;
  for (const v1::Replica& replica : island.replicas()) {
    for (const v1::Stage& stage : replica.stages()) size = std::max(size, stage.devices_size());
  }
  layout.tensor_parallel = size;
  layout.tensor_split_ratios.assign(island.tensor_split_ratios().begin(),
                                    island.tensor_split_ratios().end());
  const bool ratios_fit =
      layout.tensor_split_ratios.empty() || std::ssize(layout.tensor_split_ratios) == size;
  if (size == 0 || !ratios_fit || layout.micro_batch < 1 || layout.micro_batch > 1 << 20 ||
      std::ranges::any_of(layout.tensor_split_ratios, [](int share) { return share < 1; })) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(name),
                     ": micro_batch_sequences is 1 to 1048576, stages have devices, and "
                     "tensor_split_ratios are 1 or "
                     "more for each device of a stage"));
  }
  for (int r = 0; r < island.replicas_size(); ++r) {
    const std::string where = absl::StrCat(std::string(name), ": replica ", r);
    if (island.replicas(r).micro_batch_sequences() != layout.micro_batch) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": micro_batch_sequences differs from replica 0's"));
    }
    auto replica = ReadReplica(island.replicas(r), costs.model(), index, used, r);
    if (!replica.ok()) return Annotate(replica.status(), where);
    if (const plan::Shape shape = GetReplicaShape(*replica); shape != plan::Shape::kPlain) {
      layout.shape = shape;
    }
    layout.replicas.push_back(*std::move(replica));
  }
  ATOLL_RETURN_IF_ERROR(CheckGroups(std::string(name), cluster, layout));
  if (!layout.tensor_split_ratios.empty() && !plan::IsOfOneDegree(layout)) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(name), ": tensor_split_ratios are of stages of ", size,
        " devices, and some have fewer: give all of them as many, or leave the ratios out"));
  }
  if (!plan::DegreesAgree(costs.model(), layout)) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(name),
        ": a layer is shared by as many devices in all replicas, and a head that has the "
        "embedding's table by as many as the embedding"));
  }
  if (!with_orders) return pinned;
  auto orders = ReadOrders(island, cluster, layout);
  if (!orders.ok()) return Annotate(orders.status(), std::string(name));
  pinned.orders = *std::move(orders);
  return pinned;
}

}  // namespace atl

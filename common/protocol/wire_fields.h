// Field by field, the structs that several messages and the coordinator's records share. Only
// wire.cc files include this; see wire_visitor.h.

#ifndef ATOLL_COMMON_PROTOCOL_WIRE_FIELDS_H_
#define ATOLL_COMMON_PROTOCOL_WIRE_FIELDS_H_

#include "common/protocol/control.h"
#include "common/protocol/wire_visitor.h"
#include "proto/control.pb.h"
#include "proto/job.fields.h"
#include "proto/plan.pb.h"

namespace atl {

template <class V>
void Fields(V& v, Plain<V, LayerStep>& s, v1::LayerStep& m) {
  ATOLL_WIRE_INT(layer, 0, kMaxShards);
  ATOLL_WIRE_VALUES(weights, 4096);
  ATOLL_WIRE_COPY(reference);
}

template <class V>
void Fields(V& v, Plain<V, RoundStep>& s, v1::RoundStep& m) {
  ATOLL_WIRE_COPY(learning_rate);
  ATOLL_WIRE_MESSAGES(layers, kMaxListLength);
  ATOLL_WIRE_OPTIONAL(adopts);
  ATOLL_WIRE_COPY(contributes);
}

template <class V>
void Fields(V& v, Plain<V, PositionRange>& s, v1::PositionRange& m) {
  ATOLL_WIRE_COUNT(begin);
  ATOLL_WIRE_COUNT(end);
  v.Check(m.begin() <= m.end(), "a range of positions ends before it begins");
}

template <class V>
void Fields(V& v, Plain<V, LayerSize>& s, v1::LayerSize& m) {
  ATOLL_WIRE_COPY(name);
  ATOLL_WIRE_INT(elements, 0, kMaxElements);
  ATOLL_WIRE_INT(statistics, 0, kMaxElements);
}

template <class V>
void Fields(V& v, Plain<V, ShardPlacement>& s, v1::ShardPlacement& m) {
  ATOLL_WIRE_INT(shard, 0, kMaxShards);
  ATOLL_WIRE_INT(layer, 0, kMaxShards);
  ATOLL_WIRE_INT(begin, 0, kMaxElements);
  ATOLL_WIRE_INT(elements, 0, kMaxElements);
  ATOLL_WIRE_COPY(server);
  ATOLL_WIRE_COPY(endpoint);
  ATOLL_WIRE_COPY(public_key);
}

template <class V>
void Fields(V& v, Plain<V, ValidationLoss>& s, v1::ValidationLoss& m) {
  ATOLL_WIRE_COPY(name);
  ATOLL_WIRE_COUNT(version);
  ATOLL_WIRE_COPY(loss);
  ATOLL_WIRE_COUNT(tokens);
  ATOLL_WIRE_COPY(accuracy);
}

template <class V>
void Fields(V& v, Plain<V, JobFacts>& s, v1::JobFacts& m) {
  ATOLL_WIRE_MESSAGE(model);
  ATOLL_WIRE_MESSAGES(layers, kMaxListLength);
  ATOLL_WIRE_COUNT(train_sequences);
  ATOLL_WIRE_COUNT(validation_sequences);
  ATOLL_WIRE_COPY(data_digest);
}

template <class V>
void Fields(V& v, Plain<V, LayerCost>& s, v1::LayerCost& m) {
  ATOLL_WIRE_ENUM(kind, LayerKind);
  ATOLL_WIRE_INT(tensor_parallel, 1, 1 << 16);
  ATOLL_WIRE_INT(micro_batch_sequences, 1, 1 << 24);
  ATOLL_WIRE_INT(forward_ns, 0, kMaxIntervalNs);
  ATOLL_WIRE_INT(input_gradient_ns, 0, kMaxIntervalNs);
  ATOLL_WIRE_INT(weight_gradient_ns, 0, kMaxIntervalNs);
  ATOLL_WIRE_INT(optimizer_ns, 0, kMaxIntervalNs);
  ATOLL_WIRE_COPY(spread_ratio);
  ATOLL_WIRE_INT(parameter_bytes, 0, kMaxElements);
  ATOLL_WIRE_INT(stash_bytes, 0, kMaxElements);
  ATOLL_WIRE_INT(backward_stash_bytes, 0, kMaxElements);
  ATOLL_WIRE_INT(output_bytes, 0, kMaxElements);
  ATOLL_WIRE_INT(workspace_bytes, 0, kMaxElements);
}

template <class V>
void Fields(V& v, Plain<V, DeviceProfile>& s, v1::DeviceProfile& m) {
  ATOLL_WIRE_COPY(device);
  ATOLL_WIRE_COPY(kind);
  ATOLL_WIRE_COPY(software_version);
  ATOLL_WIRE_COPY(model_digest);
  ATOLL_WIRE_MESSAGES(layers, 4096);
}

template <class V>
void Fields(V& v, Plain<V, MessageTime>& s, v1::MessageTime& m) {
  ATOLL_WIRE_INT(bytes, 0, kMaxElements);
  ATOLL_WIRE_INT(time_ns, 0, kMaxIntervalNs);
}

template <class V>
void Fields(V& v, Plain<V, LinkProfile>& s, v1::LinkProfile& m) {
  ATOLL_WIRE_COPY(from);
  ATOLL_WIRE_COPY(to);
  ATOLL_WIRE_INT(latency_ns, 0, kMaxIntervalNs);
  ATOLL_WIRE_COPY(bandwidth_bytes_per_s);
  ATOLL_WIRE_COPY(residual_ratio);
  ATOLL_WIRE_COUNT(samples);
  ATOLL_WIRE_MESSAGES(times, kMessageTimesMax);
}

template <class V>
void Fields(V& v, Plain<V, ContributionId>& s, v1::ContributionId& m) {
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_COUNT(generation);
  ATOLL_WIRE_COUNT(incarnation);
  ATOLL_WIRE_VERSION(base_version);
}

template <class V>
void Fields(V& v, Plain<V, UsualPush>& s, v1::UsualPush& m) {
  ATOLL_WIRE_COUNT(warm_up_pushes);
  ATOLL_WIRE_COPY(mean);
  ATOLL_WIRE_COPY(deviation);
  ATOLL_WIRE_COUNT(rejections_in_row);
}

template <class V>
void Fields(V& v, Plain<V, PenaltyState>& s, v1::PenaltyState& m) {
  ATOLL_WIRE_MESSAGES(usual, kFragmentsMax);
  ATOLL_WIRE_VALUES(scores, 4096);
}

template <class V>
void Fields(V& v, Plain<V, DeviceInfo>& s, v1::DeviceInfo& m) {
  ATOLL_WIRE_COPY(kind);
  ATOLL_WIRE_COUNT(memory_bytes);
  ATOLL_WIRE_COUNT(threads);
  ATOLL_WIRE_COPY(uuid);
  ATOLL_WIRE_COPY(compute);
  ATOLL_WIRE_COPY(nccl);
  ATOLL_WIRE_COUNT(host_memory_bytes);
  ATOLL_WIRE_COPY(price_per_hour);
  ATOLL_WIRE_COPY(egress_price_per_gb);
}

template <class V>
void Fields(V& v, Plain<V, BoundaryState>& s, v1::BoundaryState& m) {
  ATOLL_WIRE_COPY(from);
  ATOLL_WIRE_COPY(to);
  ATOLL_WIRE_INT(pieces, 0, 1 << 20);
  ATOLL_WIRE_COPY(message_seconds);
  ATOLL_WIRE_COPY(bandwidth_bytes_per_s);
  ATOLL_WIRE_COPY(saturated);
  ATOLL_WIRE_COPY(reason);
  ATOLL_WIRE_COUNT(window);
  ATOLL_WIRE_COUNT(quickest_bytes);
  ATOLL_WIRE_COPY(quickest_seconds);
  ATOLL_WIRE_COPY(way);
}

template <class V>
void Fields(V& v, Plain<V, DeviceWork>& s, v1::DeviceWork& m) {
  ATOLL_WIRE_COPY(device);
  ATOLL_WIRE_COUNT(window);
  ATOLL_WIRE_COPY(model_digest);
  ATOLL_WIRE_INT(micro_batch_sequences, 0, 1 << 20);
  ATOLL_WIRE_INT(embeddings, 0, 1 << 24);
  ATOLL_WIRE_INT(blocks, 0, 1 << 24);
  ATOLL_WIRE_INT(heads, 0, 1 << 24);
  ATOLL_WIRE_INT(recomputed_blocks, 0, 1 << 24);
  ATOLL_WIRE_COPY(forward_seconds);
  ATOLL_WIRE_COPY(backward_seconds);
  ATOLL_WIRE_INT(tensor_parallel, 1, 1024);
}

template <class V>
void Fields(V& v, Plain<V, GroupSums>& s, v1::GroupSums& m) {
  ATOLL_WIRE_COPY(device);
  ATOLL_WIRE_VALUES(devices, 4096);
  ATOLL_WIRE_COUNT(plan_number);
  ATOLL_WIRE_COUNT(window);
  ATOLL_WIRE_COUNT(bytes);
  ATOLL_WIRE_COPY(quickest_seconds);
}

template <class V>
void Fields(V& v, Plain<V, ServerRate>& s, v1::ServerRate& m) {
  ATOLL_WIRE_COPY(endpoint);
  ATOLL_WIRE_COPY(bytes_per_s);
}

template <class V>
void Fields(V& v, Plain<V, RoundTrip>& s, v1::RoundTrip& m) {
  ATOLL_WIRE_COPY(to);
  ATOLL_WIRE_COPY(seconds);
}

template <class V>
void Fields(V& v, Plain<V, MemberProgress>& s, v1::MemberProgress& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_COUNT(generation);
  ATOLL_WIRE_COUNT(plan_number);
  ATOLL_WIRE_COUNT(seen_sequence);
  ATOLL_WIRE_COPY(doing);
  ATOLL_WIRE_COPY(holds);
}

template <class V>
void Fields(V& v, Plain<V, LinkFailure>& s, v1::LinkFailure& m) {
  ATOLL_WIRE_COPY(to);
  ATOLL_WIRE_COPY(reason);
}

template <class V>
void Fields(V& v, Plain<V, DeviceMemoryState>& s, v1::DeviceMemoryState& m) {
  ATOLL_WIRE_COPY(device);
  ATOLL_WIRE_COUNT(predicted_bytes);
  ATOLL_WIRE_COUNT(peak_bytes);
  ATOLL_WIRE_COUNT(limit_bytes);
}

template <class V>
void Fields(V& v, Plain<V, LocalCheckpoint>& s, v1::LocalCheckpoint& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_VERSION(base_version);
  ATOLL_WIRE_COUNT(inner_step);
  ATOLL_WIRE_MESSAGES(consumed, kMaxListLength);
  ATOLL_WIRE_COUNT(save);
  ATOLL_WIRE_COPY(loss_times_tokens);
  ATOLL_WIRE_MESSAGES(leased, kMaxListLength);
}

inline constexpr int kMaxSavedUnits = 1 << 16;

template <class V>
void Fields(V& v, Plain<V, SavedUnit>& s, v1::SavedUnit& m) {
  ATOLL_WIRE_INT(layer, 0, std::numeric_limits<int32_t>::max());
  ATOLL_WIRE_INT(rank, 0, std::numeric_limits<int32_t>::max());
  ATOLL_WIRE_VALUES(tensor_shares, 1024);
  ATOLL_WIRE_INT(begin, 0, kMaxElements);
  ATOLL_WIRE_INT(end, 0, kMaxElements);
}

template <class V>
void Fields(V& v, Plain<V, SavedHolder>& s, v1::SavedHolder& m) {
  ATOLL_WIRE_COPY(worker);
  ATOLL_WIRE_COUNT(incarnation);
  ATOLL_WIRE_ENUM(tier, Tier);
  ATOLL_WIRE_VALUES(units, kMaxSavedUnits / 64);
}

template <class V>
void Fields(V& v, Plain<V, SavedState>& s, v1::SavedState& m) {
  ATOLL_WIRE_MESSAGE(about);
  ATOLL_WIRE_MESSAGES(units, kMaxSavedUnits);
  ATOLL_WIRE_MESSAGES(holders, 4096);
}

template <class V>
void Fields(V& v, Plain<V, IslandProgress>& s, v1::IslandProgress& m) {
  ATOLL_WIRE_COPY(job);
  ATOLL_WIRE_INT(island, 0, kMaxIsland);
  ATOLL_WIRE_COUNT(generation);
  ATOLL_WIRE_COUNT(seen_sequence);
  ATOLL_WIRE_VERSION(base_version);
  ATOLL_WIRE_COPY(ready);
  ATOLL_WIRE_COPY(doing);
  ATOLL_WIRE_COUNT(inner_step);
  ATOLL_WIRE_COUNT(tokens);
  ATOLL_WIRE_COPY(train_loss);
  ATOLL_WIRE_COPY(learning_rate);
  ATOLL_WIRE_COPY(tokens_per_s);
  ATOLL_WIRE_COPY(step_seconds_quiet);
  ATOLL_WIRE_COPY(step_seconds_overlap);
  ATOLL_WIRE_COUNT(pushed_bytes);
  ATOLL_WIRE_COUNT(pulled_bytes);
  ATOLL_WIRE_COUNT(plan_number);
  ATOLL_WIRE_COPY(plan_wanted);
  ATOLL_WIRE_MESSAGES(boundaries, 4096);
  ATOLL_WIRE_MESSAGES(memory, 4096);
  ATOLL_WIRE_COUNT(setting_up);
  ATOLL_WIRE_COUNT(unpushed_steps);
  ATOLL_WIRE_COUNT(steps_interrupted);
  ATOLL_WIRE_COUNT(steps_redone);
  ATOLL_WIRE_MESSAGES(saved, kSavedStatesMax);
}

// ------------------------------------------------------------------------------ island plans ----

inline constexpr int kMaxPlanMembers = 4096;
inline constexpr int kMaxPlanDevices = 65536;
inline constexpr int kMaxPlanStages = 1024;             // of all replicas
inline constexpr int64_t kMaxPlanOperations = 1 << 22;  // of all devices
inline constexpr int kMaxPlanLayers = 1 << 17;
inline constexpr int kMaxMicroBatches = 1 << 20;

// Letters of a worker's name, and '/' before a device's index. Whether there is such a device,
// island_plan.h's Validate says.
inline bool IsDeviceName(absl::string_view name) {
  if (name.empty() || name.size() > 80) return false;
  for (const char c : name) {
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '/')) return false;
  }
  return true;
}

template <class V>
void Fields(V& v, Plain<V, IslandMember>& s, v1::IslandMember& m) {
  ATOLL_WIRE_COPY(worker);
  v.Check(V::kEncodes || IsDeviceName(m.worker()), "a member of a plan has no name");
  ATOLL_WIRE_COUNT(incarnation);
  ATOLL_WIRE_COPY(endpoint);
  ATOLL_WIRE_COPY(public_key);
  ATOLL_WIRE_COPY(site);
  ATOLL_WIRE_COPY(nccl);
  ATOLL_WIRE_VALUES(more_endpoints, kPeerEndpointsMax - 1);
}

template <class V>
void Fields(V& v, Plain<V, PlanOp>& s, v1::Operation& m) {
  ATOLL_WIRE_ENUM(kind, OperationKind);
  ATOLL_WIRE_INT(stage, 0, kMaxPlanStages);
  ATOLL_WIRE_INT(micro_batch, 0, kMaxMicroBatches);
  ATOLL_WIRE_INT(layer, 0, kMaxPlanLayers);
  ATOLL_WIRE_COPY(gradient);
}

template <class V>
void Fields(V& v, Plain<V, PlanProgram>& s, v1::DeviceProgram& m) {
  ATOLL_WIRE_COPY(device);
  v.Check(V::kEncodes || IsDeviceName(m.device()), "a program of a plan names no device");
  v.Messages("operations", s.ops, m.mutable_operations(), kMaxPlanOperations);
  ATOLL_WIRE_COUNT(memory_peak_bytes);
}

template <class V>
void Fields(V& v, Plain<V, PlanStage>& s, v1::Stage& m) {
  ATOLL_WIRE_INT(first_layer, 0, kMaxPlanLayers);
  ATOLL_WIRE_INT(layers, 0, kMaxPlanLayers);
  v.Names("devices", s.devices, m.mutable_devices(), kMaxPlanDevices, IsDeviceName);
  ATOLL_WIRE_VALUES(recomputed_layers, kMaxPlanLayers);
}

template <class V>
void Fields(V& v, Plain<V, PlanReplica>& s, v1::Replica& m) {
  ATOLL_WIRE_MESSAGES(stages, kMaxPlanStages);
  ATOLL_WIRE_INT(micro_batch_sequences, 0, kMaxMicroBatches);
  ATOLL_WIRE_INT(micro_batches, 0, kMaxMicroBatches);
}

template <class V>
void Fields(V& v, Plain<V, PlanMessage>& s, v1::LinkMessage& m) {
  ATOLL_WIRE_INT(replica, 0, kMaxPlanStages);
  ATOLL_WIRE_INT(stage, 0, kMaxPlanStages);
  ATOLL_WIRE_INT(micro_batch, 0, kMaxMicroBatches);
  ATOLL_WIRE_COPY(gradient);
}

template <class V>
void Fields(V& v, Plain<V, PlanLinkOrder>& s, v1::LinkOrder& m) {
  ATOLL_WIRE_COPY(from);
  ATOLL_WIRE_COPY(to);
  ATOLL_WIRE_MESSAGES(messages, kMaxPlanOperations);
}

template <class V>
void Fields(V& v, Plain<V, PlanHost>& s, v1::HostMemory& m) {
  ATOLL_WIRE_COPY(worker);
  ATOLL_WIRE_COUNT(bytes);
}

template <class V>
void Fields(V& v, Plain<V, IslandPlan>& s, v1::PlannedIsland& m) {
  int64_t stages = 0, operations = 0;
  for (const v1::Replica& replica : m.replicas()) stages += replica.stages_size();
  for (const v1::DeviceProgram& program : m.programs()) operations += program.operations_size();
  for (const v1::LinkOrder& order : m.link_orders()) operations += order.messages_size();
  if (!v.Check(stages <= kMaxPlanStages, absl::StrCat("a plan of ", stages, " stages")) ||
      !v.Check(operations <= kMaxPlanOperations,
               absl::StrCat("a plan of ", operations, " operations"))) {
    return;
  }
  ATOLL_WIRE_COUNT(number);
  ATOLL_WIRE_MESSAGES(members, kMaxPlanMembers);
  ATOLL_WIRE_MESSAGES(replicas, kMaxPlanStages);
  ATOLL_WIRE_MESSAGES(programs, kMaxPlanDevices);
  ATOLL_WIRE_VALUES(tensor_shares, kMaxPlanDevices);
  ATOLL_WIRE_MESSAGES(link_orders, kMaxPlanStages);
  ATOLL_WIRE_INT(optimizer_copies, 0, kMaxPlanStages);
  ATOLL_WIRE_MESSAGES(hosts, kMaxPlanMembers);
  ATOLL_WIRE_COUNT(step_ns);
  ATOLL_WIRE_COUNT(bound_ns);
  ATOLL_WIRE_COPY(schedule);
  ATOLL_WIRE_COPY(reason);
}

template <class V>
void Fields(V& v, Plain<V, ContributionOutcome>& s, v1::ContributionOutcome& m) {
  ATOLL_WIRE_MESSAGE(contribution);
  ATOLL_WIRE_VERSION(version);
  ATOLL_WIRE_COPY(accepted);
  ATOLL_WIRE_COPY(warm_up_again);
  ATOLL_WIRE_COPY(reason);
  ATOLL_WIRE_COPY(share);
}

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_WIRE_FIELDS_H_

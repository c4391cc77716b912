#include "coordinator/plan_io/plan_message.h"

#include <google/protobuf/util/json_util.h>

#include <cmath>
#include <set>
#include <vector>

#include "common/check.h"

namespace atl {
namespace {

// Writes the program of one device of one stage.
class ProgramWriter {
 public:
  ProgramWriter(const plan::Cluster& cluster, const plan::Replica& replica, int stage, size_t rank,
                v1::DeviceProgram& program)
      : cluster_(cluster), replica_(replica), stage_(stage), rank_(rank), program_(program) {}

  void Compute(const sim::Op& op, bool split) {
    const bool first = stage_ == 0;
    const bool last = stage_ + 1 == static_cast<int>(replica_.stages.size());
    switch (op.kind) {
      case sim::OpKind::kForward:
        if (!first) Talk(v1::OPERATION_KIND_RECEIVE, stage_ - 1, op.micro_batch);
        Add(v1::OPERATION_KIND_FORWARD)->set_micro_batch(op.micro_batch);
        if (!last) Talk(v1::OPERATION_KIND_SEND, stage_ + 1, op.micro_batch);
        break;
      case sim::OpKind::kBackward:
        if (!last) Talk(v1::OPERATION_KIND_RECEIVE, stage_ + 1, op.micro_batch);
        Add(v1::OPERATION_KIND_INPUT_GRADIENT)->set_micro_batch(op.micro_batch);
        if (!first) Talk(v1::OPERATION_KIND_SEND, stage_ - 1, op.micro_batch);
        if (!split) Add(v1::OPERATION_KIND_WEIGHT_GRADIENT)->set_micro_batch(op.micro_batch);
        break;
      case sim::OpKind::kWeight:
        Add(v1::OPERATION_KIND_WEIGHT_GRADIENT)->set_micro_batch(op.micro_batch);
        break;
      case sim::OpKind::kOptimizer:
        break;  // every program ends with one
    }
  }

  void Finish(bool synchronise) {
    const plan::Stage& stage = replica_.stages[stage_];
    for (int l = stage.first_layer; synchronise && l < stage.last_layer; ++l) {
      Add(v1::OPERATION_KIND_SYNC)->set_layer(l);
    }
    Add(v1::OPERATION_KIND_OPTIMIZER);
  }

 private:
  v1::Operation* Add(v1::OperationKind kind) {
    v1::Operation* operation = program_.add_operations();
    operation->set_kind(kind);
    operation->set_stage(stage_);
    return operation;
  }

  void Talk(v1::OperationKind kind, int other, int micro_batch) {
    const std::vector<int>& peers = replica_.stages[other].devices;
    v1::Operation* operation = Add(kind);
    operation->set_micro_batch(micro_batch);
    operation->set_peer(cluster_.devices[peers[rank_ % peers.size()]].id);
  }

  const plan::Cluster& cluster_;
  const plan::Replica& replica_;
  const int stage_;
  const size_t rank_;
  v1::DeviceProgram& program_;
};

void AddReplica(const plan::Cluster& cluster, const plan::Layout& layout,
                const plan::Replica& replica, int total, v1::PlannedIsland& island) {
  v1::Replica* message = island.add_replicas();
  message->set_micro_batch_sequences(layout.micro_batch);
  message->set_micro_batches(replica.micro_batches);
  message->set_sample_share(static_cast<double>(replica.micro_batches) / total);
  for (const plan::Stage& stage : replica.stages) {
    v1::Stage* added = message->add_stages();
    added->set_first_layer(stage.first_layer);
    added->set_layers(stage.last_layer - stage.first_layer);
    for (const int d : stage.devices) added->add_devices(cluster.devices[d].id);
  }
}

// Rank r of the stage that holds the layer in every replica: one ring per layer and rank.
void AddRings(const plan::Cluster& cluster, const plan::Layout& layout, int layers,
              v1::PlannedIsland& island) {
  if (layout.replicas.size() < 2) return;
  for (int l = 0; l < layers; ++l) {
    for (int rank = 0; rank < layout.tensor_parallel; ++rank) {
      v1::SyncRing* ring = island.add_rings();
      ring->set_layer(l);
      for (const plan::Replica& replica : layout.replicas) {
        for (const plan::Stage& stage : replica.stages) {
          if (l < stage.first_layer || l >= stage.last_layer) continue;
          ring->add_devices(cluster.devices[stage.devices[rank]].id);
        }
      }
    }
  }
}

}  // namespace

v1::Plan ToMessage(const plan::Cluster& cluster, const plan::Costs& costs, const plan::Plan& plan,
                   int64_t tokens_per_sample) {
  v1::Plan message;
  v1::PlannedIsland& island = *message.add_islands();
  const plan::Layout& layout = plan.layout;
  int total = 0;
  for (const plan::Replica& replica : layout.replicas) total += replica.micro_batches;
  std::set<int> used;
  for (const plan::Replica& replica : layout.replicas) {
    AddReplica(cluster, layout, replica, total, island);
  }
  AddRings(cluster, layout, static_cast<int>(costs.model().layers.size()), island);
  for (const plan::ReplicaOutcome& kind : plan.outcome.kinds) {
    for (const int r : kind.replicas) {
      const plan::Replica& replica = layout.replicas[r];
      for (size_t s = 0; s < replica.stages.size(); ++s) {
        const std::vector<int>& devices = replica.stages[s].devices;
        for (size_t rank = 0; rank < devices.size(); ++rank) {
          used.insert(devices[rank]);
          v1::DeviceProgram* program = island.add_programs();
          program->set_device(cluster.devices[devices[rank]].id);
          program->set_memory_peak_bytes(kind.state_bytes[s] +
                                         kind.found.result.devices[s].peak_bytes);
          ProgramWriter writer(cluster, replica, static_cast<int>(s), rank, *program);
          const bool split = sim::IsSplit(kind.problem.chunks[s]);
          for (const sim::Op& op : kind.found.schedule.device_ops[s]) writer.Compute(op, split);
          writer.Finish(layout.replicas.size() > 1);
        }
      }
    }
  }
  for (size_t d = 0; d < cluster.devices.size(); ++d) {
    if (used.count(static_cast<int>(d)) == 0) message.add_idle_devices(cluster.devices[d].id);
  }
  const double step_s = plan.outcome.step_s;
  island.set_step_ns(std::llround(step_s * 1e9));
  message.set_step_ns(std::llround(step_s * 1e9));
  message.set_bound_ns(std::llround(plan.outcome.bound_s * 1e9));
  message.set_gap_ratio(step_s / plan.outcome.bound_s - 1);
  message.set_tokens_per_s(static_cast<double>(tokens_per_sample) * total * layout.micro_batch /
                           step_s);
  message.set_reason(plan.reason);
  message.set_seed(plan.seed);
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

}  // namespace atl

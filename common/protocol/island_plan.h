// One island's layout: which devices hold which layers and in which order each works. The plain
// form of proto/plan.proto's PlannedIsland, as it travels to the workers that run it.
//
// A device is named "worker/index": device `index` of that worker ("w1/0"). A stage is consecutive
// layers of the job (embedding 0, blocks, head last) held by a tensor-parallel group of devices, in
// rank order; groups may differ in size, but a layer's are of one size in all replicas
// (tensor_groups.h). A replica is one whole copy of the model; replicas may be cut differently and
// take different numbers of sequences. One device may hold several stages of one replica
// (interleaved, V-shaped), never of two.
//
// Sequences of a step are distributed in order: replica 0's micro-batches first, each of
// micro_batch_sequences. Of a shorter step (the job's last one, or one of inner.batch_ramp) each
// replica takes the share that it has of a whole one, and its last micro-batches stay empty. A step
// sums gradients over all micro-batches of a replica (gradient accumulation) and all-reduces them
// over replicas.

#ifndef ATOLL_COMMON_PROTOCOL_ISLAND_PLAN_H_
#define ATOLL_COMMON_PROTOCOL_ISLAND_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/time.h"
#include "proto/plan.plain.h"

namespace atl {

// Addresses of one worker's peer link, each in another network.
inline constexpr int kPeerEndpointsMax = 4;

// Size of the plan's largest tensor-parallel group; 1 without stages.
int TensorParallel(const IslandPlan& plan);

// The longest that members of an island wait for each other's part of one step under this plan:
// `least`, or ten times the step that it predicts. Ten, since a first step is slower than those
// that were measured (memory is touched, kernels are chosen), an unmeasured device or link may be
// several times slower than assumed, and a link may lose most of its bandwidth for a while; a
// failed caller is detected by its link within seconds, so this ends only hangs. Ten hours at most.
Duration StepLimit(const IslandPlan& plan, Duration least);

// Time limit of a state transfer of so many bytes, without the time that it waits: a link slower
// than 1 MB/s is too slow to train over.
Duration GetStateTransferLimit(int64_t bytes);

// "w1/0" -> "w1".
NodeId WorkerFromDevice(const std::string& device);
// "w1/0" -> 0; -1 where the name has no index.
int IndexFromDevice(const std::string& device);

// Devices that send a message and that receive it, by rank. REQUIRES: such a message in the plan.
const std::vector<std::string>& GetSenders(const IslandPlan& plan, const PlanMessage& message);
const std::vector<std::string>& GetReceivers(const IslandPlan& plan, const PlanMessage& message);

// "B of micro-batch 3 in stage 1", human-readable.
std::string ToString(const PlanOp& op);
// "the gradient of micro-batch 3 from stage 1 of replica 0", human-readable.
std::string ToString(const PlanMessage& message);

// Sequences [first_row, first_row + rows) of a step.
struct MicroBatchRows {
  int64_t first_row = 0;
  int64_t rows = 0;  // 0: an empty micro-batch, which all stages skip

  bool operator==(const MicroBatchRows&) const = default;
};

// Returns how a step of so many sequences is distributed: by replica, then micro-batch. REQUIRES: a
// valid plan; sequences <= its batch_sequences.
std::vector<std::vector<MicroBatchRows>> AssignSequences(const IslandPlan& plan, int64_t sequences);

// A device's whole program from its F, B and W in order, each with stage and micro-batch. A receive
// is put before what needs the message, a send after what makes it; the syncs of a stage as soon as
// its weight gradients and those of the device's later stages are complete; the optimizer step
// last. W become ordered by micro-batch within a stage: one that comes before its turn, or before
// the B of the one whose turn it is, waits. One that is missing (an unsplit backward) follows its
// B at once, before what B sends: then both are one operation. REQUIRES: the plan's replicas name
// the device; all F, B and W of its stages but those W are there.
PlanProgram CompleteProgram(const IslandPlan& plan, const std::string& device,
                            const std::vector<PlanOp>& compute);

// Everything that would make the plan impossible to run on a job with so many layers and sequences
// a step: gaps or overlaps of layers, a device that no member owns or that two replicas share,
// a layer shared by unlike numbers of devices, micro-batches that do not hold a step's sequences
// (or leave one without any), a program that misses or repeats an operation of its stages, that
// orders W before its B or before an earlier micro-batch's W, that synchronises layers in an order
// other than descending (one global order is what keeps all-reduces of asymmetric replicas from
// waiting for each other in a circle), that does not end in its optimizer step, or programs that
// would wait for each other. Between two stages on one device there are no messages; with one
// replica there is no sync. A link's order has messages between workers, each in one order and
// once, and all micro-batches of a stage link. The error names device, stage and operation.
absl::Status Validate(const IslandPlan& plan, int32_t layers, int64_t batch_sequences);

// The plan as that worker gets it: without the programs of other workers' devices. Sent to each
// of an island's workers, all programs would grow with the square of their number.
IslandPlan KeepWorkerPrograms(const IslandPlan& plan, const NodeId& worker);
// Validate(), but other workers' programs may be absent. Without them it does not find
// programs that wait for each other: the planner has checked that.
absl::Status ValidateFor(const NodeId& worker, const IslandPlan& plan, int32_t layers,
                         int64_t batch_sequences);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_ISLAND_PLAN_H_

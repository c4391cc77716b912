// A plan as the message `Plan` (proto/plan.proto), which workers run and `--json` prints.

#ifndef ATOLL_COORDINATOR_PLAN_IO_PLAN_MESSAGE_H_
#define ATOLL_COORDINATOR_PLAN_IO_PLAN_MESSAGE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/islands.h"
#include "coordinator/planner/planner.h"
#include "proto/plan.pb.h"

namespace atl {

// An island's plan, whole, with its operations.
void EncodePlan(const IslandPlan& plan, v1::PlannedIsland* wire);

// Islands that train beside each other, without rounds: one at least, with all replicas. Device
// programs hold every operation in order: receive before what needs the message, send after what
// makes it, then per layer the gradient's all-reduce, then the optimizer. With an unsplit backward
// W follows its B at once. Tensor-parallel rank r talks to rank r of the neighbouring stage (modulo
// its size). Link orders: see ComputeSendOrders. Times are those of the slowest island,
// tokens_per_s (by `tokens_per_sample`) of all together. `cluster`: all devices.
v1::Plan ToMessage(const plan::Cluster& cluster, const plan::Costs& costs,
                   const std::vector<plan::IslandOfSite>& islands, int64_t tokens_per_sample);

// Converts what was chosen, exchanges included.
v1::Plan ToMessage(const plan::Cluster& cluster, const plan::Costs& costs,
                   const plan::IslandChoice& choice, int64_t tokens_per_sample);

// The message as indented JSON.
std::string ToJson(const v1::Plan& message);

// An island of such JSON, edited or not, as a layout of this cluster and model: its replicas,
// stages, devices, micro-batches, recomputed layers; and the order of operations that its programs
// give, by replica, where that is wanted and it has programs.
struct PinnedLayout {
  plan::Layout layout;
  std::vector<plan::ReplicaOrder> orders;
};

// Parses a pinned plan. Of several islands it takes the first one with a device of `node` (empty:
// of the cluster), or the first one. `name` (of the file) begins every error, which names what is
// wrong, of orders as ReadOrders.
absl::StatusOr<PinnedLayout> ParsePinnedJson(absl::string_view text, absl::string_view name,
                                             const plan::Cluster& cluster, const plan::Costs& costs,
                                             const std::string& node, bool with_orders);

// Each island of such JSON as a plan by itself.
absl::StatusOr<std::vector<std::string>> IslandsJson(absl::string_view text,
                                                     absl::string_view name);

// Returns what ParsePinnedJson reads of such JSON, on one line. The error says
// what is no plan's form, or which programs contradict the stages (KeepOrders).
absl::StatusOr<std::string> PinnedJson(absl::string_view text, absl::string_view name);

// ---- the order of operations in a plan's JSON (its programs), edited or not: what follows from it
// is made anew (messages, all-reduces and the optimizer); plan_orders.cc ----

// Gives `kept`, which has the island's replicas, one program for each set of devices that share
// layers, of F, B and W alone. Where W follows each B of a stage at once, both are one operation
// and W is left out. Programs that are such already stay as they are. Refuses two programs of a
// device, one of a device without a stage, and different orders on devices that share layers.
absl::Status KeepOrders(const v1::PlannedIsland& island, v1::PlannedIsland& kept);

// Reads the orders by replica; empty: the island has no programs. The layout is that of the
// island's replicas. The error names device, stage and operation of what is missing, doubled, not
// the device's, or before what it needs on the same device.
absl::StatusOr<std::vector<plan::ReplicaOrder>> ReadOrders(const v1::PlannedIsland& island,
                                                           const plan::Cluster& cluster,
                                                           const plan::Layout& layout);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_PLAN_MESSAGE_H_

// Measured times and links for the planner: the message ClusterProfile as JSON, which `atoll
// profile
// --json` prints and a coordinator answers with.

#ifndef ATOLL_COORDINATOR_PLAN_IO_PROFILE_FILE_H_
#define ATOLL_COORDINATOR_PLAN_IO_PROFILE_FILE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/planner/cluster/cluster.h"
#include "coordinator/planner/cluster/costs.h"
#include "proto/cluster.pb.h"

namespace atl {

// The planner's view of a profile.
struct Profiled {
  plan::Cluster cluster;
  plan::ProfileTable table;  // empty: no layer was timed
  plan::MemoryTable memory;  // of tensor-parallel degrees that were measured
};

// `name` (of the file) begins every error.
absl::StatusOr<v1::ClusterProfile> ParseProfileJson(absl::string_view text, absl::string_view name);

// Devices of one type whose memory differs by more than 10% are planned as two types. A type that
// neither the catalogue knows nor `times` has is refused, as are ids that are empty or appear
// twice or have control characters, doubled links and layers, sizes that are negative or above
// 2^50 bytes, and times that are negative or above an hour. Links within a node hold for their two
// devices alone. Pairs of nodes without a link get 10 Gbit/s within a site, 1 Gbit/s and 10 ms
// between sites. `model`, of the job to plan, gets the measured activations; its layers are as many
// as were timed, or the error says that the profile is of another model. `options` gets the
// measured state. Memory of tensor-parallel degrees above 1 counts where the same layers were
// measured alone.
absl::StatusOr<Profiled> ToProfiled(const v1::ClusterProfile& profile, plan::Model* model,
                                    plan::CostOptions* options);

// The same for a described cluster: its devices, links, edges, trunks and changes of bandwidth,
// with the profile's times and memory, and what else the description leaves out (cluster_file.h).
absl::StatusOr<Profiled> ToProfiled(const v1::ClusterSpec& described,
                                    const v1::ClusterProfile& profile, plan::Model* model,
                                    plan::CostOptions* options);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_PROFILE_FILE_H_

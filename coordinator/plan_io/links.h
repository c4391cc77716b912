// The common parts of descriptions of clusters and profiles: links, trunks, names and types.

#ifndef ATOLL_COORDINATOR_PLAN_IO_LINKS_H_
#define ATOLL_COORDINATOR_PLAN_IO_LINKS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/planner/cluster/cluster.h"
#include "coordinator/planner/cluster/costs.h"
#include "proto/cluster.pb.h"

namespace atl {

// Adds the trunks. A name that appears twice is refused.
absl::Status ReadTrunks(const v1::ClusterSpec& spec, plan::Cluster& cluster);

// All edges of a link, over trunks of the cluster. Refuses links without edges.
absl::StatusOr<plan::Link> LinkFromMessage(const plan::Cluster& cluster, const v1::Link& link);

// Refuses prices that are no number of at least 0, naming the device, the field and the value.
absl::Status CheckPrices(const v1::Device& device);

// Refuses a cluster with two sites of which no link leads from one to the other; `remedy` is what
// to do.
absl::Status CheckSitesJoined(const plan::Cluster& cluster, absl::string_view remedy);

// Refuses what is empty, longer than 256 bytes or has control characters, naming it as `what`.
absl::Status CheckName(absl::string_view what, absl::string_view name);

// Refuses types that are named twice and figures that cannot be.
absl::Status CheckTypes(const v1::ClusterSpec& spec);

// Returns the type as the description says, else as the catalogue does. The speed of a type with
// measured times is the measured one. Memory and link are 0 where nothing says them. Others are
// refused.
absl::StatusOr<plan::DeviceType> NamedType(const std::string& name, const v1::ClusterSpec& spec,
                                           const plan::ProfileTable& times);

// Refuses devices of one node of which nothing says how they are linked: neither their types nor
// links between them.
absl::Status CheckNodeLinks(plan::Cluster& cluster);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_LINKS_H_

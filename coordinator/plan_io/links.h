// The common parts of descriptions of clusters and profiles: links, trunks, names and types.

#ifndef ATOLL_COORDINATOR_PLAN_IO_LINKS_H_
#define ATOLL_COORDINATOR_PLAN_IO_LINKS_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/planner/cluster/cluster.h"
#include "coordinator/planner/cluster/costs.h"
#include "proto/cluster.pb.h"

namespace atl {

// Measurements of devices, links and layers, in addition to a description.
struct Measured {
  v1::ClusterSpec cluster;
  plan::ProfileTable times = {};
};

using DeviceIndex = std::map<std::string, int>;  // by id

// Adds the devices and their types. Devices of one name and price are of one type, with the least
// memory, where the larger one's is at most `same_memory` times the smaller one's. What a device
// leaves out of its memory is measured, else as its type has it; its node is itself, its site
// "site". Refuses what is doubled, no name, or said by nothing, naming the device.
absl::Status ReadDevices(const v1::ClusterSpec& spec, const Measured& measured, double same_memory,
                         plan::Cluster& cluster, DeviceIndex& devices);

// Adds the trunks. A name that appears twice is refused.
absl::Status ReadTrunks(const v1::ClusterSpec& spec, plan::Cluster& cluster);

// All edges of a link, over trunks of the cluster. Refuses links without edges.
absl::StatusOr<plan::Link> LinkFromMessage(const plan::Cluster& cluster, const v1::Link& link);

// Refuses a cluster with two sites of which no link leads from one to the other; `remedy` is what
// to do.
absl::Status CheckSitesJoined(const plan::Cluster& cluster, absl::string_view remedy);

// Refuses types that are named twice and figures that cannot be.
absl::Status CheckTypes(const v1::ClusterSpec& spec);

// Refuses devices of one node of which nothing says how they are linked: neither their types nor
// links between them.
absl::Status CheckNodeLinks(plan::Cluster& cluster);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_LINKS_H_

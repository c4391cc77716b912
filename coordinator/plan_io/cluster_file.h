// Reads a cluster description for the planner.
//
// The file is TOML with exactly the fields of the message ClusterSpec (proto/cluster.proto);
// unknown ones are refused by name. Two things make it short to write by hand:
//   - a device's type is looked up in the file's [[types]] and in the planner's catalogue;
//     memory_bytes of a device, if given, replaces the type's;
//   - a link's `from` and `to` name a device or a site. Site to site: all devices of the one to all
//     of the other, sharing it; a site to itself: between its nodes, through each node's card.
// Within a node the type's own link is used unless a device pair has a link. Two sites without a
// link in both directions are refused, as in ClusterSpec.
//
//   [[devices]]
//   id = "a0"
//   type = "a100-80"
//   node = "n0"
//   site = "paris"
//
//   [[links]]
//   from = "paris"
//   to = "oslo"
//   edges = [{ latency_ns = 20_000_000, bandwidth_bytes_per_s = 1.25e9 }]

#ifndef ATOLL_COORDINATOR_PLAN_IO_CLUSTER_FILE_H_
#define ATOLL_COORDINATOR_PLAN_IO_CLUSTER_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/plan_io/links.h"

namespace atl {

// TOML text to message; `name` (of the file) begins every error.
absl::StatusOr<v1::ClusterSpec> ParseClusterToml(absl::string_view text, absl::string_view name);

// Converts to the planner's form, edges, trunks, conflicts and changes of bandwidth included.
// Layouts are ranked by what a transfer of 8 MB over all edges amounts to at first, and simulated
// edge by edge. What the file says holds. Measurements give what it leaves out: types of which
// there are times, the memory of devices with the same id, and links between two devices of which,
// and of whose sites, the file has none. Refused are names that are empty or have control
// characters, devices, links and trunks that appear twice, links from a device to itself, and
// negative sizes.
absl::StatusOr<plan::Cluster> ToCluster(const v1::ClusterSpec& spec, const Measured& measured = {});

absl::StatusOr<v1::ClusterSpec> LoadClusterSpec(const std::string& path);
// Both, from a file.
absl::StatusOr<plan::Cluster> LoadClusterFile(const std::string& path);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_CLUSTER_FILE_H_

// Devices and the links between them, as described by a user or measured by the profiler.

#ifndef ATOLL_COORDINATOR_PLANNER_CLUSTER_CLUSTER_H_
#define ATOLL_COORDINATOR_PLANNER_CLUSTER_CLUSTER_H_

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/protocol/device_profile.h"
#include "coordinator/planner/cluster/catalogue.h"
#include "coordinator/simulator/size_curve.h"

namespace atl::plan {

struct Device {
  std::string id;
  std::string node;
  std::string site;
  int type = 0;                      // index into Cluster::types
  double egress_price_per_byte = 0;  // of what it sends to other sites
  // Set where sites represent islands: the site whose links it uses; empty: `site`.
  std::string network_site = {};
};
inline const std::string& NetworkSite(const Device& device) {
  return device.network_site.empty() ? device.site : device.network_site;
}

// A change from `time_s` after a step's start on: bandwidth is multiplied by `factor`, until the
// next change.
struct BandwidthChange {
  double time_s = 0;
  double factor = 1;
};

// Capacity that edges of several links share, such as the inter-site link of two sites.
struct Trunk {
  std::string name;
  double bytes_per_s = 0;
  std::vector<BandwidthChange> changes;
};

// One of several paths from device to device; a transfer is split over those that help.
struct LinkEdge {
  double latency_s = 0;
  double bytes_per_s = 0;
  int trunk = -1;         // index into Cluster::trunks; -1: not shared
  int conflict_set = -1;  // at most one edge of a set takes part in a transfer; -1: any may
  std::vector<BandwidthChange> changes;
  double price_per_byte = 0;
  sim::SizeCurvePtr sizes = {};
};

// One direction between two devices: t(n) = latency + n / bandwidth, n as `sizes` count it, or what
// the edges amount to.
struct Link {
  double latency_s = 0;
  double bytes_per_s = 0;
  std::vector<LinkEdge> edges;   // empty: one, as above
  double price_per_byte = 0;     // of what is sent, as the edges share it
  sim::SizeCurvePtr sizes = {};  // without edges

  // Until a message has arrived that has the link to itself.
  double Seconds(double bytes) const;
  // Returns the part of that time for which the next message waits.
  double SerialSeconds(double bytes) const;
  // No message's bytes are carried faster.
  double FastestBytesPerSecond() const;
};

// Converts a link as it was measured. Times that are no curve (SizeCurve::Make) are left out.
// REQUIRES: its bandwidth is positive.
Link LinkFromProfile(const LinkProfile& link);

// A link of these edges. Its latency and bandwidth are those of a transfer of 8 MB over all edges
// that help, each capped by its trunk: what is good enough to rank layouts with; transfers are
// simulated edge by edge. Refuses what the simulator's network refuses, and an unknown trunk.
absl::StatusOr<Link> MakeLink(std::vector<LinkEdge> edges, const std::vector<Trunk>& trunks);

struct Cluster {
  std::vector<DeviceType> types;
  std::vector<Device> devices;
  std::vector<Trunk> trunks;
  // Bandwidth within a node comes from the device type; this is its latency.
  double node_latency_s = 5e-6;
  Link site_link{20e-6, 50e9};  // between nodes of one site: by default a 400 Gbit/s card
  Link wan_link{10e-3, 125e6};  // between sites without an entry below: 1 Gbit/s, 10 ms
  // Site to site; all that goes from one to another shares it. A site to itself: one node's card.
  std::map<std::pair<std::string, std::string>, Link> site_to_site;
  // The bytes from network site to network site that a job may send in a day (traffic.h). A pair
  // without an entry has no limit.
  std::map<std::pair<std::string, std::string>, double> bytes_per_day;
  // The node that begins every step; empty: it is not known.
  std::string leader;
  // Measured from node to node, by name: overrides what holds between their sites.
  std::map<std::pair<std::string, std::string>, Link> node_to_node;
  // Measured or described device pairs (indices): override everything above.
  std::map<std::pair<int, int>, Link> measured;

  Link LinkBetween(int from, int to) const;
  // Returns the price of sending a byte: the link's price, and between sites the sender's.
  double PricePerByte(int from, int to) const;
  // Returns whether any device, sender or link has a price.
  bool HasPrices() const;
  const Link& LinkBetweenSites(const std::string& from, const std::string& to) const;
  // Returns the highest rate at which a device's node sends through its card: by the fastest of its
  // measured links to other nodes, else by what its site says of nodes' cards.
  double CardBytesPerSecond(int device) const;
  std::set<std::string> ListSites() const;
  std::map<std::string, int> IndexDevices() const;  // by id
  // The devices of one type, in one node, in order; (site, node, type) in order.
  std::vector<std::vector<int>> DevicesByNode() const;
};

// No devices, an unknown type, a duplicate id, a link that is not positive: named with the device.
absl::Status Validate(const Cluster& cluster);

// The slowest link around these devices in this order, as `measured` has it, else as their types
// have; nothing where `measured` has none of these links.
std::optional<RingLink> FindSlowestRingLink(const Cluster& cluster,
                                            const std::vector<int>& devices);

// Gives types the links of the tensor-parallel groups of 2, 4, ... that nodes' devices make in
// order. Devices of one type whose groups have other links become types of their own, of the same
// name.
void SetRingLinks(Cluster& cluster);

// The cluster with its types and devices in an order that follows from what they are, whatever the
// order in which they were described: what is found for it does not depend on that order.
struct Canonical {
  Cluster cluster;
  std::vector<int> devices;  // of each of its devices: the index in the cluster that it was made of
};
// REQUIRES: Validate(cluster) is OK.
Canonical MakeCanonical(const Cluster& cluster);

// The devices that are to be kept, and what joins them.
Cluster WithDevices(const Cluster& cluster, const std::function<bool(const Device&)>& keep);

// Two-level grouping. Level 1 (sites) by average linkage on the distance d(i, j), the larger of
// both directions' times for `payload_bytes`: two groups merge when their distance is at most
// twice the larger of their mean inner distances (at least `floor_s`; a single device has
// none compared with a group that has one, and its distance to its nearest neighbour compared with
// another single one). Level 2 inside each: the same on |ln power|, up to ln 1.25, same memory
// class.
struct Grouping {
  std::vector<std::vector<int>> sites;                 // devices, ascending
  std::vector<std::vector<std::vector<int>>> classes;  // per site: groups of like devices
};
struct GroupingOptions {
  double payload_bytes = 8e6;
  double floor_s = 1e-6;
  // Multiplies that for two groups that may merge; 0 keeps them apart. Null: 1.
  std::function<double(const std::vector<int>&, const std::vector<int>&)> leniency;
};
// REQUIRES: Validate(cluster) is OK.
Grouping GroupDevices(const Cluster& cluster, const GroupingOptions& options);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_CLUSTER_CLUSTER_H_

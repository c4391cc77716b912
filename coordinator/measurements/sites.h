// The sites of workers, derived from measured links: the first level of the two-level grouping
// (planner/cluster.h), with hysteresis. A worker whose operator names its site is at that one; the
// others are at the site of the workers that they are near.
//
// - Links whose message of 1 MB takes 4 ms or less are always near enough; beyond that, groups
//   merge as GroupDevices says, but never over a mean latency of more than 5 ms: two workers alone
//   have nothing to be compared with.
// - Workers that were together stay so until their distance is 1.5 times what would bring them
//   together, and those that were apart join at 1/1.5 of it: noise changes nothing. A worker that
//   was not measured keeps its site.
// - A site keeps its name as long as most of its workers; a new one is called after its first
//   worker by name ("site-w1").
//
// Pure and deterministic: the order of the arguments does not matter.

#ifndef ATOLL_COORDINATOR_MEASUREMENTS_SITES_H_
#define ATOLL_COORDINATOR_MEASUREMENTS_SITES_H_

#include <map>
#include <string>
#include <utility>

#include "common/ids.h"
#include "common/protocol/device_profile.h"

namespace atl {

struct Standing {
  std::string declared;  // by its operator; empty: not
  std::string before;    // where it was found the last time; empty: nowhere yet

  const std::string& site() const { return declared.empty() ? before : declared; }
};

struct MeasuredSite {
  std::string site;
  std::string source;  // "measured: 0.3 ms, 940 Mbit/s inside; 21 ms, 95 Mbit/s to site-w4"

  bool operator==(const MeasuredSite&) const = default;
};

// Returns the site of every worker of which something is known: a link, or where it was before.
std::map<NodeId, MeasuredSite> FindSites(
    const std::map<NodeId, Standing>& workers,
    const std::map<std::pair<NodeId, NodeId>, LinkProfile>& links);

// Mean bandwidth of the measured links between two sites, and within one, of workers whose site is
// known.
std::map<std::pair<std::string, std::string>, double> RatesBetweenSites(
    const std::map<NodeId, Standing>& workers,
    const std::map<std::pair<NodeId, NodeId>, LinkProfile>& links);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_MEASUREMENTS_SITES_H_

// The cost for islands to push to and pull from a parameter server, by measured links. Pure.

#ifndef ATOLL_COORDINATOR_CORE_SHARDS_SERVER_ACCESS_COST_H_
#define ATOLL_COORDINATOR_CORE_SHARDS_SERVER_ACCESS_COST_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace atl {

// Bytes a second from one site to another, or within one, as measured between their workers.
using SiteRates = std::map<std::pair<std::string, std::string>, double>;

// An island's link to a server.
struct IslandLink {
  std::string site;                // of the island; empty: not known
  double bytes_per_s = 0;          // of its pulls from the server; 0: not measured
  double fastest_bytes_per_s = 0;  // of its pulls from any server
  double doubt = 1;                // their ratio may be so many times less than it seems
};

// cost: seconds a byte, relative to a server near the islands; at least 1.
struct ServerAccessCost {
  double cost = 1;
  std::string why;  // "beside its islands", "3 times as far: 95 Mbit/s from paris"
};

// The mean over the islands. One that has pulled from the server counts as what it surely pulls
// faster from its fastest server, or 1 below kLinkRatioNoise times. Others by sites: an
// island at another site counts as what its measured link takes more than its own site's links do
// (its fastest one, if it has no measured links inside), 2 where nothing is measured. A site that
// is not known counts as near. At most kServerAccessCostMax.
ServerAccessCost ComputeServerAccessCost(const std::string& site,
                                         const std::vector<IslandLink>& islands,
                                         const SiteRates& rates);

inline constexpr double kServerAccessCostMax = 64;
inline constexpr double kLinkRatioNoise =
    3;  // two equal links differ less, with what else uses them

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_SERVER_ACCESS_COST_H_

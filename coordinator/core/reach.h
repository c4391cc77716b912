// What it takes islands to push to and pull from a parameter server, by sites and measured links.
// Pure.

#ifndef ATOLL_COORDINATOR_CORE_REACH_H_
#define ATOLL_COORDINATOR_CORE_REACH_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace atl {

// Bytes a second from one site to another, or within one, as measured between their workers.
using SiteRates = std::map<std::pair<std::string, std::string>, double>;

// cost: seconds a byte, over those of a server beside the islands; at least 1.
struct Reach {
  double cost = 1;
  std::string why;  // "beside its islands", "3 times as far: 95 Mbit/s from paris"
};

// The mean over the islands, whose sites are given, one each. An island at another site counts as
// what its measured link takes more than its own site's links do (its fastest one, if it has no
// measured links inside), 2 where nothing is measured, and at most kReachMost. A site that is not
// known counts as near.
Reach ReachOf(const std::string& site, const std::vector<std::string>& islands,
              const SiteRates& rates);

inline constexpr double kReachMost = 64;

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_REACH_H_

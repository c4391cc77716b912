// Islands and servers around one switch, for tests and benches.

#ifndef ATOLL_COORDINATOR_SIMULATOR_TESTING_STAR_H_
#define ATOLL_COORDINATOR_SIMULATOR_TESTING_STAR_H_

#include <vector>

#include "coordinator/simulator/rounds.h"

namespace atl::sim {

// Islands and servers on a star: each has a card of its own that its transfers use one after the
// other, in each direction, and every transfer takes `latency_ns`.
struct StarNetwork {
  std::vector<double> island_bytes_per_s;  // up and down
  std::vector<double> server_bytes_per_s;
  Nanos latency_ns = 0;
};

// Fills the network and the links of the problem's islands and servers. REQUIRES: as many rates as
// there are islands and servers.
void JoinInStar(const StarNetwork& star, RoundsProblem& problem);

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_TESTING_STAR_H_

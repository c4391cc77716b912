#include "coordinator/simulator/testing/star.h"

#include <algorithm>

#include "common/check.h"

namespace atl::sim {

void JoinInStar(const StarNetwork& star, RoundsProblem& problem) {
  ATOLL_CHECK(star.island_bytes_per_s.size() == problem.islands.size() &&
              star.server_bytes_per_s.size() == problem.servers.size());
  Network& network = problem.network;
  network = {};
  // Trunks: each card out, then in.
  const auto card = [&](double bytes_per_s) {
    network.trunks.insert(network.trunks.end(), 2, {bytes_per_s, {}});
    return static_cast<int>(network.trunks.size()) - 2;
  };
  std::vector<int> servers;
  for (const double rate : star.server_bytes_per_s) servers.push_back(card(rate));
  for (size_t i = 0; i < problem.islands.size(); ++i) {
    RoundIsland& island = problem.islands[i];
    island.push_links.clear();
    island.pull_links.clear();
    const double rate = star.island_bytes_per_s[i];
    const int own = card(rate);
    // One transfer of an island at a time in each direction: the Latin square's slots.
    const int lane = network.lanes;
    network.lanes += 2;
    for (size_t j = 0; j < servers.size(); ++j) {
      const double least = std::min(rate, star.server_bytes_per_s[j]);
      const int link = static_cast<int>(network.links.size());
      network.links.push_back({{Edge{star.latency_ns, least, {own, servers[j] + 1}, -1}}, lane});
      network.links.push_back(
          {{Edge{star.latency_ns, least, {servers[j], own + 1}, -1}}, lane + 1});
      island.push_links.push_back(link);
      island.pull_links.push_back(link + 1);
    }
  }
}

}  // namespace atl::sim

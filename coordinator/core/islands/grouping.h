// Which workers may share an island: the sites of workers, declared or measured, and what decides
// where the job leaves it open (layout.island = "auto").

#ifndef ATOLL_COORDINATOR_CORE_ISLANDS_GROUPING_H_
#define ATOLL_COORDINATOR_CORE_ISLANDS_GROUPING_H_

#include <string>
#include <vector>

#include "coordinator/core/shards/server_access_cost.h"
#include "coordinator/core/state.h"

namespace atl::coord {

// Returns the worker's site as its operator says, else as it was found; "" if neither.
const std::string& GetWorkerSite(const Worker& worker);
// Converts a worker, with what is known of its peer link.
IslandMember ToIslandMember(const Worker& worker);

// Returns the server's site as its operator says, else that of all workers on the same host; "" if
// neither.
const std::string& GetServerSite(const State& s, const Server& server);

// One for each island that has a worker; "" where it is not known.
std::vector<const Worker*> ListIslandLeaders(const State& s, const Job& job);
// Computes the access cost of a parameter server for islands that these workers lead.
ServerAccessCost ComputeAccessCostFromLeaders(const State& s, const Server& server,
                                              const std::vector<const Worker*>& leaders);

// Returns which workers share an island: as the job's specification says, or as was decided for it.
IslandScope GetIslandScope(const Job& job);

// Returns whether it is known which of these share an island, so that they can be assigned. If not,
// measurements are requested; after CoordinatorOptions::grouping_limit it is decided without.
bool Grouped(State& s, Job& job, const JobFacts& facts, const std::vector<Worker*>& workers);
Instant GroupingDeadline(const State& s, const Job& job);

void OnSitesFound(State& s, const SitesFound& found);
void OnWorkersGrouped(State& s, const WorkersGrouped& grouped);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ISLANDS_GROUPING_H_

// Which entities candidates use, and groups of them by counts. Internal to the planner.

#ifndef ATOLL_COORDINATOR_PLANNER_GROUPS_SCOPES_H_
#define ATOLL_COORDINATOR_PLANNER_GROUPS_SCOPES_H_

#include <string>
#include <vector>

#include "coordinator/planner/cluster/entities.h"
#include "coordinator/planner/groups/grouping.h"

namespace atl::plan {

// Returns the site of the cluster's leader; empty: it is not known.
std::string GetLeaderSite(const Cluster& cluster);

// Part of the entities: so many of each pool.
struct Scope {
  std::string name;  // " in paris alone"; empty: all
  Composition counts;
};

Composition CountEntities(const std::vector<EntityPool>& pools);
std::vector<EntityClass> MakeEntityClasses(const std::vector<EntityPool>& pools,
                                           const Scope& scope);

// The entities that a plan may be better for leaving alone are left out: all; one site alone (what
// is left when nothing is worth sending across), at most three and the leader's; of unlike entities
// all but a site, and few sites along fast links.
std::vector<Scope> ListCandidateScopes(const Cluster& cluster,
                                       const std::vector<EntityPool>& pools);

// Adds scopes for a cheap plan: so many of the entities that give the most power for their price,
// everywhere and in each of the cheapest sites alone. Few devices idle less than many.
void AddCheapScopes(const std::vector<EntityPool>& pools, std::vector<Scope>& scopes);

// Exactly `stages` entities in every group: the weakest leave; what is missing comes from what
// idles, the strongest of the group's own sites first. False if too few are left.
bool FitToStages(const std::vector<EntityPool>& pools, int stages,
                 std::vector<Composition>& groups);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_GROUPS_SCOPES_H_

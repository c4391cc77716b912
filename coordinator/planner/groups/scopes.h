// Which entities candidates use, and groups of them by counts. Internal to the planner.

#ifndef ATOLL_COORDINATOR_PLANNER_GROUPS_SCOPES_H_
#define ATOLL_COORDINATOR_PLANNER_GROUPS_SCOPES_H_

#include <string>
#include <vector>

#include "coordinator/planner/cluster/entities.h"
#include "coordinator/planner/groups/grouping.h"

namespace atl::plan {

// Part of the entities: so many of each pool.
struct Scope {
  std::string name;  // " in paris alone", " of the fastest 8"; empty: all
  Composition counts;
};

Composition CountEntities(const std::vector<EntityPool>& pools);
std::vector<EntityClass> MakeEntityClasses(const std::vector<EntityPool>& pools,
                                           const Scope& scope);

// The entities that a plan may be better for leaving alone are left out: all; one site alone (what
// is left when nothing is worth sending across), at most three and the leader's; the strongest
// sites together; of unlike entities all but a site, and few sites along fast links; the fastest
// entities, where speeds differ; of few devices all but one of few types.
std::vector<Scope> ListCandidateScopes(const Cluster& cluster,
                                       const std::vector<EntityPool>& pools);

// Adds scopes for a cheap plan: so many of the entities that give the most power for their price,
// everywhere and in each of the cheapest sites alone. Few devices idle less than many.
void AddCheapScopes(const std::vector<EntityPool>& pools, std::vector<Scope>& scopes);

// Exactly `stages` entities in every group: the weakest leave; what is missing comes from what
// idles, the strongest of the group's own sites first. False if too few are left.
bool FitToStages(const std::vector<EntityPool>& pools, int stages,
                 std::vector<Composition>& groups);

// Returns whether any group has entities of two sites.
bool SpansSites(const std::vector<EntityPool>& pools, const std::vector<Composition>& groups);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_GROUPS_SCOPES_H_

// Which entities candidates use, groups of them by counts, and what links between sites take of
// their steps. Internal to the planner.

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

// The least time that links between sites add to a step, whatever the cuts, so that groups whose
// messages or gradients they cannot carry are dropped before they are cut.
//
// Where every group stays within a site, each layer's gradient is summed between all sites in use,
// after the step's work. Where every group spans sites, its activations cross one inter-site link
// less than it has sites, and all groups share these links.
class SiteFloor {
 public:
  SiteFloor(const Cluster& cluster, const Costs& costs, const Job& job,
            const std::vector<EntityPool>& pools, int micro_batch);

  // The least seconds of a step of these groups, which takes `compute_s` if nothing is sent.
  double EstimateStepSeconds(const std::vector<Composition>& groups, double compute_s) const;

 private:
  double SyncSeconds(const std::vector<int>& groups_at) const;

  std::vector<int> site_of_;  // by pool
  int sites_ = 0;
  double fastest_bytes_per_s_ = 0;  // of all links between two sites
  double gradient_bytes_ = 0;       // of the whole model
  double message_bytes_ = 0;        // the smallest of a micro-batch
  double micro_batches_ = 0;        // of a step
};

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_GROUPS_SCOPES_H_

// Counts what islands send from site to site in a day, rounds with the parameter servers included,
// where links have limits.

#ifndef ATOLL_COORDINATOR_PLANNER_CLUSTER_ROUND_TRAFFIC_H_
#define ATOLL_COORDINATOR_PLANNER_CLUSTER_ROUND_TRAFFIC_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/cluster/traffic.h"
#include "coordinator/planner/islands.h"

namespace atl::plan {

class RoundTraffic {
 public:
  // They must outlive it.
  RoundTraffic(const Cluster& cluster, const Costs& costs, const Job& job,
               const IslandOptions& options)
      : cluster_(cluster), costs_(costs), job_(job), options_(options) {}

  // An island with devices of `part`. Its exchange with a server that has all takes so long, by the
  // server's site; null: no time.
  void Add(const Cluster& part, const Layout& layout, double step_s,
           std::function<double(const std::string&)> exchange_s = nullptr);

  // The share of the model that servers at each site have.
  using Servers = std::map<std::string, double>;

  // Checks that all of it keeps to the limits with the servers at these sites. What goes over one
  // is said with the rounds that would keep to it.
  absl::Status Check(const Servers& servers) const;
  // Counts a day's bytes, with rounds of the options' steps.
  SiteBytes CountDay(const Servers& servers) const;
  // Returns how near a limit rounds come, and how often they could be; empty: no limited link is
  // used.
  std::string Text(const Servers& servers) const;

 private:
  struct Island {
    std::map<std::string, double> owned;  // OwnedShares
    SiteBytes step;
    double step_s = 0;
    std::function<double(const std::string&)> exchange_s;
  };
  SiteBytes OfDay(const Servers& servers, int steps_per_round) const;
  // The fewest steps of a round with which the limits are kept; 0: none are.
  int LeastSteps(const Servers& servers) const;

  const Cluster& cluster_;
  const Costs& costs_;
  const Job& job_;
  const IslandOptions& options_;
  std::vector<Island> islands_;
};

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_CLUSTER_ROUND_TRAFFIC_H_

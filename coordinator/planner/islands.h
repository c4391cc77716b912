// One pipeline across slow links, or an island per site with outer rounds: which trains faster?
//
// Islands take their own steps and meet at a parameter server every `steps_per_round` steps. They
// never wait for each other's activations, but need more samples for the same loss. What counts is
// samples per second divided by that factor. The factor is a model, stated in the reason, and the
// user's to override:
//   samples for the same loss = (1 + cost_per_doubling * log2(islands)) times those of one island.

#ifndef ATOLL_COORDINATOR_PLANNER_ISLANDS_H_
#define ATOLL_COORDINATOR_PLANNER_ISLANDS_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/cluster/traffic.h"
#include "coordinator/planner/planner.h"

namespace atl::plan {

struct IslandOptions {
  int steps_per_round = 64;   // H; 0: as the links allow (common/protocol/round_length.h)
  bool balance_steps = true;  // slower islands make fewer of them in a round,
  int steps_min = 1;          // but at least so many, or all
  double grace_s = 10;        // a round waits so long for others after its first contribution
  double push_bytes_per_parameter = 2;
  double pull_bytes_per_parameter = 2;
  bool overlap = false;             // islands train on during an exchange
  double cost_per_doubling = 0.03;  // more samples for each doubling of the islands

  // How many steps of a round an island makes whose step takes so long.
  int ComputeStepsPerRound(double step_s, double fastest_step_s) const;

  // With H, where it is 0: of islands whose slowest exchange takes so long.
  IslandOptions WithSteps(double exchange_s, double fastest_step_s, double slowest_step_s) const;

  // Mean of a push and a pull.
  double bytes_per_parameter() const {
    return (push_bytes_per_parameter + pull_bytes_per_parameter) / 2;
  }
};

// An island's plan, and the devices that it is for.
struct IslandOfSite {
  std::string site;  // empty: there is one island only
  Cluster cluster;
  Plan plan;
};

struct IslandChoice {
  bool use_islands = false;  // an island per site; otherwise one plan for the whole cluster
  std::vector<IslandOfSite> islands;  // by site; a site without a plan takes no part
  double samples_per_s = 0;           // of all islands, before the factor
  double price_per_sample = 0;        // likewise
  double factor = 1;                  // more samples for the same loss
  int steps_per_round = 0;            // H
  double pushed_bytes_per_sample = 0, pulled_bytes_per_sample = 0;  // by an island in its rounds
  std::string server_site;  // where the parameter server belongs
  std::string traffic;      // how near links' limits it comes; empty: it has none
  SiteBytes day;            // what it sends from site to site
  std::string reason;

  const Plan& first() const { return islands[0].plan; }
};

// Counts what islands send from site to site in a day, rounds with the parameter servers included.
class RoundTraffic {
 public:
  // They must outlive it.
  RoundTraffic(const Cluster& cluster, const Costs& costs, const IslandOptions& options)
      : cluster_(cluster), costs_(costs), options_(options) {}

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
  const IslandOptions& options_;
  std::vector<Island> islands_;
};

// How a cluster is planned for a job: PlanJob, or more.
using PlanFunction = std::function<absl::StatusOr<Plan>(const Cluster&, const Job&)>;

// An island for each site; each takes steps of the whole batch, and all together make as many of
// them in a deadline. A round lasts until all islands have contributed to it, or the time of grace
// after the first has ended; one that takes longer contributes to a later round. Where links
// between sites have limits (Cluster::bytes_per_day), the server is put where steps and rounds of
// all islands together keep to them; H is never changed for that: the reason says how
// far it could be lowered, the error how far it must be raised. The error says why no site has a
// plan.
absl::StatusOr<IslandChoice> PlanIslands(const Cluster& cluster, const Costs& costs, const Job& job,
                                         const PlanFunction& plan, const IslandOptions& islands);

// One plan for the whole cluster, without islands. It has rounds too, with a server at one of its
// sites; limits as with PlanIslands.
absl::StatusOr<IslandChoice> PlanSingle(const Cluster& cluster, const Costs& costs, const Job& job,
                                        const PlanFunction& plan, const IslandOptions& islands);

// How the job's objective ranks training at such a rate and price of a sample, where so many times
// as many samples are needed. The less the better.
double ComputeSampleRank(const Job& job, double samples_per_s, double price, double factor);

// The devices of one site, and the links between them.
Cluster OnlySite(const Cluster& cluster, const std::string& site);

// Returns, among the sites that `allows` (null: all), the one that minimises the sum over sites of
// rounds per second * 2 * (bytes / bandwidth + latency): the time that all islands together spend
// on transfers to and from the server.
std::string PlaceServer(const Cluster& cluster, const std::map<std::string, double>& rounds_per_s,
                        double bytes,
                        const std::function<bool(const std::string&)>& allows = nullptr);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_ISLANDS_H_

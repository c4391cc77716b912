#include "coordinator/planner/islands.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "common/number_text.h"
#include "common/protocol/balanced_steps.h"
#include "common/protocol/round_length.h"
#include "common/status.h"
#include "coordinator/planner/cluster/objective.h"

namespace atl::plan {
namespace {

// There and back. Within the server's own site through a node's card.
double ExchangeSeconds(const Cluster& cluster, const std::string& from, const std::string& to,
                       double bytes) {
  return cluster.LinkBetweenSites(from, to).Seconds(bytes) +
         cluster.LinkBetweenSites(to, from).Seconds(bytes);
}

absl::Status Check(const IslandOptions& islands) {
  if (islands.steps_per_round >= 0 && islands.push_bytes_per_parameter > 0 &&
      islands.pull_bytes_per_parameter > 0 && islands.cost_per_doubling >= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "islands need steps_per_round of at least 0, positive bytes of pushes and pulls and a "
      "cost_per_doubling of at least 0");
}

std::string IslandsText(const IslandChoice& choice, const IslandOptions& options) {
  return absl::StrFormat(
      "%d islands train %s samples/s and need %s times the samples (%s more per doubling of "
      "the islands: a model, override it), rounds of %d steps%s%s, server at %s",
      choice.islands.size(), NumberText(choice.samples_per_s), NumberText(choice.factor, 3),
      NumberText(options.cost_per_doubling, 3), choice.steps_per_round,
      options.balance_steps ? " of the fastest" : "",
      options.steps_per_round > 0 ? "" : ", as the links allow", choice.server_site);
}

}  // namespace

int IslandOptions::ComputeStepsPerRound(double step_s, double fastest_step_s) const {
  if (!balance_steps) return steps_per_round;
  return static_cast<int>(BalancedSteps(steps_per_round, steps_min, fastest_step_s / step_s));
}

IslandOptions IslandOptions::WithSteps(double exchange_s, double fastest_step_s,
                                       double slowest_step_s) const {
  IslandOptions options = *this;
  if (steps_per_round > 0) return options;
  RoundTimes times;
  times.exchange_s = exchange_s;
  times.step_s = balance_steps ? fastest_step_s : slowest_step_s;
  times.overlap = overlap;
  if (balance_steps) times.slowest_over_fastest = fastest_step_s / slowest_step_s;
  options.steps_per_round = static_cast<int>(ComputeRoundSteps(times));
  return options;
}

double ComputeSampleRank(const Job& job, double samples_per_s, double price, double factor) {
  if (samples_per_s <= 0) return INFINITY;
  Objective sample = job.objective;
  sample.step_s_max /= job.global_batch;
  sample.price_max /= job.global_batch;
  return Rank(sample, {0, factor * price}, factor / samples_per_s);
}

Cluster OnlySite(const Cluster& cluster, const std::string& site) {
  return WithDevices(cluster, [&](const Device& device) { return device.site == site; });
}

std::string PlaceServer(const Cluster& cluster, const std::map<std::string, double>& rounds_per_s,
                        double bytes, const std::function<bool(const std::string&)>& allows) {
  std::string best;
  double least = INFINITY;
  for (const auto& [server, unused] : rounds_per_s) {
    if (allows && !allows(server)) continue;
    double busy = 0;
    for (const auto& [site, rounds] : rounds_per_s) {
      busy += rounds * ExchangeSeconds(cluster, site, server, bytes);
    }
    if (busy < least) {
      least = busy;
      best = server;
    }
  }
  return best;
}

namespace {

// How long each island's rounds last that take so long where it waits for no other.
std::map<std::string, double> RoundSeconds(std::map<std::string, double> own_s, double grace_s) {
  double first_s = INFINITY, last_s = 0;
  for (const auto& [site, seconds] : own_s) {
    first_s = std::min(first_s, seconds);
    last_s = std::max(last_s, seconds);
  }
  for (auto& [site, seconds] : own_s) {
    seconds = std::max(seconds, std::min(last_s, first_s + grace_s));
  }
  return own_s;
}

// With the server where islands that push equally often spend the least time.
double SlowestExchange(const Cluster& cluster, const std::vector<IslandOfSite>& islands,
                       double bytes) {
  std::map<std::string, double> equal;
  for (const IslandOfSite& island : islands) equal[island.site] = 1;
  const std::string server = PlaceServer(cluster, equal, bytes);
  double slowest_s = 0;
  for (const auto& [site, rounds] : equal) {
    slowest_s = std::max(slowest_s, ExchangeSeconds(cluster, site, server, bytes));
  }
  return slowest_s;
}

// Puts the server at the best site, and counts what all send with it there. That limits keep it
// from everywhere is said of the best without them.
absl::Status ChooseServer(const Cluster& cluster, const std::map<std::string, double>& rounds_per_s,
                          double bytes, const RoundTraffic& traffic, IslandChoice& choice) {
  const bool limited = !cluster.bytes_per_day.empty();
  choice.server_site = PlaceServer(cluster, rounds_per_s, bytes);
  const absl::Status kept = limited ? traffic.Check({{choice.server_site, 1}}) : absl::OkStatus();
  if (!kept.ok()) {
    choice.server_site = PlaceServer(cluster, rounds_per_s, bytes, [&](const std::string& site) {
      return traffic.Check({{site, 1}}).ok();
    });
    if (choice.server_site.empty()) return kept;
  }
  choice.day = traffic.CountDay({{choice.server_site, 1}});
  if (limited) choice.traffic = traffic.Text({{choice.server_site, 1}});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<IslandChoice> PlanSingle(const Cluster& cluster, const Costs& costs, const Job& job,
                                        const PlanFunction& make, const IslandOptions& islands) {
  ATOLL_RETURN_IF_ERROR(Check(islands));
  IslandChoice choice;
  ATOLL_ASSIGN_OR_RETURN(Plan plan, make(cluster, job));
  const double step_s = plan.outcome.step_s;
  const std::map<std::string, double> sites = OwnedShares(cluster, costs, plan.layout);
  const double bytes =
      static_cast<double>(costs.model().parameters()) * islands.bytes_per_parameter();
  double exchange_s = 0;
  const std::string nearest = PlaceServer(cluster, sites, 0);
  for (const auto& [site, share] : sites) {
    exchange_s = std::max(exchange_s, ExchangeSeconds(cluster, site, nearest, share * bytes));
  }
  const IslandOptions used = islands.WithSteps(exchange_s, step_s, step_s);
  choice.steps_per_round = used.steps_per_round;
  RoundTraffic traffic(cluster, costs, used);
  traffic.Add(cluster, plan.layout, step_s);
  ATOLL_RETURN_IF_ERROR(ChooseServer(cluster, sites, 0, traffic, choice));
  choice.samples_per_s = job.global_batch / step_s;
  choice.price_per_sample = plan.price / job.global_batch;
  choice.islands.push_back({"", cluster, std::move(plan)});
  choice.reason = absl::StrCat("one plan over all sites trains ", NumberText(choice.samples_per_s),
                               " samples/s");
  if (!choice.traffic.empty()) absl::StrAppend(&choice.reason, "; ", choice.traffic);
  return choice;
}

absl::StatusOr<IslandChoice> PlanIslands(const Cluster& cluster, const Costs& costs, const Job& job,
                                         const PlanFunction& make, const IslandOptions& islands) {
  ATOLL_RETURN_IF_ERROR(Check(islands));
  IslandChoice choice;
  choice.use_islands = true;
  const std::set<std::string> sites = cluster.ListSites();
  Job own = job;
  own.objective.step_s_max *= static_cast<double>(sites.size());
  const double bytes =
      static_cast<double>(costs.model().parameters()) * islands.bytes_per_parameter();
  double fastest_s = INFINITY, slowest_s = 0;
  absl::Status why_not_all = absl::OkStatus();
  for (const std::string& site : sites) {
    Cluster part = OnlySite(cluster, site);
    auto plan = make(part, own);
    if (!plan.ok()) {
      why_not_all.Update(Annotate(plan.status(), absl::StrCat("site \"", site, "\"")));
      continue;
    }
    fastest_s = std::min(fastest_s, plan->outcome.step_s);
    slowest_s = std::max(slowest_s, plan->outcome.step_s);
    choice.islands.push_back({site, std::move(part), *std::move(plan)});
  }
  if (choice.islands.empty()) return why_not_all;
  const IslandOptions used =
      islands.WithSteps(SlowestExchange(cluster, choice.islands, bytes), fastest_s, slowest_s);
  choice.steps_per_round = used.steps_per_round;
  RoundTraffic traffic(cluster, costs, used);
  std::map<std::string, double> train_s, rounds_per_s;
  for (const auto& [site, part, plan] : choice.islands) {
    const double step_s = plan.outcome.step_s;
    train_s[site] = step_s * used.ComputeStepsPerRound(step_s, fastest_s);
    traffic.Add(part, plan.layout, step_s, [&cluster, &site, bytes](const std::string& server) {
      return ExchangeSeconds(cluster, site, server, bytes);
    });
  }
  for (const auto& [site, seconds] : RoundSeconds(train_s, islands.grace_s)) {
    rounds_per_s[site] = 1 / seconds;
  }
  ATOLL_RETURN_IF_ERROR(ChooseServer(cluster, rounds_per_s, bytes, traffic, choice));
  std::map<std::string, double> own_s;
  for (const auto& [site, seconds] : train_s) {
    const double exchange_s = ExchangeSeconds(cluster, site, choice.server_site, bytes);
    // With overlap an exchange that is shorter than a round costs nothing.
    own_s[site] = islands.overlap ? std::max(seconds, exchange_s) : seconds + exchange_s;
  }
  const std::map<std::string, double> rounds_s = RoundSeconds(own_s, islands.grace_s);
  double price_per_s = 0;
  for (const auto& [site, part, plan] : choice.islands) {
    const int steps = used.ComputeStepsPerRound(plan.outcome.step_s, fastest_s);
    choice.samples_per_s += job.global_batch * steps / rounds_s.at(site);
    // While its devices wait for an exchange they are paid for.
    price_per_s += plan.price / plan.outcome.step_s;
  }
  choice.factor =
      1 + islands.cost_per_doubling * std::log2(static_cast<double>(choice.islands.size()));
  choice.price_per_sample = price_per_s / choice.samples_per_s;
  const double samples = job.global_batch * choice.steps_per_round;
  const auto parameters = static_cast<double>(costs.model().parameters());
  choice.pushed_bytes_per_sample = parameters * islands.push_bytes_per_parameter / samples;
  choice.pulled_bytes_per_sample = parameters * islands.pull_bytes_per_parameter / samples;
  choice.reason = IslandsText(choice, islands);
  if (!choice.traffic.empty()) absl::StrAppend(&choice.reason, "; ", choice.traffic);
  return choice;
}

}  // namespace atl::plan

#include "coordinator/planner/islands.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "common/status.h"
#include "coordinator/planner/objective.h"

namespace atl::plan {
namespace {

// There and back. Within the server's own site through a node's card.
double ExchangeSeconds(const Cluster& cluster, const std::string& from, const std::string& to,
                       double bytes) {
  return cluster.WireBetweenSites(from, to).Seconds(bytes) +
         cluster.WireBetweenSites(to, from).Seconds(bytes);
}

// Samples of the batch for each site, in proportion to its devices' speed, at least one.
std::map<std::string, int> BatchOfSites(const Cluster& cluster, const Costs& costs,
                                        const Job& job) {
  std::map<std::string, double> power;
  double total = 0;
  for (const Device& device : cluster.devices) {
    const StageCosts all = costs.For(cluster.types[device.type], 1, 1);
    const double speed = 1 / all.TotalSeconds(0, all.layers());
    power[device.site] += speed;
    total += speed;
  }
  std::map<std::string, int> batch;
  for (const auto& [site, p] : power) {
    batch[site] = std::max(1, static_cast<int>(std::lround(job.global_batch * p / total)));
  }
  return batch;
}

// Islands share a step's samples and its budget; or each takes steps of the whole batch, and all
// together make as many of them in a deadline.
Objective ObjectiveOfSite(const Job& job, int samples, size_t sites, bool whole_batch) {
  Objective own = job.objective;
  if (whole_batch) own.step_s_max *= static_cast<double>(sites);
  if (!whole_batch) own.price_max *= samples / static_cast<double>(job.global_batch);
  return own;
}

std::string Reason(const IslandChoice& choice, const IslandOptions& options) {
  if (choice.islands.empty()) {
    return absl::StrCat("no site alone holds the model; one plan over all sites trains ",
                        absl::StrFormat("%.4g samples/s", choice.single_samples_per_s));
  }
  std::string text = absl::StrFormat(
      "%d islands train %.4g samples/s and need %.3g times the samples (%.3g more per doubling of "
      "the islands: a model, override it), rounds of %d steps, server at %s; ",
      choice.islands.size(), choice.islands_samples_per_s, choice.islands_factor,
      options.cost_per_doubling, options.steps_per_round, choice.server_site);
  if (!choice.single.ok()) {
    return absl::StrCat(text, "one plan over all sites does not fit: ",
                        std::string(choice.single.status().message()));
  }
  return absl::StrCat(text, absl::StrFormat("one plan over all sites trains %.4g samples/s",
                                            choice.single_samples_per_s));
}

}  // namespace

double RankOfSample(const Job& job, double samples_per_s, double price, double factor) {
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
                        double bytes) {
  std::string best;
  double least = INFINITY;
  for (const auto& [server, unused] : rounds_per_s) {
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

absl::StatusOr<IslandChoice> ChooseIslands(const Cluster& cluster, const Costs& costs,
                                           const Job& job, const PlanFunction& make,
                                           const IslandOptions& islands) {
  if (islands.steps_per_round < 1 || !(islands.bytes_per_parameter > 0) ||
      !(islands.cost_per_doubling >= 0)) {
    return absl::InvalidArgumentError(
        "islands need steps_per_round of at least 1, a positive bytes_per_parameter and a "
        "cost_per_doubling of at least 0");
  }
  IslandChoice choice;
  choice.single = make(cluster, job);
  if (choice.single.ok()) {
    choice.single_samples_per_s = job.global_batch / choice.single->outcome.step_s;
    choice.single_price = choice.single->price / job.global_batch;
  }
  absl::Status why_not = choice.single.status();
  std::map<std::string, int> batch = BatchOfSites(cluster, costs, job);
  if (islands.whole_batch) {
    for (auto& [site, samples] : batch) samples = job.global_batch;
  }
  std::map<std::string, double> rounds_per_s;
  for (const auto& [site, samples] : batch) {
    Job own = job;
    own.global_batch = samples;
    own.objective = ObjectiveOfSite(job, samples, batch.size(), islands.whole_batch);
    auto plan = make(OnlySite(cluster, site), own);
    if (!plan.ok()) {
      if (why_not.ok()) why_not = Annotate(plan.status(), absl::StrCat("site \"", site, "\""));
      continue;
    }
    rounds_per_s[site] = 1 / (plan->outcome.step_s * islands.steps_per_round);
    choice.islands.emplace(site, *std::move(plan));
  }
  if (!choice.single.ok() && choice.islands.empty()) return why_not;
  const double bytes =
      static_cast<double>(costs.model().parameters()) * islands.bytes_per_parameter;
  choice.server_site = PlaceServer(cluster, rounds_per_s, bytes);
  double price_per_s = 0;
  for (const auto& [site, plan] : choice.islands) {
    const double train_s = plan.outcome.step_s * islands.steps_per_round;
    const double exchange_s = ExchangeSeconds(cluster, site, choice.server_site, bytes);
    // With overlap an exchange that is shorter than a round costs nothing.
    const double round_s = islands.overlap ? std::max(train_s, exchange_s) : train_s + exchange_s;
    choice.islands_samples_per_s += batch.at(site) * islands.steps_per_round / round_s;
    // While its devices wait for an exchange they are paid for.
    price_per_s += plan.price / plan.outcome.step_s;
  }
  if (!choice.islands.empty()) {
    choice.islands_factor =
        1 + islands.cost_per_doubling * std::log2(static_cast<double>(choice.islands.size()));
  }
  if (!choice.islands.empty()) choice.islands_price = price_per_s / choice.islands_samples_per_s;
  choice.use_islands =
      RankOfSample(job, choice.islands_samples_per_s, choice.islands_price, choice.islands_factor) <
      RankOfSample(job, choice.single_samples_per_s, choice.single_price, 1);
  choice.reason = Reason(choice, islands);
  return choice;
}

}  // namespace atl::plan

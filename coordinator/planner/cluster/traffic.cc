#include "coordinator/planner/cluster/traffic.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bytes_text.h"
#include "coordinator/planner/islands.h"
#include "coordinator/planner/replica_problem.h"

namespace atl::plan {
namespace {

const std::string& GetSite(const Cluster& cluster, int device) {
  return NetworkSite(cluster.devices[device]);
}

// Activations in one direction and their gradients in the other.
void VisitStageLinks(const Costs& costs, const Layout& layout, const SendVisitor& visit) {
  for (const Replica& replica : layout.replicas) {
    for (size_t s = 0; s + 1 < replica.stages.size(); ++s) {
      const int from = replica.stages[s].devices[0], to = replica.stages[s + 1].devices[0];
      if (from == to) continue;
      const double bytes =
          replica.micro_batches *
          static_cast<double>(StageLinkBytes(costs, replica.stages[s], layout.micro_batch));
      visit(from, to, bytes);
      visit(to, from, bytes);
    }
  }
}

void VisitRing(const std::vector<int>& members, double bytes, const SendVisitor& visit) {
  const auto n = static_cast<double>(members.size());
  for (size_t i = 0; i < members.size() && n > 1; ++i) {
    visit(members[i], members[(i + 1) % members.size()], 2 * (n - 1) / n * bytes);
  }
}

// `holders`: of some layers, whose gradients are so many bytes, one of each replica.
void VisitAllReduce(const Cluster& cluster, const std::vector<int>& holders, double bytes,
                    const SendVisitor& visit) {
  std::map<std::string, std::vector<int>> sites;
  for (const int holder : holders) sites[GetSite(cluster, holder)].push_back(holder);
  for (const auto& [site, members] : sites) VisitRing(members, bytes, visit);
  for (const auto& [from, members] : sites) {
    // The sums of what the other site owns, and the results of what is owned here.
    for (const auto& [to, others] : sites) {
      const auto both = static_cast<double>(members.size() + others.size());
      if (from != to)
        visit(members[0], others[0], both * bytes / static_cast<double>(holders.size()));
    }
  }
}

std::string FormatBytes(double bytes) { return BytesText(std::llround(std::min(bytes, 9e18))); }

constexpr int kStepsMost = 1 << 20;  // outer.steps_per_round

std::string FindNetworkSite(const Cluster& cluster, const std::string& site) {
  for (const Device& device : cluster.devices) {
    if (device.site == site) return NetworkSite(device);
  }
  return site;
}

}  // namespace

void VisitSends(const Cluster& cluster, const Costs& costs, const Layout& layout,
                const SendVisitor& visit) {
  VisitStageLinks(costs, layout, visit);
  if (layout.replicas.size() < 2) return;
  const std::vector<Layer>& layers = costs.model().layers;
  std::vector<size_t> stage(layout.replicas.size(), 0);
  for (size_t l = 0; l < layers.size(); ++l) {
    std::vector<int> holders;
    for (size_t r = 0; r < layout.replicas.size(); ++r) {
      const std::vector<Stage>& stages = layout.replicas[r].stages;
      while (stages[stage[r]].last_layer <= static_cast<int>(l)) ++stage[r];
      holders.push_back(stages[stage[r]].devices[0]);
    }
    VisitAllReduce(cluster, holders, static_cast<double>(layers[l].parameters) * kGradientBytes,
                   visit);
  }
}

SiteBytes CountStepBytes(const Cluster& cluster, const Costs& costs, const Layout& layout) {
  SiteBytes sent;
  VisitSends(cluster, costs, layout, [&](int from, int to, double bytes) {
    const std::string &a = GetSite(cluster, from), &b = GetSite(cluster, to);
    if (a != b && bytes > 0) sent[{a, b}] += bytes;
  });
  return sent;
}

std::map<std::string, double> OwnedShares(const Cluster& cluster, const Costs& costs,
                                          const Layout& layout) {
  std::map<std::string, double> shares;
  const auto all = static_cast<double>(costs.model().parameters());
  const auto replicas = static_cast<double>(layout.replicas.size());
  for (const Replica& replica : layout.replicas) {
    for (const Stage& stage : replica.stages) {
      double parameters = 0;
      for (int l = stage.first_layer; l < stage.last_layer; ++l) {
        parameters += static_cast<double>(costs.model().layers[l].parameters);
      }
      shares[GetSite(cluster, stage.devices[0])] += parameters / all / replicas;
    }
  }
  return shares;
}

absl::Status CheckLimits(const Cluster& cluster, const SiteBytes& per_day) {
  double worst = 1;
  absl::Status kept = absl::OkStatus();
  for (const auto& [sites, limit] : cluster.bytes_per_day) {
    const auto sent = per_day.find(sites);
    if (sent == per_day.end() || sent->second <= worst * limit) continue;
    worst = sent->second / limit;
    kept = absl::FailedPreconditionError(absl::StrCat(FormatBytes(sent->second),
                                                      " a day would go from ", sites.first, " to ",
                                                      sites.second, ", of ", FormatBytes(limit),
                                                      " allowed (bytes_per_day of "
                                                      "layout.link_limits or of the cluster)"));
  }
  return kept;
}

absl::Status CheckTraffic(const Cluster& cluster, const Costs& costs, const Layout& layout,
                          double step_s) {
  if (cluster.bytes_per_day.empty()) return absl::OkStatus();
  SiteBytes sent = CountStepBytes(cluster, costs, layout);
  for (auto& [sites, bytes] : sent) bytes *= kSecondsPerDay / step_s;
  return CheckLimits(cluster, sent);
}

void RoundTraffic::Add(const Cluster& part, const Layout& layout, double step_s,
                       std::function<double(const std::string&)> exchange_s) {
  islands_.push_back({OwnedShares(part, costs_, layout), CountStepBytes(part, costs_, layout),
                      step_s, std::move(exchange_s)});
}

SiteBytes RoundTraffic::OfDay(const Servers& servers, int steps_per_round) const {
  double fastest_s = INFINITY, shortest_round_s = INFINITY;
  std::vector<double> rounds_s;
  for (const Island& island : islands_) {
    const double train_s = steps_per_round * island.step_s;
    const double exchange_s = island.exchange_s ? island.exchange_s(servers.begin()->first) : 0;
    rounds_s.push_back(options_.overlap ? std::max(train_s, exchange_s) : train_s + exchange_s);
    fastest_s = std::min(fastest_s, island.step_s);
    shortest_round_s = std::min(shortest_round_s, rounds_s.back());
  }
  const auto parameters = static_cast<double>(costs_.model().parameters());
  IslandOptions options = options_;
  options.steps_per_round = steps_per_round;
  SiteBytes day;
  for (size_t i = 0; i < islands_.size(); ++i) {
    const Island& island = islands_[i];
    // Slower islands make fewer steps in the fastest one's round.
    const double round_s = options_.balance_steps ? shortest_round_s : rounds_s[i];
    const double steps = options.ComputeStepsPerRound(island.step_s, fastest_s);
    const double rounds = kSecondsPerDay / std::max(round_s, steps * island.step_s);
    for (const auto& [sites, bytes] : island.step) day[sites] += rounds * steps * bytes;
    for (const auto& [site, owned] : island.owned) {
      for (const auto& [server, share] : servers) {
        const std::string at = FindNetworkSite(cluster_, server);
        if (site == at || at.empty()) continue;
        const double each = rounds * owned * share * parameters;
        day[{site, at}] += each * options_.push_bytes_per_parameter;
        day[{at, site}] += each * options_.pull_bytes_per_parameter;
      }
    }
  }
  return day;
}

SiteBytes RoundTraffic::CountDay(const Servers& servers) const {
  return OfDay(servers, options_.steps_per_round);
}

int RoundTraffic::LeastSteps(const Servers& servers) const {
  const auto keeps = [&](int steps) { return CheckLimits(cluster_, OfDay(servers, steps)).ok(); };
  if (!keeps(kStepsMost)) return 0;
  int low = 1, high = kStepsMost;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    keeps(middle) ? high = middle : low = middle + 1;
  }
  return low;
}

absl::Status RoundTraffic::Check(const Servers& servers) const {
  const absl::Status kept = CheckLimits(cluster_, OfDay(servers, options_.steps_per_round));
  if (kept.ok()) return kept;
  const int least = LeastSteps(servers);
  return absl::FailedPreconditionError(absl::StrCat(
      "rounds of ", options_.steps_per_round, " steps with parameter servers at ",
      absl::StrJoin(
          servers, ", ",
          [](std::string* out, const auto& server) { absl::StrAppend(out, server.first); }),
      ": ", kept.message(),
      least > 0 ? absl::StrCat("; outer.steps_per_round = ", least, " or more would keep to it")
                : "; no outer.steps_per_round keeps to it: allow more, leave out the limit, or pin "
                  "sites (layout.sites)"));
}

std::string RoundTraffic::Text(const Servers& servers) const {
  const SiteBytes day = OfDay(servers, options_.steps_per_round);
  const std::pair<const std::pair<std::string, std::string>, double>* nearest = nullptr;
  double most = 0;
  for (const auto& limited : cluster_.bytes_per_day) {
    const auto sent = day.find(limited.first);
    if (sent == day.end() || sent->second / limited.second <= most) continue;
    most = sent->second / limited.second;
    nearest = &limited;
  }
  if (nearest == nullptr) return "";
  return absl::StrCat(FormatBytes(most * nearest->second), " a day from ", nearest->first.first,
                      " to ", nearest->first.second, " with rounds of ", options_.steps_per_round,
                      " steps, of ", FormatBytes(nearest->second),
                      " allowed (bytes_per_day), which outer.steps_per_round = ",
                      LeastSteps(servers), " would keep to");
}

}  // namespace atl::plan

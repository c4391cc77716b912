#include "coordinator/planner/cluster/traffic.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"
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

std::string Text(double bytes) { return BytesText(std::llround(std::min(bytes, 9e18))); }

}  // namespace

void VisitSends(const Cluster& cluster, const Costs& costs, const Job& job, const Layout& layout,
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
    VisitAllReduce(cluster, holders, static_cast<double>(layers[l].parameters) * job.gradient_bytes,
                   visit);
  }
}

SiteBytes CountStepBytes(const Cluster& cluster, const Costs& costs, const Job& job,
                         const Layout& layout) {
  SiteBytes sent;
  VisitSends(cluster, costs, job, layout, [&](int from, int to, double bytes) {
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
    kept = absl::FailedPreconditionError(absl::StrCat(Text(sent->second), " a day would go from ",
                                                      sites.first, " to ", sites.second, ", of ",
                                                      Text(limit),
                                                      " allowed (bytes_per_day of "
                                                      "layout.link_limits or of the cluster)"));
  }
  return kept;
}

absl::Status CheckTraffic(const Cluster& cluster, const Costs& costs, const Job& job,
                          const Layout& layout, double step_s) {
  if (cluster.bytes_per_day.empty()) return absl::OkStatus();
  SiteBytes sent = CountStepBytes(cluster, costs, job, layout);
  for (auto& [sites, bytes] : sent) bytes *= kSecondsPerDay / step_s;
  return CheckLimits(cluster, sent);
}

}  // namespace atl::plan

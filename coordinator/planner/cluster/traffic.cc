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

const std::string& GetSite(const Cluster& cluster, const Stage& stage) {
  return NetworkSite(cluster.devices[stage.devices[0]]);
}

void Add(const std::string& from, const std::string& to, double bytes, SiteBytes& sent) {
  if (from != to && bytes > 0) sent[{from, to}] += bytes;
}

void AddStageLinks(const Cluster& cluster, const Costs& costs, const Layout& layout,
                   SiteBytes& sent) {
  for (const Replica& replica : layout.replicas) {
    for (size_t s = 0; s + 1 < replica.stages.size(); ++s) {
      const std::string& from = GetSite(cluster, replica.stages[s]);
      const std::string& to = GetSite(cluster, replica.stages[s + 1]);
      const double bytes =
          replica.micro_batches *
          static_cast<double>(StageLinkBytes(costs, replica.stages[s], layout.micro_batch));
      Add(from, to, bytes, sent);
      Add(to, from, bytes, sent);
    }
  }
}

// The sites of the replicas' holders of some layers, whose gradients are so many bytes.
void AddAllReduce(const std::vector<std::string>& holders, Reduction reduction, double bytes,
                  SiteBytes& sent) {
  const auto ring_share = [](size_t n) { return 2.0 * static_cast<double>(n - 1) / n; };
  const size_t n = holders.size();
  if (reduction == Reduction::kRing) {
    for (size_t r = 0; r < n; ++r) {
      Add(holders[r], holders[(r + 1) % n], ring_share(n) * bytes, sent);
    }
    return;
  }
  std::map<std::string, int> members;
  for (const std::string& site : holders) ++members[site];
  for (auto from = members.begin(); from != members.end(); ++from) {
    if (reduction == Reduction::kHierarchical) {
      const auto next = std::next(from) == members.end() ? members.begin() : std::next(from);
      Add(from->first, next->first, ring_share(members.size()) * bytes, sent);
      continue;
    }
    // The sums of what the other site owns, and the results of what is owned here.
    for (const auto& [to, count] : members) {
      Add(from->first, to, (from->second + count) * bytes / static_cast<double>(n), sent);
    }
  }
}

void AddAllReduces(const Cluster& cluster, const Costs& costs, const Job& job, const Layout& layout,
                   SiteBytes& sent) {
  if (layout.replicas.size() < 2) return;
  const Reduction reduction = layout.reduction.value_or(job.reduction);
  const std::vector<Layer>& layers = costs.model().layers;
  std::vector<size_t> stage(layout.replicas.size(), 0);
  for (size_t l = 0; l < layers.size(); ++l) {
    std::vector<std::string> holders;
    for (size_t r = 0; r < layout.replicas.size(); ++r) {
      const std::vector<Stage>& stages = layout.replicas[r].stages;
      while (stages[stage[r]].last_layer <= static_cast<int>(l)) ++stage[r];
      holders.push_back(GetSite(cluster, stages[stage[r]]));
    }
    AddAllReduce(holders, reduction, static_cast<double>(layers[l].parameters) * job.gradient_bytes,
                 sent);
  }
}

std::string Text(double bytes) { return BytesText(std::llround(std::min(bytes, 9e18))); }

}  // namespace

SiteBytes CountStepBytes(const Cluster& cluster, const Costs& costs, const Job& job,
                         const Layout& layout) {
  SiteBytes sent;
  AddStageLinks(cluster, costs, layout, sent);
  AddAllReduces(cluster, costs, job, layout, sent);
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
      shares[GetSite(cluster, stage)] += parameters / all / replicas;
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

#include "coordinator/planning/island_scope.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status.h"
#include "coordinator/planner/islands.h"
#include "coordinator/planning/planning.h"

namespace atl {
namespace {

// Every worker as a site of its own; what joins two of them is what was measured.
plan::Cluster ByWorker(const plan::Cluster& cluster) {
  plan::Cluster own = cluster;
  for (plan::Device& device : own.devices) device.site = device.node;
  own.wan_wire = cluster.site_wire;
  own.site_to_site.clear();
  own.site_to_site.insert(own.node_to_node.begin(), own.node_to_node.end());
  return own;
}

struct Option {
  IslandExtent extent = IslandExtent::kAll;
  std::string name;
  size_t islands = 1;
  double samples_per_s = 0;  // 0: none fits
  double price = 0;          // of a sample
  double factor = 1;

  double value() const { return samples_per_s / factor; }
};

// The best of those that the job allows, or null; `compared` says how they compare.
const Option* BestOf(const std::vector<Option>& choices, const OuterSpec& outer,
                     const plan::Job& job, std::string* compared) {
  const Option* best = nullptr;
  double best_rank = 0;
  for (const Option& option : choices) {
    const auto count = static_cast<int64_t>(option.islands);
    const bool allowed = count >= outer.min_islands && count <= outer.max_islands;
    absl::StrAppend(compared, compared->empty() ? "" : "; ", option.name, ": ");
    if (option.samples_per_s <= 0) {
      *compared += "does not fit";
      continue;
    }
    absl::StrAppendFormat(compared, "%.4g samples/s", option.samples_per_s);
    if (option.islands > 1) {
      absl::StrAppendFormat(compared, " by %d islands, %.4g worth", option.islands, option.value());
    }
    if (!allowed) {
      absl::StrAppend(compared, ", but outer allows ", outer.min_islands, " to ", outer.max_islands,
                      " islands");
      continue;
    }
    if (option.price > 0) absl::StrAppendFormat(compared, ", %.4g a sample", option.price);
    const double rank = plan::RankOfSample(job, option.samples_per_s, option.price, option.factor);
    if (best != nullptr && rank >= best_rank) continue;
    best = &option;
    best_rank = rank;
  }
  return best;
}

}  // namespace

absl::StatusOr<ExtentChoice> ChooseExtent(const PlanRequest& request) {
  ATOLL_ASSIGN_OR_RETURN(const PlanningInput input, MakePlanningInput(request));
  const OuterSpec& outer = request.spec.outer;
  plan::IslandOptions islands;
  islands.steps_per_round = static_cast<int>(outer.steps_per_round);
  constexpr int64_t kMany = 1 << 20;
  islands.bytes_per_parameter = static_cast<double>(EncodedBytes(outer.push_encoding, kMany) +
                                                    EncodedBytes(outer.pull_encoding, kMany)) /
                                (2 * kMany);
  islands.overlap = outer.overlap == Overlap::kCarry;
  islands.whole_batch = true;
  const plan::PlanFunction make = [&](const plan::Cluster& cluster,
                                      const plan::Job& job) -> absl::StatusOr<plan::Plan> {
    PlanningInput part = input;
    part.cluster = cluster;
    part.job = job;
    ATOLL_ASSIGN_OR_RETURN(FoundPlan found, FindPlan(request, part));
    return std::move(found.plan);
  };
  std::set<std::string> sites, workers;
  for (const plan::Device& device : input.cluster.devices) {
    sites.insert(device.site);
    workers.insert(device.node);
  }
  std::vector<Option> choices;
  ATOLL_ASSIGN_OR_RETURN(const plan::IslandChoice by_site,
                         plan::ChooseIslands(input.cluster, input.costs, input.job, make, islands));
  choices.push_back(
      {IslandExtent::kAll, "one of all", 1, by_site.single_samples_per_s, by_site.single_price, 1});
  if (sites.size() > 1) {
    choices.push_back({IslandExtent::kSite, "one for each site", by_site.islands.size(),
                       by_site.islands_samples_per_s, by_site.islands_price,
                       by_site.islands_factor});
  }
  if (workers.size() > sites.size()) {
    const auto by_worker =
        plan::ChooseIslands(ByWorker(input.cluster), input.costs, input.job, make, islands);
    if (by_worker.ok()) {
      choices.push_back({IslandExtent::kWorker, "one for each worker", by_worker->islands.size(),
                         by_worker->islands_samples_per_s, by_worker->islands_price,
                         by_worker->islands_factor});
    }
  }
  std::string compared;
  const Option* best = BestOf(choices, outer, input.job, &compared);
  if (best == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("no number of islands will do: ", compared));
  }
  absl::StrAppendFormat(&compared, " (a model: %.3g more samples for each doubling of the islands)",
                        islands.cost_per_doubling);
  if (!input.assumptions.empty()) absl::StrAppend(&compared, "; ", input.assumptions);
  return ExtentChoice{best->extent, std::move(compared)};
}

}  // namespace atl

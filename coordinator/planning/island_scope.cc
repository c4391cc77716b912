#include "coordinator/planning/island_scope.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/number_text.h"
#include "common/protocol/fragments.h"
#include "common/status.h"
#include "coordinator/planner/islands.h"
#include "coordinator/planning/planning.h"

namespace atl {
namespace {

// A node by its name and site: sites may have nodes of one name.
using SiteNode = std::pair<NodeId, std::string>;

SiteNode GetSiteNode(const plan::Device& device) { return {device.node, device.site}; }

// Nodes as sites of the names that they have in `site_of`, others left out. What joins two such
// sites is what joins their first devices; what joins the nodes of one is what did before.
plan::Cluster Regrouped(const plan::Cluster& cluster,
                        const std::map<SiteNode, std::string>& site_of) {
  plan::Cluster made = plan::WithDevices(
      cluster, [&](const plan::Device& device) { return site_of.contains(GetSiteNode(device)); });
  const plan::Cluster before = made;
  std::map<std::string, int> first;
  for (size_t d = 0; d < made.devices.size(); ++d) {
    plan::Device& device = made.devices[d];
    device.network_site = plan::NetworkSite(device);
    device.site = site_of.at(GetSiteNode(device));
    first.try_emplace(device.site, static_cast<int>(d));
  }
  made.site_to_site.clear();
  for (const auto& [from, a] : first) {
    for (const auto& [to, b] : first) {
      const std::string& site = before.devices[a].site;
      made.site_to_site[{from, to}] =
          from == to ? before.LinkBetweenSites(site, site) : before.LinkBetween(a, b);
    }
  }
  return made;
}

// Every worker as a site of its own.
std::map<SiteNode, std::string> SitesByWorker(const plan::Cluster& cluster) {
  std::map<NodeId, std::set<std::string>> sites;
  for (const plan::Device& device : cluster.devices) sites[device.node].insert(device.site);
  std::map<SiteNode, std::string> own;
  for (const plan::Device& device : cluster.devices) {
    const bool unique = sites.at(device.node).size() == 1;
    own[GetSiteNode(device)] = unique ? device.node : absl::StrCat(device.site, "/", device.node);
  }
  return own;
}

// For so many plans.
plan::PlanFunction MakePlanFunction(const PlanRequest& request, const PlanningInput& input,
                                    size_t plans, const EnoughFunction& make_enough) {
  return [&, left = plans](const plan::Cluster& cluster,
                           const plan::Job& job) mutable -> absl::StatusOr<plan::Plan> {
    PlanningInput part = input;
    part.cluster = cluster;
    part.job = job;
    PlanRequest own = request;
    if (make_enough) own.enough = make_enough(left > 1 ? left-- : 1);
    ATOLL_ASSIGN_OR_RETURN(FoundPlan found, FindPlan(own, part));
    return std::move(found.plan);
  };
}

struct Option {
  IslandScope island_scope = IslandScope::kAll;
  std::string name;
  size_t islands = 1;
  plan::Cluster cluster;  // its sites are the islands
  absl::StatusOr<plan::IslandChoice> choice;
};

// The best of those that the job allows, or null; `compared` says how they compare. The choices are
// in the order of their numbers of islands: a later one is taken if it is better by more than
// kWorthMoreIslands.
Option* SelectBestOption(std::vector<Option>& choices, const OuterSpec& outer, const plan::Job& job,
                         std::string* compared) {
  Option* best = nullptr;
  double best_rank = 0;
  for (Option& option : choices) {
    const auto count = static_cast<int64_t>(option.islands);
    const bool allowed = count >= outer.min_islands && count <= outer.max_islands;
    absl::StrAppend(compared, compared->empty() ? "" : "; ", option.name, ": ");
    if (!allowed) {
      absl::StrAppend(compared, option.islands, " islands, but outer allows ", outer.min_islands,
                      " to ", outer.max_islands);
      continue;
    }
    if (!option.choice.ok()) {
      absl::StrAppend(compared, option.choice.status().message());
      continue;
    }
    const plan::IslandChoice& choice = *option.choice;
    absl::StrAppend(compared, NumberText(choice.samples_per_s), " samples/s");
    if (option.islands > 1) {
      absl::StrAppend(compared, " by ", option.islands, " islands, ",
                      NumberText(choice.samples_per_s / choice.factor), " worth");
    }
    if (choice.price_per_sample > 0) {
      absl::StrAppend(compared, ", ", NumberText(choice.price_per_sample), " a sample");
    }
    const auto rank_at = [&](double factor) {
      return plan::ComputeSampleRank(job, choice.samples_per_s, choice.price_per_sample, factor);
    };
    const double rank = rank_at(choice.factor);
    if (best != nullptr && rank_at(kWorthMoreIslands * choice.factor) >= best_rank) {
      if (rank < best_rank) {
        absl::StrAppendFormat(compared, ", at most %.0f%% better than fewer islands",
                              100 * (kWorthMoreIslands - 1));
      }
      continue;
    }
    best = &option;
    best_rank = rank;
  }
  return best;
}

// All scopes that differ, compared.
absl::StatusOr<ScopePlans> Compare(const PlanRequest& request, const PlanningInput& input,
                                   const plan::IslandOptions& islands,
                                   const EnoughFunction& make_enough) {
  const plan::Cluster& cluster = input.cluster;
  const std::set<std::string> sites = cluster.ListSites();
  const std::map<SiteNode, std::string> workers = SitesByWorker(cluster);
  const bool may_be_alone = std::ssize(workers) <= request.spec.outer.max_islands;
  const plan::PlanFunction make = MakePlanFunction(
      request, input, 1 + sites.size() + (may_be_alone ? workers.size() : 0), make_enough);
  std::vector<Option> options;
  const auto add = [&](IslandScope island_scope, const char* name, size_t count,
                       const plan::Cluster& grouped) {
    // More than are allowed are not planned for.
    absl::StatusOr<plan::IslandChoice> choice = absl::UnknownError("");
    if (island_scope == IslandScope::kAll) {
      choice = plan::PlanSingle(grouped, input.costs, input.job, make, islands);
    } else if (static_cast<int64_t>(count) <= request.spec.outer.max_islands) {
      choice = plan::PlanIslands(grouped, input.costs, input.job, make, islands);
    }
    if (choice.ok()) count = choice->islands.size();
    options.push_back({island_scope, name, count, grouped, std::move(choice)});
  };
  add(IslandScope::kAll, "one of all", 1, cluster);
  if (sites.size() > 1) add(IslandScope::kSite, "one for each site", sites.size(), cluster);
  if (workers.size() > sites.size()) {
    add(IslandScope::kWorker, "one for each worker", workers.size(),
        may_be_alone ? Regrouped(cluster, workers) : cluster);
  }
  std::string compared;
  Option* best = SelectBestOption(options, request.spec.outer, input.job, &compared);
  if (best == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("no number of islands will do: ", compared));
  }
  absl::StrAppend(&compared, " (a model: ", NumberText(islands.cost_per_doubling),
                  " more samples for each doubling of the islands)");
  auto& choice = best->choice;
  if (!choice->traffic.empty()) absl::StrAppend(&compared, "; ", choice->traffic);
  choice->reason = std::move(compared);
  return ScopePlans{best->island_scope, std::move(best->cluster), *std::move(choice)};
}

}  // namespace

plan::IslandOptions ToIslandOptions(const JobSpec& spec) {
  const OuterSpec& outer = spec.outer;
  constexpr int64_t kMany = 1 << 20;
  plan::IslandOptions islands;
  islands.steps_per_round = static_cast<int>(outer.steps_per_round);
  islands.balance_steps = outer.balance_steps;
  islands.steps_min = static_cast<int>(outer.steps_min);
  islands.grace_s = outer.wait_for_all ? INFINITY : outer.grace_seconds;
  const auto bytes = [](Encoding encoding) {
    return static_cast<double>(EncodedBytes(encoding, kMany)) / kMany;
  };
  const double moments = MomentsBytesPerElement(outer, outer.steps_per_round);
  islands.push_bytes_per_parameter = bytes(outer.push_encoding) + moments;
  islands.pull_bytes_per_parameter = bytes(outer.pull_encoding) + moments;
  islands.overlap = outer.overlap == Overlap::kCarry;
  return islands;
}

std::vector<std::vector<size_t>> AssignIslands(const std::vector<ScopeWorker>& workers,
                                               const JobSpec& spec, IslandScope island_scope) {
  struct Island {
    std::string group;
    bool shared = false;
    std::vector<size_t> members;
  };
  std::vector<Island> islands;
  const auto most = static_cast<size_t>(spec.layout.workers_per_island);
  for (size_t w = 0; w < workers.size(); ++w) {
    const bool shares = island_scope != IslandScope::kWorker && workers[w].reachable;
    const std::string group = island_scope == IslandScope::kSite ? workers[w].site : "";
    const auto open = std::find_if(islands.begin(), islands.end(), [&](const Island& island) {
      return shares && island.shared && island.group == group &&
             (most == 0 || island.members.size() < most);
    });
    if (open != islands.end()) {
      open->members.push_back(w);
    } else if (std::ssize(islands) < spec.outer.max_islands) {
      islands.push_back({group, shares, {w}});
    }
  }
  std::vector<std::vector<size_t>> island_workers;
  for (Island& island : islands) island_workers.push_back(std::move(island.members));
  return island_workers;
}

namespace {

// The devices that take part; the sites are the islands. Workers in the order of their names, as
// live.
plan::Cluster GroupByIsland(const plan::Cluster& cluster, const JobSpec& spec,
                            IslandScope island_scope) {
  const std::map<SiteNode, std::string> own = SitesByWorker(cluster);
  std::vector<SiteNode> worker_keys;
  std::vector<ScopeWorker> workers;
  for (const auto& [worker_key, name] : own) {
    worker_keys.push_back(worker_key);
    workers.push_back({worker_key.second});
  }
  std::map<SiteNode, std::string> island_names;
  std::map<std::string, int> islands_of;  // of a site
  for (const std::vector<size_t>& island : AssignIslands(workers, spec, island_scope)) {
    const std::string& site = workers[island[0]].site;
    const int number = ++islands_of[site];
    std::string name = number == 1 ? site : absl::StrCat(site, " #", number);
    if (island_scope == IslandScope::kWorker) name = own.at(worker_keys[island[0]]);
    for (const size_t w : island) island_names[worker_keys[w]] = name;
  }
  return Regrouped(cluster, island_names);
}

}  // namespace

absl::StatusOr<ScopePlans> PlanScope(const PlanRequest& request, const PlanningInput& input,
                                     IslandScope island_scope, const plan::IslandOptions& islands,
                                     const EnoughFunction& make_enough) {
  if (island_scope == IslandScope::kAuto) return Compare(request, input, islands, make_enough);
  const JobSpec& spec = request.spec;
  if (island_scope == IslandScope::kAll) {
    // A plan that the job brings along says which they are.
    if (spec.layout.workers_per_island > 0 && spec.layout.plan.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layout.workers_per_island = ", spec.layout.workers_per_island, " with layout.island = ",
          "\"all\": which workers share an island is known of those that run; use --live, or ",
          "layout.island = \"site\""));
    }
    ATOLL_ASSIGN_OR_RETURN(
        plan::IslandChoice choice,
        plan::PlanSingle(input.cluster, input.costs, input.job,
                         MakePlanFunction(request, input, 1, make_enough), islands));
    return ScopePlans{island_scope, input.cluster, std::move(choice)};
  }
  plan::Cluster cluster = GroupByIsland(input.cluster, spec, island_scope);
  ATOLL_ASSIGN_OR_RETURN(
      plan::IslandChoice choice,
      plan::PlanIslands(cluster, input.costs, input.job,
                        MakePlanFunction(request, input, cluster.ListSites().size(), make_enough),
                        islands));
  return ScopePlans{island_scope, std::move(cluster), std::move(choice)};
}

absl::StatusOr<IslandScopeChoice> ChooseIslandScope(const PlanRequest& request) {
  ATOLL_ASSIGN_OR_RETURN(const PlanningInput input, MakePlanningInput(request));
  ATOLL_ASSIGN_OR_RETURN(ScopePlans plans, PlanScope(request, input, IslandScope::kAuto,
                                                     ToIslandOptions(request.spec)));
  std::string& reason = plans.choice.reason;
  if (!input.assumptions.empty()) absl::StrAppend(&reason, "; ", input.assumptions);
  return IslandScopeChoice{plans.island_scope, std::move(reason)};
}

}  // namespace atl

#include "cli/pictures/plan_tables.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/pictures/step_picture.h"
#include "common/bytes_text.h"
#include "common/number_text.h"
#include "coordinator/plan_io/timeline.h"
#include "coordinator/planner/replica_problem.h"

namespace atl::cli {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

const plan::Replica& GetFirstReplica(const plan::Plan& plan, const plan::ReplicaOutcome& kind) {
  return plan.layout.replicas[kind.replicas[0]];
}

// "0-4", or "0-4, 29-33" for an entity that holds two stages.
std::string FormatLayers(const plan::Replica& replica, const std::vector<int>& stages) {
  std::string text;
  for (const int s : stages) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", replica.stages[s].first_layer, "-",
                    replica.stages[s].last_layer - 1);
  }
  return text;
}

std::string FormatDevices(const plan::Cluster& cluster, const plan::Stage& stage) {
  const plan::Device& first = cluster.devices[stage.devices[0]];
  if (stage.devices.size() == 1) return first.id;
  return absl::StrCat(first.id, " +", stage.devices.size() - 1);
}

// The step of the first replica of a kind, simulated again with its timeline: with all others where
// they share links. A device for each entity.
StepTrace TraceStep(const plan::Cluster& cluster, const plan::Plan& plan,
                    const plan::ReplicaOutcome& kind) {
  const auto names = [&](const plan::Stage& stage) {
    return std::vector<std::string>{FormatDevices(cluster, stage)};
  };
  const auto play = [](const sim::Problem& problem, const sim::Schedule& schedule) {
    return sim::SimulateUnchecked(problem, schedule, {.record = true});
  };
  StepTrace trace;
  const plan::Replica& replica = GetFirstReplica(plan, kind);
  if (plan.outcome.together) {
    const plan::Together all = plan::PutTogether(cluster, plan.layout, plan.outcome);
    AddReplica(replica, 0, all.problem, kind.replicas[0], play(all.problem, all.schedule), names,
               &trace);
  } else {
    AddReplica(replica, 0, kind.problem, 0, play(kind.problem, kind.found.schedule), names, &trace);
  }
  return trace;
}

std::string ReplicasText(const plan::ReplicaOutcome& kind) {
  const size_t count = kind.replicas.size();
  return absl::StrCat(count, count == 1 ? " replica" : " replicas");
}

// Before what is said of an island's plan, where there are several.
std::string Prefix(const plan::IslandOfSite& island) {
  return island.site.empty() ? "" : absl::StrCat(island.site, ": ");
}

// Stages that follow each other on entities that are alike, as a row.
struct Row {
  size_t first = 0, last = 0;  // entities of the kind
  std::string stages, layers;
  std::string type;
  size_t devices = 0;  // of each entity
  int held = 0;        // layers, of each entity
  int recomputed = 0;  // of them
  double state_gib = 0, activations_gib = 0, has_gib = 0, busy = 0;

  bool IsLike(const Row& other) const {
    constexpr double kSame = 0.05;
    return type == other.type && devices == other.devices && held == other.held &&
           recomputed == other.recomputed && std::abs(state_gib - other.state_gib) < kSame &&
           std::abs(activations_gib - other.activations_gib) < kSame * has_gib &&
           std::abs(busy - other.busy) < kSame;
  }
};

std::vector<Row> MakeRows(const plan::Cluster& cluster, const plan::Plan& plan,
                          const plan::ReplicaOutcome& kind) {
  const plan::Replica& replica = GetFirstReplica(plan, kind);
  const std::vector<std::vector<int>> stages = sim::ListChunksByDevice(kind.problem);
  std::vector<Row> rows;
  for (size_t e = 0; e < stages.size(); ++e) {
    const plan::Stage& first = replica.stages[stages[e][0]];
    const sim::DeviceUse& use = kind.found.result.devices[e];
    Row row{.first = e, .last = e, .devices = first.devices.size()};
    row.stages = absl::StrJoin(stages[e], ",");
    row.layers = FormatLayers(replica, stages[e]);
    row.type = cluster.types[cluster.devices[first.devices[0]].type].name;
    for (const int s : stages[e]) {
      row.held += replica.stages[s].last_layer - replica.stages[s].first_layer;
      row.recomputed += replica.stages[s].saving.recomputed;
    }
    row.state_gib = static_cast<double>(kind.state_bytes[e]) / kGiB;
    row.activations_gib = static_cast<double>(use.peak_bytes) / kGiB;
    row.has_gib = static_cast<double>(kind.memory_bytes[e]) / kGiB;
    row.busy = static_cast<double>(use.busy_ns) * 1e-9 / plan.outcome.step_s;
    const bool one = stages[e].size() == 1;
    if (!rows.empty() && one && rows.back().IsLike(row)) {
      Row& before = rows.back();
      before.last = e;
      before.stages = absl::StrCat(stages[before.first][0], "-", stages[e][0]);
      before.layers = absl::StrCat(replica.stages[stages[before.first][0]].first_layer, "-",
                                   first.last_layer - 1, ", ", row.held, " each");
    } else {
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

// Without devices' names, by which equal islands are known, or with them.
std::string StageRows(const plan::Cluster& cluster, const plan::Plan& plan, size_t most,
                      bool names) {
  std::string text;
  absl::StrAppendFormat(&text, "%-9s %6s  %-24s %-10s %-18s %9s %22s %6s\n", "replicas", "stage",
                        names ? "devices" : "", "type", "layers", "recompute",
                        "state + act. of GiB", "busy");
  size_t left = most;
  size_t hidden = 0;
  for (const plan::ReplicaOutcome& kind : plan.outcome.kinds) {
    const plan::Replica& replica = GetFirstReplica(plan, kind);
    const std::vector<std::vector<int>> stages = sim::ListChunksByDevice(kind.problem);
    bool first = true;
    for (const Row& row : MakeRows(cluster, plan, kind)) {
      hidden += left == 0 ? 1 : 0;
      if (left == 0) continue;
      --left;
      const plan::Stage& stage = replica.stages[stages[row.first][0]];
      const std::string devices =
          absl::StrCat(FormatDevices(cluster, stage), row.last > row.first ? " ..." : "");
      absl::StrAppendFormat(&text, "%-9s %6s  %-24s %-10s %-18s %9s %7.1f +%6.1f of%6.1f %5.1f%%\n",
                            first ? absl::StrCat("x", kind.replicas.size()) : "", row.stages,
                            names ? devices : "", row.type, row.layers,
                            row.recomputed > 0 ? absl::StrCat(row.recomputed) : "-", row.state_gib,
                            row.activations_gib, row.has_gib, 100 * row.busy);
      first = false;
    }
    if (first) continue;
    absl::StrAppendFormat(&text, "%-9s         %d micro-batches, schedule: %s\n", "",
                          replica.micro_batches, kind.found.how);
  }
  if (hidden > 0) absl::StrAppend(&text, "          ", hidden, " more rows (--json has all)\n");
  const size_t idle = cluster.devices.size() - plan::ListUsedDevices(plan.layout).size();
  if (idle > 0) absl::StrAppend(&text, "          ", idle, " devices stay idle\n");
  return text;
}

// Describes the parts of a step.
std::string StepText(const plan::Plan& plan) {
  const plan::StepParts parts = plan::GetStepParts(plan.outcome);
  std::string text = absl::StrCat(
      "step ", SecondsText(plan.outcome.step_s), ": ", SecondsText(parts.work_s),
      " its busiest device computes, ", SecondsText(parts.wait_s), " it waits, ",
      SecondsText(parts.sync_s), " gradients are summed and ", SecondsText(parts.commit_s),
      " sites agree, hidden by no work;\nthis layout takes at least ",
      SecondsText(plan.outcome.bound_s), ", these devices ", SecondsText(plan.cluster_bound_s),
      " without communication\n");
  if (plan.price > 0) {
    absl::StrAppend(&text, "price of a step ", NumberText(plan.price), ", of an hour ",
                    NumberText(3600 * plan.price / plan.outcome.step_s), "\n");
  }
  return text;
}

std::string TimeText(sim::Nanos ns) { return SecondsText(1e-9 * static_cast<double>(ns)); }

std::string Text(double bytes) { return BytesText(std::llround(std::min(bytes, 9e18))); }

// The links that carry most.
std::string TrafficText(const plan::Cluster& cluster, const plan::SiteBytes& day) {
  constexpr size_t kLinks = 4;
  std::vector<std::pair<double, std::pair<std::string, std::string>>> links;
  for (const auto& [sites, bytes] : day) links.emplace_back(-bytes, sites);
  std::sort(links.begin(), links.end());
  std::string text;
  for (size_t i = 0; i < std::min(kLinks, links.size()); ++i) {
    const auto& [bytes, sites] = links[i];
    const auto limit = cluster.bytes_per_day.find(sites);
    absl::StrAppend(
        &text, text.empty() ? "" : ", ", sites.first, " > ", sites.second, " ", Text(-bytes),
        limit == cluster.bytes_per_day.end() ? "" : absl::StrCat(" of ", Text(limit->second)));
  }
  if (links.size() > kLinks) absl::StrAppend(&text, ", ", links.size() - kLinks, " more links");
  return text;
}

// The best of each other structure, and why it takes longer.
std::string RenderAlternatives(const plan::Plan& plan) {
  constexpr size_t kMost = 5;
  const plan::StepParts own = plan::GetStepParts(plan.outcome);
  std::string text;
  for (const plan::Alternative& other : plan::SelectUnlike(plan, kMost)) {
    absl::StrAppendFormat(&text, "  %+6.1f%%", 100 * (other.step_s / plan.outcome.step_s - 1));
    if (plan.price > 0) {
      absl::StrAppendFormat(&text, "  price %+6.1f%%", 100 * (other.price / plan.price - 1));
    }
    const std::string why = other.simulated() ? plan::WhyLonger(*other.parts, own) : "estimated";
    absl::StrAppend(&text, "  ", other.structure, why.empty() ? "" : ": ", why, "\n");
  }
  return text.empty() ? "" : absl::StrCat("alternatives:\n", text);
}

constexpr size_t kRows = 24;  // of all tables of a run

}  // namespace

std::string RenderRun(const plan::Cluster& cluster, const plan::IslandChoice& choice,
                      int64_t tokens_per_sample, const std::string& totals) {
  std::string text = absl::StrCat(
      "run: ", NumberText(static_cast<double>(tokens_per_sample) * choice.samples_per_s),
      " tokens/s");
  if (!totals.empty()) absl::StrAppend(&text, "; ", totals);
  const std::string traffic = TrafficText(cluster, choice.day);
  absl::StrAppend(&text, "\n", traffic.empty() ? "" : absl::StrCat("sends a day: ", traffic, "\n"),
                  choice.use_islands ? "islands with outer rounds: " : "one plan: ", choice.reason,
                  "\n");
  if (choice.use_islands) {
    const auto tokens = static_cast<double>(tokens_per_sample);
    absl::StrAppendFormat(
        &text, "rounds of %d steps: %s bytes a token pushed, %s pulled; half of it with %d\n",
        choice.steps_per_round, NumberText(choice.pushed_bytes_per_sample / tokens, 3),
        NumberText(choice.pulled_bytes_per_sample / tokens, 3), 2 * choice.steps_per_round);
  }
  return text;
}

namespace {

constexpr size_t kNames = 4;  // of islands that are alike

std::string NamesText(const std::vector<const plan::IslandOfSite*>& islands) {
  std::vector<std::string> names;
  for (const plan::IslandOfSite* one : islands) {
    if (names.size() < kNames) names.push_back(one->site);
  }
  return absl::StrCat(
      absl::StrJoin(names, ", "),
      islands.size() > kNames ? absl::StrCat(" and ", islands.size() - kNames, " more") : "");
}

}  // namespace

std::string RenderIslands(const std::vector<plan::IslandOfSite>& islands) {
  using Fold = std::vector<const plan::IslandOfSite*>;
  std::vector<std::pair<std::string, Fold>> folds;  // by what is the same
  const plan::IslandOfSite* slowest = &islands[0];
  for (const plan::IslandOfSite& island : islands) {
    const plan::Plan& plan = island.plan;
    const std::string same = absl::StrCat(
        plan::Describe(plan.layout), StageRows(island.cluster, plan, kRows, false), StepText(plan));
    const auto known = std::find_if(folds.begin(), folds.end(),
                                    [&](const auto& fold) { return fold.first == same; });
    (known == folds.end() ? folds.emplace_back(same, Fold()) : *known).second.push_back(&island);
    if (plan.outcome.step_s > slowest->plan.outcome.step_s) slowest = &island;
  }
  std::string text;
  for (const auto& [same, fold] : folds) {
    const auto& [site, cluster, plan] = *fold[0];
    const std::string count =
        fold.size() > 1 ? absl::StrCat(fold.size(), " islands, at ") : "island at ";
    absl::StrAppend(&text, "\n", site.empty() ? "" : absl::StrCat(count, NamesText(fold), ": "),
                    plan::Describe(plan.layout), "; times: ", plan.times_from, "\n",
                    StageRows(cluster, plan, std::max<size_t>(3, kRows / folds.size()), true),
                    StepText(plan));
  }
  const std::string others = RenderAlternatives(slowest->plan);
  if (!others.empty() && folds.size() > 1) absl::StrAppend(&text, "\nof ", slowest->site, ", ");
  absl::StrAppend(&text, folds.size() > 1 ? "" : "\n", others, slowest->plan.reason, " (seed ",
                  slowest->plan.seed, ")\n");
  return text;
}

std::string RenderTimes(const plan::Cluster& cluster, const plan::Plan& plan) {
  std::string text;
  absl::StrAppendFormat(&text, "%-9s %-24s %12s %12s %12s %7s\n", "replicas", "devices", "begins",
                        "ends", "period", "busy");
  for (const plan::ReplicaOutcome& kind : plan.outcome.kinds) {
    const std::vector<std::vector<int>> stages = sim::ListChunksByDevice(kind.problem);
    for (size_t e = 0; e < stages.size(); ++e) {
      const sim::DeviceUse& use = kind.found.result.devices[e];
      const sim::Nanos period = use.last_ns - use.first_ns;
      absl::StrAppendFormat(
          &text, "%-9s %-24s %12s %12s %12s %6.1f%%\n",
          e == 0 ? absl::StrCat("x", kind.replicas.size()) : "",
          FormatDevices(cluster, GetFirstReplica(plan, kind).stages[stages[e][0]]),
          TimeText(use.first_ns), TimeText(use.last_ns), TimeText(period),
          period > 0 ? 100.0 * static_cast<double>(use.busy_ns) / static_cast<double>(period) : 0);
    }
  }
  const sim::Result& slowest = plan::SlowestKind(plan.outcome).found.result;
  absl::StrAppendFormat(
      &text,
      "makespan %s from the first to the last operation; period %s between steps, where a "
      "device may begin the next step as soon as it is done\n",
      TimeText(slowest.makespan_ns), TimeText(slowest.period_ns));
  return text;
}

std::string RenderTrace(const std::vector<plan::IslandOfSite>& islands) {
  std::deque<StepTrace> traces;  // which views point to
  std::vector<StepView> views;
  for (const plan::IslandOfSite& island : islands) {
    for (const plan::ReplicaOutcome& kind : island.plan.outcome.kinds) {
      traces.push_back(TraceStep(island.cluster, island.plan, kind));
      views.push_back({absl::StrCat(Prefix(island), ReplicasText(kind)), &traces.back()});
    }
  }
  return StepsAsPerfetto(views);
}

std::string RenderSvg(const std::vector<plan::IslandOfSite>& islands) {
  std::deque<StepTrace> traces;  // which views point to
  std::vector<StepChart> charts;
  for (const plan::IslandOfSite& island : islands) {
    const plan::Plan& plan = island.plan;
    for (const plan::ReplicaOutcome& kind : plan.outcome.kinds) {
      traces.push_back(TraceStep(island.cluster, plan, kind));
      charts.push_back(
          {absl::StrFormat("%s%s; step %s; %s: %s", Prefix(island), plan::Describe(plan.layout),
                           SecondsText(plan.outcome.step_s), ReplicasText(kind), kind.found.how),
           {{"", &traces.back()}}});
    }
  }
  return StepsAsSvg(charts);
}

}  // namespace atl::cli

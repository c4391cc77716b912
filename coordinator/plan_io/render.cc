#include "coordinator/plan_io/render.h"

#include <algorithm>
#include <deque>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/plan_io/perfetto.h"
#include "coordinator/plan_io/step_picture.h"
#include "coordinator/plan_io/timeline.h"
#include "coordinator/planner/together.h"

namespace atl {
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

size_t IdleDevices(const plan::Cluster& cluster, const plan::Layout& layout) {
  std::set<int> used;
  for (const plan::Replica& replica : layout.replicas) {
    for (const plan::Stage& stage : replica.stages) {
      used.insert(stage.devices.begin(), stage.devices.end());
    }
  }
  return cluster.devices.size() - used.size();
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
std::string Prefix(const PlanToDraw& drawn) {
  return drawn.island.empty() ? "" : absl::StrCat(drawn.island, ": ");
}

}  // namespace

std::string RenderTable(const plan::Cluster& cluster, const plan::Plan& plan) {
  std::string text =
      absl::StrCat(plan::Describe(plan.layout), "; times: ", plan.times_from, "\n\n");
  absl::StrAppendFormat(&text, "%-9s %5s  %-24s %-10s %-14s %17s %6s\n", "replicas", "stage",
                        "devices", "type", "layers", "memory GiB", "busy");
  for (const plan::ReplicaOutcome& kind : plan.outcome.kinds) {
    const plan::Replica& replica = GetFirstReplica(plan, kind);
    const std::vector<std::vector<int>> stages = sim::ListChunksByDevice(kind.problem);
    for (size_t e = 0; e < stages.size(); ++e) {
      const plan::Stage& first = replica.stages[stages[e][0]];
      const sim::DeviceUse& use = kind.found.result.devices[e];
      const double used = static_cast<double>(kind.state_bytes[e] + use.peak_bytes) / kGiB;
      absl::StrAppendFormat(
          &text, "%-9s %5s  %-24s %-10s %-14s %7.1f of %6.1f %5.1f%%\n",
          e == 0 ? absl::StrCat("x", kind.replicas.size()) : "", absl::StrJoin(stages[e], ","),
          FormatDevices(cluster, first), cluster.types[cluster.devices[first.devices[0]].type].name,
          FormatLayers(replica, stages[e]), used, static_cast<double>(kind.memory_bytes[e]) / kGiB,
          100.0 * static_cast<double>(use.busy_ns) * 1e-9 / plan.outcome.step_s);
    }
    absl::StrAppendFormat(&text, "%-9s        %d micro-batches, schedule: %s\n", "",
                          replica.micro_batches, kind.found.how);
  }
  const size_t idle = IdleDevices(cluster, plan.layout);
  if (idle > 0) absl::StrAppend(&text, "          ", idle, " devices stay idle\n");
  absl::StrAppendFormat(
      &text,
      "\nstep %.4g s, of it %.4g s of summing gradients that no work hides and %.4g s until all "
      "sites know;\nthis layout takes at least %.4g s (x%.3f), these devices at least %.4g s "
      "without communication\n",
      plan.outcome.step_s, plan.outcome.sync_s, plan.outcome.commit_s, plan.outcome.bound_s,
      plan.outcome.step_s / plan.outcome.bound_s, plan.cluster_bound_s);
  if (plan.price > 0) {
    absl::StrAppendFormat(&text, "price of a step %.4g, of an hour %.4g\n", plan.price,
                          3600 * plan.price / plan.outcome.step_s);
  }
  if (!plan.alternatives.empty()) absl::StrAppend(&text, "\nalternatives:\n");
  for (const plan::Alternative& other : plan.alternatives) {
    absl::StrAppendFormat(&text, "  %+6.1f%%", 100 * (other.step_s / plan.outcome.step_s - 1));
    if (plan.price > 0) {
      absl::StrAppendFormat(&text, "  price %+6.1f%%", 100 * (other.price / plan.price - 1));
    }
    absl::StrAppend(&text, "  ", other.what, other.simulated ? "" : " (estimated)", "\n");
  }
  absl::StrAppend(&text, "\n", plan.reason, " (seed ", plan.seed, ")\n");
  return text;
}

std::string RenderTimes(const plan::Cluster& cluster, const plan::Plan& plan) {
  std::string text;
  absl::StrAppendFormat(&text, "%-9s %-24s %12s %12s %12s %7s\n", "replicas", "devices", "begins s",
                        "ends s", "period s", "busy");
  for (const plan::ReplicaOutcome& kind : plan.outcome.kinds) {
    const std::vector<std::vector<int>> stages = sim::ListChunksByDevice(kind.problem);
    for (size_t e = 0; e < stages.size(); ++e) {
      const sim::DeviceUse& use = kind.found.result.devices[e];
      const sim::Nanos period = use.last_ns - use.first_ns;
      absl::StrAppendFormat(
          &text, "%-9s %-24s %12.6g %12.6g %12.6g %6.1f%%\n",
          e == 0 ? absl::StrCat("x", kind.replicas.size()) : "",
          FormatDevices(cluster, GetFirstReplica(plan, kind).stages[stages[e][0]]),
          1e-9 * use.first_ns, 1e-9 * use.last_ns, 1e-9 * period,
          period > 0 ? 100.0 * static_cast<double>(use.busy_ns) / static_cast<double>(period) : 0);
    }
  }
  const sim::Result& slowest = plan::SlowestKind(plan.outcome).found.result;
  absl::StrAppendFormat(
      &text,
      "makespan %.6g s from the first to the last operation; period %.6g s between steps, where a "
      "device may begin the next step as soon as it is done\n",
      1e-9 * slowest.makespan_ns, 1e-9 * slowest.period_ns);
  return text;
}

std::string RenderTrace(const std::vector<PlanToDraw>& plans) {
  std::deque<StepTrace> traces;  // which views point to
  std::vector<StepView> views;
  for (const PlanToDraw& drawn : plans) {
    for (const plan::ReplicaOutcome& kind : drawn.plan->outcome.kinds) {
      traces.push_back(TraceStep(*drawn.cluster, *drawn.plan, kind));
      views.push_back({absl::StrCat(Prefix(drawn), ReplicasText(kind)), &traces.back()});
    }
  }
  return StepsAsPerfetto(views);
}

std::string RenderSvg(const std::vector<PlanToDraw>& plans) {
  std::deque<StepTrace> traces;  // which views point to
  std::vector<StepChart> charts;
  for (const PlanToDraw& drawn : plans) {
    const plan::Plan& plan = *drawn.plan;
    for (const plan::ReplicaOutcome& kind : plan.outcome.kinds) {
      traces.push_back(TraceStep(*drawn.cluster, plan, kind));
      charts.push_back(
          {absl::StrFormat("%s%s; step %.4g s; %s: %s", Prefix(drawn), plan::Describe(plan.layout),
                           plan.outcome.step_s, ReplicasText(kind), kind.found.how),
           {{"", &traces.back()}}});
    }
  }
  return StepsAsSvg(charts);
}

}  // namespace atl

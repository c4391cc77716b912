#include "cli/faults.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/text/output.h"
#include "common/number_text.h"
#include "common/plural.h"
#include "common/status.h"
#include "coordinator/planner/replica_problem.h"
#include "coordinator/planner/together.h"
#include "coordinator/simulator/failures.h"
#include "coordinator/simulator/rounds.h"

namespace atl::cli {
namespace {

constexpr double kSecondsMax = 1e6;

double Seconds(sim::Nanos ns) { return static_cast<double>(ns) * 1e-9; }

sim::Nanos Until(const Fault& fault) {
  return std::isinf(fault.until_s) ? sim::kForever : plan::ToNanos(fault.until_s);
}

bool ParseSeconds(absl::string_view text, double* seconds) {
  return absl::SimpleAtod(text, seconds) && *seconds >= 0 && *seconds <= kSecondsMax;
}

// A device's id, or its site's name.
bool Names(const plan::Cluster& cluster, const std::string& name, int device) {
  return cluster.devices[device].id == name || cluster.devices[device].site == name;
}

absl::Status Unknown(const char* flag, const Fault& fault, const std::set<std::string>& there_are) {
  const std::string what = fault.to.empty() ? fault.what : absl::StrCat(fault.what, ">", fault.to);
  if (there_are.empty()) {
    return absl::NotFoundError(
        absl::StrCat(flag, " ", what,
                     ": only all-reduces of gradients pass between devices under this "
                     "plan, and these are not played with failures"));
  }
  return absl::NotFoundError(absl::StrCat(flag, " ", what, ": the plan uses nothing of that name; ",
                                          "there are ", absl::StrJoin(there_are, ", ")));
}

absl::Status AddDevice(const plan::Cluster& cluster, const plan::Together& all, const Fault& fault,
                       std::vector<sim::Failure>* failures) {
  std::set<std::string> known;
  for (size_t d = 0; d < all.devices.size(); ++d) {
    for (const int device : all.devices[d]) {
      known.insert(cluster.devices[device].id);
      if (cluster.devices[device].id != fault.what) continue;
      failures->push_back({sim::Failure::What::kDevice, static_cast<int>(d),
                           plan::ToNanos(fault.from_s), Until(fault)});
      return absl::OkStatus();
    }
  }
  return Unknown("--fail", fault, known);
}

absl::Status AddLinks(const plan::Cluster& cluster, const plan::Together& all, const Fault& fault,
                      std::vector<sim::Failure>* failures) {
  std::set<std::string> known;
  const size_t before = failures->size();
  for (size_t l = 0; l < all.link_ends.size(); ++l) {
    const auto [from, to] = all.link_ends[l];
    const plan::Device& a = cluster.devices[from];
    const plan::Device& b = cluster.devices[to];
    known.insert(absl::StrCat(a.id, ">", b.id));
    if (a.site != b.site) known.insert(absl::StrCat(a.site, ">", b.site));
    if (!Names(cluster, fault.what, from) || !Names(cluster, fault.to, to)) continue;
    failures->push_back({sim::Failure::What::kLink, static_cast<int>(l),
                         plan::ToNanos(fault.from_s), Until(fault)});
  }
  return failures->size() > before ? absl::OkStatus() : Unknown("--outage", fault, known);
}

std::string DeviceName(const plan::Cluster& cluster, const plan::Together& all, int device) {
  return cluster.devices[all.devices[device][0]].id;
}

// Why the step is lost.
std::string LostBecause(const plan::Cluster& cluster, const plan::Together& all,
                        const sim::FailedStep& step) {
  if (step.failed_device < 0) return step.reason;
  return absl::StrCat(DeviceName(cluster, all, step.failed_device), " never comes back");
}

std::string FailuresText(const plan::Cluster& cluster, const plan::Together& all,
                         const sim::FailedStep& step, double alone_s) {
  std::string text = absl::StrFormat(
      "\nwith failures: %s\n",
      step.done ? absl::StrCat(SecondsText(Seconds(step.total_ns)), " instead of ",
                               SecondsText(alone_s), ", without summing gradients")
                : absl::StrCat("the step is lost: ", LostBecause(cluster, all, step)));
  for (const sim::Attempt& attempt : step.redone) {
    absl::StrAppendFormat(
        &text,
        "  begun at %s, ended at %s as %s failed: %d operations, %s of all devices' work lost\n",
        SecondsText(Seconds(attempt.start_ns)), SecondsText(Seconds(attempt.end_ns)),
        DeviceName(cluster, all, attempt.device), attempt.operations,
        SecondsText(Seconds(attempt.busy_ns)));
  }
  return text;
}

nlohmann::json FailuresJson(const plan::Cluster& cluster, const plan::Together& all,
                            const sim::FailedStep& step, double alone_s) {
  nlohmann::json json = {{"done", step.done},
                         {"reason", step.done ? "" : LostBecause(cluster, all, step)},
                         {"total_seconds", Seconds(step.total_ns)},
                         {"without_failures_seconds", alone_s},
                         {"redone", nlohmann::json::array()}};
  for (const sim::Attempt& attempt : step.redone) {
    json["redone"].push_back({{"device", DeviceName(cluster, all, attempt.device)},
                              {"start_seconds", Seconds(attempt.start_ns)},
                              {"end_seconds", Seconds(attempt.end_ns)},
                              {"operations", attempt.operations},
                              {"busy_seconds", Seconds(attempt.busy_ns)}});
  }
  return json;
}

// ---- outer rounds ----

// Sites' links to the server and back, each island's own.
sim::RoundsProblem MakeRoundsProblem(const plan::Cluster& cluster, const plan::Costs& costs,
                                     const plan::IslandChoice& choice,
                                     const plan::IslandOptions& options, int64_t tokens_per_sample,
                                     const FaultFlags& flags) {
  sim::RoundsProblem problem;
  const double bytes =
      static_cast<double>(costs.model().parameters()) * options.bytes_per_parameter();
  const auto link = [&](const std::string& from, const std::string& to) {
    const plan::Link& plan_link = cluster.LinkBetweenSites(from, to);
    problem.network.links.push_back(
        {{sim::Edge{plan::ToNanos(plan_link.latency_s), plan_link.bytes_per_s, {}, -1}}});
    return static_cast<int>(problem.network.links.size()) - 1;
  };
  double slowest_s = 0, fastest_step_s = INFINITY;
  for (const plan::IslandOfSite& island : choice.islands) {
    fastest_step_s = std::min(fastest_step_s, island.plan.outcome.step_s);
  }
  for (const auto& [site, part, plan] : choice.islands) {
    sim::RoundIsland island;
    island.steps_per_round = options.ComputeStepsPerRound(plan.outcome.step_s, fastest_step_s);
    island.step_ns = plan::ToNanos(plan.outcome.step_s);
    for (const plan::Replica& replica : plan.layout.replicas) {
      island.tokens_per_step +=
          static_cast<double>(tokens_per_sample) * replica.micro_batches * plan.layout.micro_batch;
    }
    island.push_links = {link(site, choice.server_site)};
    island.pull_links = {link(choice.server_site, site)};
    const double exchange_s = cluster.LinkBetweenSites(site, choice.server_site).Seconds(bytes) +
                              cluster.LinkBetweenSites(choice.server_site, site).Seconds(bytes);
    const double train_s = plan.outcome.step_s * static_cast<double>(island.steps_per_round);
    slowest_s =
        std::max(slowest_s, options.overlap ? std::max(train_s, exchange_s) : train_s + exchange_s);
    problem.islands.push_back(std::move(island));
  }
  problem.servers = {{static_cast<int64_t>(bytes), static_cast<int64_t>(bytes), 1e18, 1e18}};
  problem.steps_per_round = options.steps_per_round;
  problem.grace_ns = plan::ToNanos(flags.grace_s);
  problem.overlap = options.overlap ? sim::Overlap::kCarry : sim::Overlap::kNone;
  problem.detect_ns = plan::ToNanos(flags.detect_s);
  problem.until_ns =
      std::max<sim::Nanos>(1, plan::ToNanos(slowest_s * static_cast<double>(*flags.rounds)));
  return problem;
}

absl::Status AddRoundFaults(const plan::IslandChoice& choice, const FaultFlags& flags,
                            sim::RoundsProblem* problem) {
  std::set<std::string> sites, links;
  for (const auto& [site, part, plan] : choice.islands) {
    sites.insert(site);
    if (site == choice.server_site) continue;  // nothing between sites
    links.insert(
        {absl::StrCat(site, ">", choice.server_site), absl::StrCat(choice.server_site, ">", site)});
  }
  for (const std::string& text : flags.fail) {
    ATOLL_ASSIGN_OR_RETURN(const Fault fault, ParseFault(text, false));
    const auto site = sites.find(fault.what);
    if (site == sites.end()) return Unknown("--fail", fault, sites);
    problem->islands[std::distance(sites.begin(), site)].down.push_back(
        {plan::ToNanos(fault.from_s), Until(fault)});
  }
  for (const std::string& text : flags.outage) {
    ATOLL_ASSIGN_OR_RETURN(const Fault fault, ParseFault(text, true));
    if (!links.contains(absl::StrCat(fault.what, ">", fault.to))) {
      return Unknown("--outage", fault, links);
    }
    size_t i = 0;
    for (const std::string& site : sites) {
      const sim::RoundIsland& island = problem->islands[i++];
      if (fault.what == site && fault.to == choice.server_site) {
        problem->network.links[island.push_links[0]].outages.push_back(
            {plan::ToNanos(fault.from_s), Until(fault)});
      } else if (fault.to == site && fault.what == choice.server_site) {
        problem->network.links[island.pull_links[0]].outages.push_back(
            {plan::ToNanos(fault.from_s), Until(fault)});
      }
    }
  }
  for (sim::RoundIsland& island : problem->islands) sim::JoinOutages(island.down);
  for (sim::Link& link : problem->network.links) sim::JoinOutages(link.outages);
  return absl::OkStatus();
}

constexpr const char* kStates[] = {"train", "push", "wait", "pull", "down"};

std::string RoundsText(const plan::IslandChoice& choice, const plan::IslandOptions& options,
                       const sim::RoundsProblem& problem, const sim::RoundsResult& result) {
  std::string text = absl::StrFormat(
      "%s of %s committed in %s, server at %s: %s tokens/s, %.1f%% of islands "
      "that only train\n\n%-16s %10s %9s %8s %8s %8s %8s %8s %10s\n",
      CountText(result.rounds, "round"), CountText(options.steps_per_round, "step"),
      SecondsText(Seconds(problem.until_ns)), choice.server_site, NumberText(result.tokens_per_s),
      100 * result.efficiency, "island", "step", "rounds in", kStates[0], kStates[1], kStates[2],
      kStates[3], kStates[4], "steps lost");
  size_t i = 0;
  for (const auto& [site, part, plan] : choice.islands) {
    const sim::IslandUse& use = result.islands[i++];
    absl::StrAppendFormat(&text, "%-16s %10s %9d", site, SecondsText(plan.outcome.step_s),
                          use.contributions);
    for (const sim::Nanos ns : use.in_state_ns) {
      absl::StrAppendFormat(&text, " %7.1f%%", 100 * Seconds(ns) / Seconds(problem.until_ns));
    }
    absl::StrAppendFormat(&text, " %10d\n", use.steps_lost);
  }
  return text;
}

nlohmann::json RoundsJson(const plan::IslandChoice& choice, const sim::RoundsProblem& problem,
                          const sim::RoundsResult& result) {
  nlohmann::json json = {
      {"rounds", result.rounds},           {"seconds", Seconds(problem.until_ns)},
      {"server_site", choice.server_site}, {"tokens_per_s", result.tokens_per_s},
      {"efficiency", result.efficiency},   {"islands", nlohmann::json::array()}};
  size_t i = 0;
  for (const auto& [site, part, plan] : choice.islands) {
    const sim::IslandUse& use = result.islands[i++];
    nlohmann::json island = {{"site", site},
                             {"step_seconds", plan.outcome.step_s},
                             {"contributions", use.contributions},
                             {"steps_lost", use.steps_lost},
                             {"tokens", use.tokens}};
    for (int s = 0; s < 5; ++s) {
      island[absl::StrCat(kStates[s], "_seconds")] = Seconds(use.in_state_ns[s]);
    }
    json["islands"].push_back(std::move(island));
  }
  return json;
}

}  // namespace

absl::StatusOr<Fault> ParseFault(const std::string& text, bool link) {
  const auto refused = [&] {
    return absl::InvalidArgumentError(
        link ? absl::StrCat("--outage ", text,
                            ": write FROM>TO@SECONDS-SECONDS, such as "
                            "paris>oslo@0.5-2, with sites or devices")
             : absl::StrCat("--fail ", text,
                            ": write DEVICE@SECONDS for good, or "
                            "DEVICE@SECONDS-SECONDS, such as w1/0@0.5-8"));
  };
  Fault fault;
  const size_t at = text.rfind('@');
  if (at == std::string::npos || at == 0) return refused();
  fault.what = text.substr(0, at);
  if (link) {
    const size_t arrow = fault.what.find('>');
    if (arrow == std::string::npos || arrow == 0 || arrow + 1 == fault.what.size()) {
      return refused();
    }
    fault.to = fault.what.substr(arrow + 1);
    fault.what.resize(arrow);
  }
  const std::string times = text.substr(at + 1);
  const size_t dash = times.find('-');
  fault.until_s = INFINITY;
  if (!ParseSeconds(times.substr(0, dash), &fault.from_s)) return refused();
  if (dash == std::string::npos) return link ? refused() : absl::StatusOr<Fault>(fault);
  if (!ParseSeconds(times.substr(dash + 1), &fault.until_s) || fault.until_s <= fault.from_s) {
    return refused();
  }
  return fault;
}

std::string BadFaultFlag(const FaultFlags& flags) {
  for (const std::string& text : flags.fail) {
    const auto fault = ParseFault(text, false);
    if (!fault.ok()) return std::string(fault.status().message());
  }
  for (const std::string& text : flags.outage) {
    const auto fault = ParseFault(text, true);
    if (!fault.ok()) return std::string(fault.status().message());
  }
  if (flags.rounds && (*flags.rounds < 1 || *flags.rounds > 100'000)) {
    return absl::StrCat("--rounds ", *flags.rounds, ": at least 1, at most 100000");
  }
  const std::pair<const char*, double> times[] = {
      {"--detect", flags.detect_s}, {"--restore", flags.restore_s}, {"--grace", flags.grace_s}};
  for (const auto& [name, seconds] : times) {
    if (!(seconds >= 0) || seconds > kSecondsMax) {
      return absl::StrCat(name, " ", seconds, ": 0 to 1000000 seconds");
    }
  }
  return "";
}

absl::StatusOr<std::string> PlayFailures(const plan::Cluster& cluster, const plan::Plan& plan,
                                         const FaultFlags& flags, bool json) {
  const plan::Together all = plan::PutTogether(cluster, plan.layout, plan.outcome);
  std::vector<sim::Failure> failures;
  for (const std::string& text : flags.fail) {
    ATOLL_ASSIGN_OR_RETURN(const Fault fault, ParseFault(text, false));
    ATOLL_RETURN_IF_ERROR(AddDevice(cluster, all, fault, &failures));
  }
  for (const std::string& text : flags.outage) {
    ATOLL_ASSIGN_OR_RETURN(const Fault fault, ParseFault(text, true));
    ATOLL_RETURN_IF_ERROR(AddLinks(cluster, all, fault, &failures));
  }
  const sim::FailureRule rule{plan::ToNanos(flags.detect_s), plan::ToNanos(flags.restore_s)};
  ATOLL_ASSIGN_OR_RETURN(const sim::FailedStep step,
                         sim::SimulateWithFailures(all.problem, all.schedule, failures, rule, {}));
  const double alone_s = Seconds(sim::SimulateUnchecked(all.problem, all.schedule, {}).makespan_ns);
  if (json) return Document(FailuresJson(cluster, all, step, alone_s).dump(2) + "\n");
  return FailuresText(cluster, all, step, alone_s);
}

absl::StatusOr<std::string> PlayRounds(const plan::Cluster& cluster, const plan::Costs& costs,
                                       const plan::IslandChoice& choice,
                                       const plan::IslandOptions& options,
                                       int64_t tokens_per_sample, const FaultFlags& flags,
                                       bool json) {
  sim::RoundsProblem problem =
      MakeRoundsProblem(cluster, costs, choice, options, tokens_per_sample, flags);
  ATOLL_RETURN_IF_ERROR(AddRoundFaults(choice, flags, &problem));
  ATOLL_ASSIGN_OR_RETURN(const sim::RoundsResult result, sim::SimulateRounds(problem, false));
  if (json) return Document(RoundsJson(choice, problem, result).dump(2) + "\n");
  return RoundsText(choice, options, problem, result);
}

}  // namespace atl::cli

#include "coordinator/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "absl/strings/str_format.h"
#include "common/status.h"
#include "coordinator/planner/candidates.h"
#include "coordinator/planner/cluster/constraints.h"
#include "coordinator/planner/cluster/objective.h"
#include "coordinator/planner/contest.h"
#include "coordinator/planner/groups/refine.h"

namespace atl::plan {
namespace {

constexpr size_t kMostAlternatives = 12;
constexpr size_t kRefined = 20, kRefinedOfFew = 128;  // candidates
constexpr size_t kMapped = 24;                        // candidates
constexpr int64_t kMappingNodes = 20'000;             // of all searches by branch and bound

// A step may take so many times as long as a candidate's estimate.
constexpr double kEstimateErrs = 1.25;

std::string Reason(const Plan& plan, absl::string_view compared) {
  std::string text(compared);
  const ReplicaOutcome& slowest = SlowestKind(plan.outcome);
  absl::StrAppend(&text, "; schedule: ", slowest.found.how);
  const Alternative* next = nullptr;
  for (const Alternative& other : plan.alternatives) {
    if (other.simulated() && (next == nullptr || other.rank < next->rank)) next = &other;
  }
  if (next == nullptr) {
    absl::StrAppend(&text, "; no other fits");
  } else {
    absl::StrAppendFormat(&text, "; the next best, %s, takes %.1f%% longer", next->what,
                          100 * (next->step_s / plan.outcome.step_s - 1));
    if (plan.price > 0) {
      absl::StrAppendFormat(&text, " and costs %.1f%% more", 100 * (next->price / plan.price - 1));
    }
  }
  absl::StrAppendFormat(&text, "; at most %.1f%% above any schedule of this layout (%s)",
                        100 * (plan.outcome.step_s / plan.outcome.bound_s - 1),
                        slowest.bound.reason);
  const std::string gap = GapReason(plan.layout, plan.outcome);
  if (!gap.empty()) absl::StrAppend(&text, ": ", gap);
  return text;
}

template <class Ranked>
void SortByRank(std::vector<Ranked>& list) {
  std::ranges::stable_sort(list, [](const Ranked& a, const Ranked& b) { return a.rank < b.rank; });
}

// Returns the best of each part of the devices and each number of replicas, of few devices of each
// kind of layout on each part, and the `near` best: at most `most` as they are and as many with a
// number of stages; of few devices without those that will not be the best.
std::vector<const Candidate*> SelectUnlike(const Cluster& cluster,
                                           const std::vector<Candidate>& candidates, size_t most,
                                           size_t near) {
  const bool few = std::ssize(cluster.devices) <= kFewDevices;
  std::vector<const Candidate*> selected;
  for (const bool of_stages : {false, true}) {
    std::set<std::string> kinds, scopes;
    const size_t end = selected.size() + most;
    double rank_limit = INFINITY;
    for (const Candidate& candidate : candidates) {
      if (selected.size() == end || candidate.rank > rank_limit) break;
      if ((candidate.stages > 0) != of_stages) continue;
      if (few) rank_limit = std::min(rank_limit, kEstimateErrs * Contest::kMayWin * candidate.rank);
      std::string kind = absl::StrCat(candidate.layout.replicas.size());
      if (few) kind = absl::StrCat(DescribeStructure(candidate.layout), candidate.scope);
      const bool new_scope = scopes.insert(candidate.scope).second;
      const bool new_kind = kinds.insert(std::move(kind)).second;
      const bool is_near = &candidate < candidates.data() + near;
      if (new_scope || new_kind || is_near) selected.push_back(&candidate);
    }
  }
  return selected;
}

// Refines, for unlike devices, the best of each kind, which compete with what they were made from.
// More of them are simulated.
void RefineBest(const Cluster& cluster, const Costs& costs, const Job& job, Options& options,
                std::vector<Candidate>& candidates) {
  if (candidates.empty()) return;
  const Candidate& best = candidates[0];
  if (!AreUnlike(BuildEntityPools(cluster, costs, best.sizes, best.layout.micro_batch))) return;
  options.simulate *= 2;
  const size_t most = std::ssize(cluster.devices) <= kFewDevices ? kRefinedOfFew : kRefined;
  std::vector<Candidate> refined;
  for (const Candidate* one : SelectUnlike(cluster, candidates, most, 0)) {
    refined.push_back(*one);
  }
  ForAll(options.pool, refined.size(), [&](size_t i) {
    const Costs own = costs;  // they are not for several threads
    Refine(cluster, own, job, options.stop, refined[i]);
    refined[i].how += ", refined";
  });
  candidates.insert(candidates.end(), refined.begin(), refined.end());
  SortByRank(candidates);
}

// Maps the devices of the best candidates of each kind to stages by branch and bound. These compete
// with what they were made of.
void MapBest(const Cluster& cluster, const Costs& costs, const Job& job, Options& options,
             std::vector<Candidate>& candidates) {
  options.simulate += 6;
  MappingOptions mapping;
  mapping.stop = options.stop;
  mapping.max_nodes = kMappingNodes / static_cast<int64_t>(kMapped);
  const Ranking ranking(cluster, costs, job);
  const std::vector<const Candidate*> chosen =
      SelectUnlike(cluster, candidates, kMapped, static_cast<size_t>(options.simulate));
  std::vector<std::optional<Layout>> mapped(chosen.size());
  ForAll(options.pool, chosen.size(), [&](size_t i) {
    const Costs own = costs;  // they are not for several threads
    MappingOptions each = mapping;
    each.stages = chosen[i]->stages > 0 ? chosen[i]->stages : job.fixed.stages;
    if (options.stop && options.stop()) return;
    mapped[i] = Mapped(cluster, own, chosen[i]->layout, each);
  });
  std::vector<Candidate> found;
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (!mapped[i] || !UsesLeader(cluster, *mapped[i]) ||
        !DegreesAgree(costs.model(), *mapped[i])) {
      continue;
    }
    Candidate& added = found.emplace_back(*chosen[i]);
    added.layout = *std::move(mapped[i]);
    absl::StrAppend(&added.how, ", ", kByBranchAndBound);
    added.estimate_s = EstimateSeconds(cluster, costs, added.layout);
    added.rank = ranking.Rank(added.layout, added.estimate_s);
  }
  std::move(found.begin(), found.end(), std::back_inserter(candidates));
  SortByRank(candidates);
}

// Two ways of grouping often lead to the same layout, which shows in its estimate.
std::string SameAs(const Candidate& candidate) {
  return absl::StrFormat("%s %.9g", Describe(candidate.layout), candidate.estimate_s);
}

// Which of the candidates are simulated, and which listed: the best ones, and of few devices the
// best of each kind.
void Compete(const Cluster& cluster, const std::vector<Candidate>& candidates,
             const Options& options, Contest& contest, Plan& plan) {
  const bool few = std::ssize(cluster.devices) <= kFewDevices;
  std::set<std::string> seen, kinds;
  for (const Candidate& candidate : candidates) {
    const std::string family = Family(candidate);
    const std::string same = SameAs(candidate);
    if (!seen.insert(same).second || !seen.insert(family).second) continue;
    const bool may_win = candidate.rank < kEstimateErrs * Contest::kMayWin * plan.rank;
    // Without a layout so far, continue: the estimate knows less of memory than the simulator.
    const bool enough = plan.simulated >= options.simulate || contest.Stopped();
    const bool new_kind = few && kinds.insert(Describe(candidate.layout)).second;
    if (!enough || !contest.any() || (new_kind && may_win && !contest.Stopped())) {
      contest.EnterBoth(candidate);
    } else if (plan.alternatives.size() <= kMostAlternatives) {
      contest.Lose(family, candidate.layout, candidate.estimate_s, nullptr);
    } else if (!few || !may_win) {
      break;
    }
  }
}

absl::Status NoLayout(const absl::Status& over_limit) {
  return absl::FailedPreconditionError(
      absl::StrCat("every layout that fits sends too much between sites: ", over_limit.message(),
                   "; allow more, leave out the limit, or pin one site (layout.sites)"));
}

}  // namespace

StepParts GetStepParts(const Outcome& outcome) {
  const sim::Result& slowest = SlowestKind(outcome).found.result;
  sim::Nanos busiest_ns = 0;
  for (const sim::DeviceUse& use : slowest.devices) busiest_ns = std::max(busiest_ns, use.busy_ns);
  StepParts parts{.sync_s = outcome.sync_s, .commit_s = outcome.commit_s};
  parts.work_s = 1e-9 * static_cast<double>(busiest_ns);
  parts.wait_s = std::max(0.0, outcome.step_s - parts.work_s - parts.sync_s - parts.commit_s);
  return parts;
}

std::vector<Alternative> SelectUnlike(const Plan& plan, size_t most) {
  std::set<std::string> seen = {DescribeStructure(plan.layout)};
  std::vector<Alternative> unlike;
  for (const bool simulated : {true, false}) {
    for (const Alternative& other : plan.alternatives) {
      if (unlike.size() == most) break;
      if (other.simulated() == simulated && seen.insert(other.structure).second) {
        unlike.push_back(other);
      }
    }
  }
  SortByRank(unlike);
  return unlike;
}

double ClusterBoundSeconds(const Cluster& cluster, const Costs& costs, const Job& job) {
  std::vector<double> rate_of_type(cluster.types.size(), 0);
  for (size_t t = 0; t < cluster.types.size(); ++t) {
    for (const int tp : TensorParallelSizes(job)) {
      for (const int micro_batch : MicroBatchSizes(job)) {
        const StageCosts all = costs.For(cluster.types[t], tp, micro_batch);
        rate_of_type[t] =
            std::max(rate_of_type[t], micro_batch / all.TotalSeconds(0, all.layers()) / tp);
      }
    }
  }
  double rate = 0;
  for (const Device& device : cluster.devices) rate += rate_of_type[device.type];
  return job.global_batch / rate;
}

namespace {

void MapDevices(const std::vector<int>& to, Layout& layout) {
  for (Replica& replica : layout.replicas) {
    for (Stage& stage : replica.stages) {
      for (int& device : stage.devices) device = to[device];
    }
  }
}

// The plan's reason is what is to be said besides (Reason).
absl::StatusOr<Plan> FindBest(const Cluster& cluster, const Costs& costs, const Job& job,
                              Options options) {
  absl::Status why_not = absl::OkStatus(), over_limit = absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(CheckConstraints(cluster, costs, job));
  std::vector<Candidate> candidates =
      Enumerate(cluster, costs, job, options.stop, &why_not, &over_limit);
  Plan plan;
  Contest contest(cluster, costs, job, options, plan);
  for (const Layout& start : options.starts) contest.EnterStart(start);
  if (candidates.empty() && !contest.any()) {
    return over_limit.ok() ? ExplainNoFit(cluster, costs, job, why_not) : NoLayout(over_limit);
  }
  RefineBest(cluster, costs, job, options, candidates);
  if (job.search == PlanSearch::kBranchAndBound) MapBest(cluster, costs, job, options, candidates);
  plan.candidates = static_cast<int>(candidates.size());
  plan.memory_binds = !why_not.ok() || std::ranges::any_of(candidates, [](const Candidate& c) {
    return SavesMemory(c.layout);
  });
  Compete(cluster, candidates, options, contest, plan);
  contest.ImproveAll(options.improvements);
  contest.TryShapes();
  if (!contest.any()) {
    if (!contest.over_limit().ok()) return NoLayout(contest.over_limit());
    if (!over_limit.ok()) return NoLayout(over_limit);
    if (job.fixed.any()) return Annotate(contest.why_not(), "no layout fits");
    return ExplainNoFit(cluster, costs, job, contest.why_not());
  }
  contest.Finish();
  over_limit.Update(contest.over_limit());
  if (!over_limit.ok()) {
    plan.reason = absl::StrCat("; layouts over a link's limit are left out: with one of them ",
                               over_limit.message());
  }
  return plan;
}

absl::StatusOr<Plan> SearchAll(const Cluster& cluster, const Costs& costs, const Job& job,
                               const Options& options) {
  ATOLL_RETURN_IF_ERROR(Validate(job));
  const std::vector<int> sizes = MicroBatchSizes(job);
  const int64_t largest = *std::ranges::max_element(sizes);
  ATOLL_RETURN_IF_ERROR(CheckBytes(costs.model(), job.global_batch + largest));
  ATOLL_ASSIGN_OR_RETURN(Plan plan, FindBest(cluster, costs, job, options));
  if (options.enough) {
    Contest contest(cluster, costs, job, options, plan);
    for (bool more = true; more && !options.enough();) {
      more = contest.Improve(std::max(1, options.improvements));
    }
    contest.Finish();
  }
  const std::string also = std::move(plan.reason);
  plan.reason = absl::StrCat(
      Reason(plan, absl::StrFormat("%d layouts compared by the cost model, %d simulated",
                                   plan.candidates, plan.simulated)),
      also);
  return plan;
}

}  // namespace

absl::StatusOr<Plan> PlanJob(const Cluster& cluster, const Costs& costs, const Job& job,
                             const Options& options) {
  ATOLL_RETURN_IF_ERROR(Validate(cluster));
  const Canonical canonical = MakeCanonical(cluster);
  std::vector<int> index(canonical.devices.size());
  for (size_t d = 0; d < index.size(); ++d) index[canonical.devices[d]] = static_cast<int>(d);
  Options own = options;
  for (Layout& start : own.starts) MapDevices(index, start);
  absl::StatusOr<Plan> plan = SearchAll(canonical.cluster, costs, job, own);
  if (plan.ok()) MapDevices(canonical.devices, plan->layout);
  const std::string constraints = ConstraintsText(job.fixed);
  if (constraints.empty()) return plan;
  if (plan.ok()) {
    absl::StrAppend(&plan->reason, "; ", constraints);
    return plan;
  }
  return absl::Status(plan.status().code(),
                      absl::StrCat(plan.status().message(), "; planned ", constraints));
}

void Rerank(const Cluster& cluster, const Costs& costs, const Job& job, Plan& plan) {
  plan.price = ComputePrice(cluster, costs, plan.layout).Of(plan.outcome.step_s);
  plan.rank = Ranking(cluster, costs, job).Rank(plan.layout, plan.outcome.step_s);
}

}  // namespace atl::plan

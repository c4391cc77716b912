#include "coordinator/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/status.h"
#include "coordinator/planner/candidates.h"
#include "coordinator/planner/cluster/constraints.h"
#include "coordinator/planner/cluster/leader.h"
#include "coordinator/planner/cluster/objective.h"
#include "coordinator/planner/contest.h"
#include "coordinator/planner/fit.h"
#include "coordinator/planner/groups/mapped_layout.h"
#include "coordinator/planner/groups/refine.h"

namespace atl::plan {
namespace {

constexpr size_t kMostAlternatives = 12;
constexpr size_t kRefined = 20;
constexpr size_t kMapped = 24;  // candidates

// Searches with one choice fixed are worth their time for so many devices. What they find may be so
// much worse than the plan before it is improved; and their candidates' estimates so much worse
// than that.
constexpr int64_t kFixedOfDevices = 48;
constexpr double kMayWin = 1.05;
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
  std::stable_sort(list.begin(), list.end(),
                   [](const Ranked& a, const Ranked& b) { return a.rank < b.rank; });
}

// Refines, for unlike devices, the best of each part of them that candidates use and of each number
// of replicas, which compete with what they were made from. More of them are simulated.
void RefineBest(const Cluster& cluster, const Costs& costs, const Job& job, Options& options,
                std::vector<Candidate>& candidates) {
  if (candidates.empty()) return;
  const Candidate& best = candidates[0];
  if (!AreUnlike(BuildEntityPools(cluster, costs, best.sizes, best.layout.micro_batch))) return;
  options.simulate *= 2;
  std::vector<Candidate> refined;
  for (const bool fitted : {false, true}) {
    std::set<size_t> replicas;
    std::set<std::string> scopes;
    const size_t most = refined.size() + kRefined;
    for (const Candidate& candidate : candidates) {
      if (refined.size() == most) break;
      if (candidate.fitted != fitted) continue;
      const bool new_scope = scopes.insert(candidate.scope).second;
      const bool new_count = replicas.insert(candidate.layout.replicas.size()).second;
      if (new_scope || new_count) refined.push_back(candidate);
    }
  }
  ForAll(options.pool, refined.size(), [&](size_t i) {
    const Costs own = costs;  // they are not for several threads
    Refine(cluster, own, job, options.stop, refined[i]);
    refined[i].how += ", refined";
  });
  candidates.insert(candidates.end(), refined.begin(), refined.end());
  SortByRank(candidates);
}

// Maps the devices of the best candidates, and of the best of each part of the devices and each
// number of replicas, to stages by branch and bound. These compete with what they were made of.
void MapBest(const Cluster& cluster, const Costs& costs, const Job& job, Options& options,
             std::vector<Candidate>& candidates) {
  options.simulate += 6;
  std::vector<const Candidate*> chosen;
  for (const bool fitted : {false, true}) {
    std::set<size_t> replicas;
    std::set<std::string> scopes;
    for (const Candidate& candidate : candidates) {
      if (chosen.size() == kMapped) break;
      if (candidate.fitted != fitted) continue;
      const bool new_scope = scopes.insert(candidate.scope).second;
      const bool new_count = replicas.insert(candidate.layout.replicas.size()).second;
      const bool near = &candidate - candidates.data() < options.simulate;
      if (new_scope || new_count || near) chosen.push_back(&candidate);
    }
  }
  MappingOptions mapping;
  mapping.stop = options.stop;
  mapping.pool = options.pool;
  mapping.max_nodes = options.mapping_nodes / static_cast<int64_t>(kMapped);
  const Ranking ranking(cluster, costs, job);
  std::vector<Candidate> mapped;
  for (const Candidate* candidate : chosen) {
    if (options.stop && options.stop()) break;
    std::optional<MappedLayout> layout = Mapped(cluster, costs, job, candidate->layout, mapping);
    if (!layout || !UsesLeader(cluster, layout->layout) ||
        !DegreesAgree(costs.model(), layout->layout)) {
      continue;
    }
    Candidate& added = mapped.emplace_back(*candidate);
    added.layout = std::move(layout->layout);
    absl::StrAppend(&added.how, ", ", kByBranchAndBound);
    added.estimate_s = EstimateSeconds(cluster, costs, job, added.layout);
    added.rank = ranking.Rank(added.layout, added.estimate_s);
  }
  candidates.insert(candidates.end(), std::make_move_iterator(mapped.begin()),
                    std::make_move_iterator(mapped.end()));
  SortByRank(candidates);
}

// Two ways of grouping often lead to the same layout, which shows in its estimate.
std::string SameAs(const Candidate& candidate) {
  return absl::StrFormat("%s %.9g", Describe(candidate.layout), candidate.estimate_s);
}

// Each kind of layout once: which of the candidates are simulated, and which listed.
void Compete(const std::vector<Candidate>& candidates, const Options& options, Contest& contest,
             Plan& plan) {
  std::set<std::string> seen;
  for (const Candidate& candidate : candidates) {
    const std::string family = Family(candidate);
    const std::string same = SameAs(candidate);
    if (!seen.insert(same).second || !seen.insert(family).second) continue;
    // Without a layout so far, continue: the estimate knows less of memory than the simulator.
    const bool enough = plan.simulated >= options.simulate || contest.Stopped();
    if (!enough || (!contest.any() && !contest.limited())) {
      contest.EnterBoth(candidate);
    } else if (plan.alternatives.size() <= kMostAlternatives) {
      contest.Lose(family, candidate.layout, candidate.estimate_s, nullptr);
    } else {
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

// A job with a choice fixed that it leaves open, on all devices or on those of all types but one.
struct Narrower {
  Job job;
  int without_type = -1;
};

// A search ranks candidates by their estimates and simulates few of them; with less to choose from
// it simulates others, and may find what it has overlooked.
std::vector<Narrower> FixOneChoice(const Cluster& cluster, const Narrower& from) {
  constexpr size_t kMostTypes = 4;
  std::vector<Narrower> made;
  for (const int count : {1, 2, 3, 4, 6, 8}) {
    if (from.job.fixed.stages == 0) made.emplace_back(from).job.fixed.stages = count;
    if (from.job.fixed.replicas == 0) made.emplace_back(from).job.fixed.replicas = count;
  }
  const std::vector<int> degrees = TensorParallelSizes(from.job);
  for (const int degree : degrees) {
    if (degrees.size() > 1) made.emplace_back(from).job.tensor_parallel = {degree};
  }
  const size_t types = cluster.types.size();
  for (size_t t = 0; from.without_type < 0 && types > 1 && types <= kMostTypes && t < types; ++t) {
    made.emplace_back(from).without_type = static_cast<int>(t);
  }
  return made;
}

// Only plans that rank below `rank_limit` are looked for. The plan's reason is what is to be said
// besides (Reason).
absl::StatusOr<Plan> FindBest(const Cluster& cluster, const Costs& costs, const Job& job,
                              Options options, double rank_limit) {
  absl::Status why_not = absl::OkStatus(), over_limit = absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(CheckConstraints(cluster, costs, job));
  std::vector<Candidate> candidates =
      Enumerate(cluster, costs, job, options.stop, &why_not, &over_limit);
  if (candidates.empty() && !over_limit.ok()) return NoLayout(over_limit);
  if (candidates.empty()) return ExplainNoFit(cluster, costs, job, why_not);
  std::erase_if(candidates,
                [&](const Candidate& c) { return c.rank > kEstimateErrs * rank_limit; });
  RefineBest(cluster, costs, job, options, candidates);
  if (job.search == Search::kBranchAndBound) MapBest(cluster, costs, job, options, candidates);
  Plan plan;
  plan.candidates = static_cast<int>(candidates.size());
  plan.memory_binds =
      !why_not.ok() || std::any_of(candidates.begin(), candidates.end(),
                                   [](const Candidate& c) { return SavesMemory(c.layout); });
  Contest contest(cluster, costs, job, options, plan, rank_limit);
  Compete(candidates, options, contest, plan);
  if (contest.any()) contest.Improve(options.improvements);
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

absl::StatusOr<Plan> FindNarrower(const Cluster& cluster, const Costs& costs,
                                  const Narrower& narrower, const Options& options,
                                  double rank_limit) {
  if (narrower.without_type < 0) {
    return FindBest(cluster, costs, narrower.job, options, rank_limit);
  }
  const auto keep = [&](const Device& device) { return device.type != narrower.without_type; };
  std::vector<int> kept;
  for (size_t d = 0; d < cluster.devices.size(); ++d) {
    if (keep(cluster.devices[d])) kept.push_back(static_cast<int>(d));
  }
  const Cluster part = WithDevices(cluster, keep);
  if (kept.empty() || part.leader != cluster.leader) return absl::NotFoundError("no part of it");
  ATOLL_ASSIGN_OR_RETURN(Plan plan, FindBest(part, costs, narrower.job, options, rank_limit));
  MapDevices(kept, plan.layout);
  return plan;
}

// The better one, with what both have compared.
void Merge(Plan other, Plan& plan) {
  constexpr double kSame = 1e-9;
  const bool better = other.rank < plan.rank * (1 - kSame);
  if (better) std::swap(plan, other);
  plan.candidates += other.candidates;
  plan.simulated += other.simulated;
  plan.memory_binds = plan.memory_binds || other.memory_binds;
  if (plan.reason.empty()) plan.reason = other.reason;
  if (!better) return;
  plan.alternatives.push_back({.what = Describe(other.layout),
                               .structure = DescribeStructure(other.layout),
                               .step_s = other.outcome.step_s,
                               .price = other.price,
                               .rank = other.rank,
                               .parts = GetStepParts(other.outcome)});
  std::move(other.alternatives.begin(), other.alternatives.end(),
            std::back_inserter(plan.alternatives));
  SortByRank(plan.alternatives);
}

// With one choice fixed; then with another one, too, where the first gave a plan nearly as good as
// the best.
void SearchNarrower(const Cluster& cluster, const Costs& costs, const Narrower& all,
                    const Options& options, Plan& plan) {
  constexpr double kNear = 1.01;
  constexpr size_t kMostNear = 1;
  Options alone = options;
  alone.pool = nullptr;
  std::vector<Narrower> jobs = FixOneChoice(cluster, all);
  for (const bool again : {true, false}) {
    const double rank_limit = kMayWin * plan.rank;
    std::vector<absl::StatusOr<Plan>> found(jobs.size(), absl::UnknownError(""));
    ForAll(options.pool, jobs.size(), [&](size_t i) {
      const Costs own = costs;  // they are not for several threads
      if (options.stop && options.stop()) return;
      found[i] = FindNarrower(cluster, own, jobs[i], alone, rank_limit);
    });
    std::vector<std::pair<double, size_t>> ranked;
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i].ok()) ranked.emplace_back(found[i]->rank, i);
    }
    std::sort(ranked.begin(), ranked.end());
    for (absl::StatusOr<Plan>& other : found) {
      if (other.ok()) Merge(*std::move(other), plan);
    }
    if (!again) return;
    std::vector<Narrower> next;
    for (size_t i = 0; i < std::min(kMostNear, ranked.size()); ++i) {
      if (ranked[i].first > kNear * plan.rank) break;
      for (Narrower& both : FixOneChoice(cluster, jobs[ranked[i].second])) {
        next.push_back(std::move(both));
      }
    }
    jobs = std::move(next);
  }
}

absl::StatusOr<Plan> SearchAll(const Cluster& cluster, const Costs& costs, const Job& job,
                               const Options& options) {
  ATOLL_RETURN_IF_ERROR(Validate(job));
  const std::vector<int> sizes = MicroBatchSizes(job);
  const int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  ATOLL_RETURN_IF_ERROR(CheckBytes(costs.model(), job.global_batch + largest));
  ATOLL_ASSIGN_OR_RETURN(Plan plan, FindBest(cluster, costs, job, options, INFINITY));
  if (std::ssize(cluster.devices) <= kFixedOfDevices) {
    SearchNarrower(cluster, costs, {job}, options, plan);
    plan.cluster_bound_s = ClusterBoundSeconds(cluster, costs, job);
  }
  if (options.enough) {
    Contest contest(cluster, costs, job, options, plan, INFINITY);
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
  absl::StatusOr<Plan> plan = SearchAll(canonical.cluster, costs, job, options);
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
  plan.price = ComputePrice(cluster, costs, job, plan.layout).Of(plan.outcome.step_s);
  plan.rank = Ranking(cluster, costs, job).Rank(plan.layout, plan.outcome.step_s);
}

}  // namespace atl::plan

#include "coordinator/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/rng.h"
#include "common/status.h"
#include "coordinator/planner/candidates.h"
#include "coordinator/planner/cluster/constraints.h"
#include "coordinator/planner/cluster/leader.h"
#include "coordinator/planner/cluster/objective.h"
#include "coordinator/planner/cluster/traffic.h"
#include "coordinator/planner/fit.h"
#include "coordinator/planner/groups/mapped_layout.h"
#include "coordinator/planner/groups/refine.h"
#include "coordinator/planner/improve.h"

namespace atl::plan {
namespace {

constexpr size_t kMostAlternatives = 12;
constexpr size_t kRefined = 20;
constexpr size_t kAnnealed = 4;
constexpr size_t kMapped = 24;  // candidates

// A layout's schedule is searched for a little first. A longer search ends at most half of what
// the step takes beyond its bound, and is not worth it where that is less than this.
constexpr int kQuickRestarts = 8;
// Candidates whose estimate is so many times the best simulated rank may still be better.
constexpr double kNear = 1.15;
// Two stages a device may make a layout so many times faster.
constexpr double kShapesGain = 1.08;
constexpr size_t kReshaped = 4;
constexpr int64_t kNearWork = 40'000;  // WorkOf all of them together
constexpr int64_t kAlikeWork = 3'000;  // and of those whose structure has been simulated
constexpr double kAtBound = 1.001;

constexpr char kByBranchAndBound[] = "mapped by branch and bound";

MappingOptions MappingOptionsOf(const Options& options) {
  MappingOptions mapping;
  mapping.stop = options.stop;
  mapping.parallel = options.parallel;
  return mapping;
}

// Different kinds of layout, not small changes of one.
std::string Family(const Candidate& c) { return absl::StrCat(Describe(c.layout), ", ", c.how); }

// Numbers of replicas, stages and devices a stage: what sets layouts' steps apart most.
std::string StructureOf(const Layout& layout) {
  std::vector<std::string> replicas;
  for (const Replica& replica : layout.replicas) {
    std::string text = absl::StrCat(replica.micro_batches, ":");
    for (const Stage& stage : replica.stages) absl::StrAppend(&text, stage.devices.size(), ",");
    replicas.push_back(std::move(text));
  }
  std::sort(replicas.begin(), replicas.end());
  return absl::StrCat(layout.micro_batch, " ", absl::StrJoin(replicas, " "));
}

// Simulates layouts and keeps the best; the others become alternatives.
class Contest {
 public:
  Contest(const Cluster& cluster, const Costs& costs, const Job& job, const Options& options,
          Plan& plan)
      : cluster_(cluster),
        costs_(costs),
        job_(job),
        options_(options),
        ranking_(cluster, costs, job),
        plan_(plan) {
    plan_.seed = options.seed;
    plan_.outcome.step_s = INFINITY;
    plan_.rank = INFINITY;
  }

  bool Stopped() const { return options_.stop && options_.stop(); }
  bool any() const { return !plan_.layout.replicas.empty(); }
  const absl::Status& why_not() const { return why_not_; }
  const absl::Status& over_limit() const { return over_limit_; }  // the last one that was refused

  // True if it is the best so far.
  bool Enter(Layout layout, const std::string& what) {
    if (!job_.fixed.schedule.empty()) {
      const absl::Status set = SetSchedule(cluster_, costs_, job_.fixed.schedule, layout);
      if (!set.ok()) why_not_ = set;
      if (!set.ok()) return false;
    }
    auto outcome = Evaluated(layout, nullptr);
    ++plan_.simulated;
    if (absl::IsCancelled(outcome.status())) {
      Lose(what, layout, EstimateSeconds(cluster_, costs_, job_, layout), false);
      return false;
    }
    if (!outcome.ok()) {
      why_not_ = outcome.status();
      return false;
    }
    if (!KeepsLimits(layout, outcome->step_s)) return false;
    const double rank = ranking_.Rank(layout, outcome->step_s);
    NoteIdling(layout, *outcome, rank);
    if (rank >= plan_.rank) {
      Lose(what, layout, outcome->step_s, true);
      return false;
    }
    if (any()) Lose(winner_, plan_.layout, plan_.outcome.step_s, true);
    winner_ = what;
    Win(std::move(layout), *std::move(outcome), rank);
    return true;
  }

  // A candidate, and the same with its groups ordered by SpanTrain's search.
  void EnterBoth(const Candidate& candidate) {
    const bool obeys = Obeys(job_.fixed, candidate.layout);
    if (obeys) Enter(candidate.layout, Family(candidate));
    if (!obeys && ++disobeyed_ > options_.simulate) return;
    std::string how;
    const std::optional<Layout> reordered =
        Reordered(cluster_, costs_, candidate.layout, options_.exact_work, &how);
    if (!reordered.has_value() || !IsAllowed(*reordered)) return;
    const double estimate_s = EstimateSeconds(cluster_, costs_, job_, *reordered);
    if (ranking_.Rank(*reordered, estimate_s) >= candidate.rank) return;
    Enter(*reordered, absl::StrCat(Describe(*reordered), ", ", candidate.how, ", ", how));
  }

  // The winner's devices once more, with a quarter of all nodes, or until the time is over.
  void MapWinner() {
    MappingOptions options = MappingOptionsOf(options_);
    options.max_nodes = options_.improvements == Options::kUntilStopped
                            ? std::numeric_limits<int64_t>::max()
                            : options_.mapping_nodes / 4;
    const std::optional<MappedLayout> mapped =
        Mapped(cluster_, costs_, job_, plan_.layout, options);
    if (!mapped) return;
    plan_.mapping = {mapped->seconds, mapped->bound_s, mapped->nodes};
    if (!IsAllowed(mapped->layout)) return;
    Enter(mapped->layout, absl::StrCat(Describe(mapped->layout), ", ", kByBranchAndBound));
  }

  // Small changes of the winner.
  void Improve(int tries) {
    Rng rng(options_.seed);
    for (int i = 0; i < tries && !Stopped(); ++i) {
      Layout layout = plan_.layout;
      if (!Perturb(cluster_, costs_, plan_.outcome, rng, layout)) continue;
      if (!IsAllowed(layout)) continue;
      auto outcome = Evaluated(layout, &plan_.outcome);
      ++plan_.simulated;
      if (!outcome.ok() || !KeepsLimits(layout, outcome->step_s)) continue;
      const double rank = ranking_.Rank(layout, outcome->step_s);
      if (rank < plan_.rank) Win(std::move(layout), *std::move(outcome), rank);
    }
  }

  void Lose(const std::string& what, const Layout& layout, double step_s, bool simulated) {
    plan_.alternatives.push_back({.what = what,
                                  .step_s = step_s,
                                  .price = PriceOf(cluster_, costs_, job_, layout).Of(step_s),
                                  .rank = ranking_.Rank(layout, step_s),
                                  .simulated = simulated});
  }

  // Two stages per device, of the winner and of those that it may make better than the winner.
  void TryShapes() {
    if (!options_.two_stages_per_device || plan_.layout.shape != Shape::kPlain) return;
    if (!job_.fixed.schedule.empty()) return;
    NoteIdling(plan_.layout, plan_.outcome, plan_.rank);
    const double rank = plan_.rank;
    const std::vector<std::pair<double, Layout>> idling = std::move(idling_);
    bool won = false;
    for (const auto& [plain_rank, plain] : idling) {
      if (plain_rank > kShapesGain * rank) break;
      for (const Shape shape : {Shape::kVShaped, Shape::kInterleaved}) {
        Layout layout = plain;
        if (Stopped() || !Reshape(cluster_, costs_, shape, layout)) continue;
        won = Enter(layout, Describe(layout)) || won;
      }
    }
    if (won) Improve(options_.improvements / 4);
  }

  // A longer search for the winner's schedule, where there is something to gain.
  void Polish() {
    if (Stopped() || plan_.outcome.step_s <= 1.01 * plan_.outcome.bound_s) return;
    const Evaluation longer{.restarts = 4 * options_.restarts,
                            .seed = options_.seed,
                            .improve = 8 * options_.restarts,
                            .searches = &searches_};
    auto outcome = EvaluateLayout(cluster_, costs_, job_, plan_.layout, longer);
    ++plan_.simulated;
    if (!outcome.ok() || outcome->step_s >= plan_.outcome.step_s) return;
    if (!KeepsLimits(plan_.layout, outcome->step_s)) return;
    const double rank = ranking_.Rank(plan_.layout, outcome->step_s);
    Win(plan_.layout, *std::move(outcome), rank);
  }

  void Finish() {
    Rerank(cluster_, costs_, job_, plan_);
    std::stable_sort(plan_.alternatives.begin(), plan_.alternatives.end(),
                     [](const Alternative& a, const Alternative& b) { return a.rank < b.rank; });
    plan_.cluster_bound_s = ClusterBoundSeconds(cluster_, costs_, job_);
    plan_.times_from = TimesFrom(cluster_, costs_, plan_.layout);
  }

 private:
  // Of the layout with the best savings, which it gets: by a short search for its schedule, and by
  // a longer one where half of what is left to its bound would make it the best.
  absl::StatusOr<Outcome> Evaluated(Layout& layout, const Outcome* known) {
    Evaluation evaluation{std::min(kQuickRestarts, options_.restarts), options_.seed};
    evaluation.known = known;
    evaluation.searches = &searches_;
    evaluation.limit_s = ranking_.LongestStepBetter(layout, plan_.rank);
    // With two stages a device it may still be better (NoteIdling).
    evaluation.step_limit_s =
        evaluation.limit_s * (StaysInSites(cluster_, layout) ? kShapesGain : 1);
    auto outcome = EvaluateSaving(cluster_, costs_, job_, evaluation, layout);
    const bool gains = outcome.ok() && outcome->step_s > kAtBound * outcome->bound_s &&
                       (outcome->step_s + outcome->bound_s) / 2 < evaluation.limit_s;
    if (!gains || evaluation.restarts == options_.restarts) return outcome;
    evaluation.restarts = options_.restarts;
    return EvaluateSaving(cluster_, costs_, job_, evaluation, layout);
  }

  // Keeps the best plain layouts whose devices idle and whose pipelines stay inside sites, one of
  // each structure.
  void NoteIdling(const Layout& layout, const Outcome& outcome, double rank) {
    if (layout.shape != Shape::kPlain || BubbleOf(outcome) < 0.01) return;
    if (!StaysInSites(cluster_, layout)) return;
    const std::string structure = StructureOf(layout);
    const auto same = std::find_if(idling_.begin(), idling_.end(), [&](const auto& one) {
      return StructureOf(one.second) == structure;
    });
    if (same != idling_.end() && same->first <= rank) return;
    if (same != idling_.end()) idling_.erase(same);
    const auto place = std::find_if(idling_.begin(), idling_.end(),
                                    [&](const auto& one) { return one.first > rank; });
    idling_.insert(place, {rank, layout});
    if (idling_.size() > kReshaped) idling_.pop_back();
  }
  void Win(Layout layout, Outcome outcome, double rank) {
    plan_.layout = std::move(layout);
    plan_.outcome = std::move(outcome);
    plan_.rank = rank;
  }
  // Notes which limit it goes over.
  bool KeepsLimits(const Layout& layout, double step_s) {
    absl::Status kept = CheckTraffic(cluster_, costs_, job_, layout, step_s);
    if (kept.ok()) return true;
    over_limit_ = std::move(kept);
    return false;
  }
  bool IsAllowed(const Layout& layout) const {
    return Obeys(job_.fixed, layout) && UsesLeader(cluster_, layout) &&
           DegreesAgree(costs_.model(), layout);
  }

  const Cluster& cluster_;
  const Costs& costs_;
  const Job& job_;
  const Options& options_;
  const Ranking ranking_;
  Plan& plan_;
  ScheduleSearches searches_;
  std::vector<std::pair<double, Layout>> idling_;  // by rank
  int disobeyed_ = 0;  // candidates that break what the job fixes, looked at all the same
  std::string winner_;
  absl::Status why_not_ = absl::ResourceExhaustedError("no layout fits");
  absl::Status over_limit_ = absl::OkStatus();
};

std::string Reason(const Plan& plan, absl::string_view compared) {
  std::string text(compared);
  const ReplicaOutcome& slowest = SlowestKind(plan.outcome);
  absl::StrAppend(&text, "; schedule: ", slowest.found.how);
  const Alternative* next = nullptr;
  for (const Alternative& other : plan.alternatives) {
    if (other.simulated && (next == nullptr || other.rank < next->rank)) next = &other;
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
  if (plan.mapping) {
    absl::StrAppendFormat(
        &text,
        "; branch and bound over %d nodes: the cost model has no mapping of these "
        "devices that is more than %.1f%% better",
        plan.mapping->nodes, 100 * (plan.mapping->seconds / plan.mapping->bound_s - 1));
  }
  const std::string gap = GapReason(plan.layout, plan.outcome);
  if (!gap.empty()) absl::StrAppend(&text, ": ", gap);
  return text;
}

void SortByRank(std::vector<Candidate>& candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.rank < b.rank; });
}

// Of unlike devices, the best of each part of them that candidates use and of each number of
// replicas are refined, and compete beside what they were made from; so do the best of all,
// annealed. More of them are simulated.
void RefineBest(const Cluster& cluster, const Costs& costs, const Job& job, Options& options,
                std::vector<Candidate>& candidates) {
  if (candidates.empty()) return;
  const Candidate& best = candidates[0];
  if (!AreUnlike(PoolsOf(cluster, costs, best.sizes, best.layout.micro_batch))) return;
  options.simulate *= 2;
  for (const bool fitted : {false, true}) {
    std::set<size_t> replicas;
    std::set<std::string> scopes;
    std::vector<Candidate> refined;
    for (const Candidate& candidate : candidates) {
      if (refined.size() == kRefined) break;
      if (candidate.fitted != fitted) continue;
      const bool new_scope = scopes.insert(candidate.scope).second;
      const bool new_count = replicas.insert(candidate.layout.replicas.size()).second;
      if (!new_scope && !new_count) continue;
      Candidate& better = refined.emplace_back(candidate);
      Refine(cluster, costs, job, options.seed, options.stop, better);
      better.how += ", refined";
    }
    candidates.insert(candidates.end(), refined.begin(), refined.end());
  }
  SortByRank(candidates);
  const size_t annealed = std::min(kAnnealed, candidates.size());
  for (size_t i = 0; i < annealed; ++i) {
    Candidate& better = candidates.emplace_back(candidates[i]);
    Anneal(cluster, costs, job, options.seed + i, options.stop, better);
    better.how += ", annealed";
  }
  options.simulate += static_cast<int>(annealed);
  SortByRank(candidates);
}

// Of the best candidates, and of the best of each part of the devices and each number of replicas,
// the devices are mapped to stages by branch and bound. These compete beside what they were made
// of.
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
  MappingOptions mapping = MappingOptionsOf(options);
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
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.rank < b.rank; });
}

// Passes of micro-batches through stages in one simulation.
int64_t WorkOf(const Layout& layout) {
  int64_t most = 0;
  for (const Replica& replica : layout.replicas) {
    most = std::max(most, std::ssize(replica.stages) * replica.micro_batches);
  }
  return most;
}

// Two ways of grouping often lead to the same layout, which shows in its estimate.
std::string SameAs(const Candidate& candidate) {
  return absl::StrFormat("%s %.9g", Describe(candidate.layout), candidate.estimate_s);
}

// What has been simulated.
struct Simulated {
  std::set<std::string> structures;  // StructureOf
  std::set<std::string> layouts;     // SameAs
};

// Estimates err by some percent, and layouts differ by less: those that may still be the best are
// simulated, too, best first, one of each structure before others, as far as a fixed amount of work
// goes.
void CompeteNear(const std::vector<Candidate>& candidates, Simulated done, Contest& contest,
                 const Plan& plan) {
  for (const bool new_structure : {true, false}) {
    int64_t work_left = new_structure ? kNearWork : kAlikeWork;
    for (const Candidate& candidate : candidates) {
      if (candidate.rank > kNear * plan.rank || contest.Stopped()) break;
      const std::string structure = StructureOf(candidate.layout);
      if (new_structure && done.structures.count(structure) > 0) continue;
      if (!done.layouts.insert(SameAs(candidate)).second) continue;
      work_left -= WorkOf(candidate.layout);
      if (work_left < 0) break;
      done.structures.insert(structure);
      contest.EnterBoth(candidate);
    }
  }
}

// Each kind of layout once: which of the candidates are simulated, and which listed.
void Compete(const std::vector<Candidate>& candidates, const Options& options, Contest& contest,
             Plan& plan) {
  std::set<std::string> seen;
  Simulated simulated;
  for (const Candidate& candidate : candidates) {
    const std::string family = Family(candidate);
    const std::string same = SameAs(candidate);
    if (!seen.insert(same).second || !seen.insert(family).second) continue;
    // Without a layout so far, continue: the estimate knows less of memory than the simulator.
    const bool enough = plan.simulated >= options.simulate || contest.Stopped();
    if (!enough || !contest.any()) {
      contest.EnterBoth(candidate);
      simulated.structures.insert(StructureOf(candidate.layout));
      simulated.layouts.insert(same);
    } else if (plan.alternatives.size() <= kMostAlternatives) {
      contest.Lose(family, candidate.layout, candidate.estimate_s, false);
    } else {
      break;
    }
  }
  if (contest.any()) CompeteNear(candidates, std::move(simulated), contest, plan);
}

absl::Status NoLayout(const absl::Status& over_limit) {
  return absl::FailedPreconditionError(
      absl::StrCat("every layout that fits sends too much between sites: ", over_limit.message(),
                   "; allow more, leave out the limit, or pin one site (layout.sites)"));
}

// "4", or "1 to 4".
std::string DegreesText(const Layout& layout) {
  size_t least = SIZE_MAX, most = 0;
  for (const Replica& replica : layout.replicas) {
    for (const Stage& stage : replica.stages) {
      least = std::min(least, stage.devices.size());
      most = std::max(most, stage.devices.size());
    }
  }
  return least < most ? absl::StrCat(least, " to ", most) : absl::StrCat(most);
}

}  // namespace

std::string Describe(const Layout& layout) {
  size_t least = SIZE_MAX;
  size_t most = 0;
  const size_t each = layout.shape == Shape::kPlain ? 1 : 2;
  for (const Replica& replica : layout.replicas) {
    least = std::min(least, replica.stages.size() / each);
    most = std::max(most, replica.stages.size() / each);
  }
  const std::string stages = least == most ? absl::StrCat(most) : absl::StrCat(least, " to ", most);
  const char* halves = layout.shape == Shape::kVShaped       ? " of two halves in a V"
                       : layout.shape == Shape::kInterleaved ? " of two halves interleaved"
                                                             : "";
  return absl::StrCat(layout.replicas.size(),
                      layout.replicas.size() == 1 ? " replica" : " replicas", " x ", stages,
                      most == 1 ? " stage" : " stages", halves, ", TP ", DegreesText(layout),
                      ", micro-batch ", layout.micro_batch);
}

std::string GapReason(const Layout& layout, const Outcome& outcome) {
  if (outcome.step_s <= 1.05 * outcome.bound_s) return "";
  const ReplicaOutcome& kind = SlowestKind(outcome);
  const int micro_batches = layout.replicas[kind.replicas[0]].micro_batches;
  // Memory binds where another micro-batch would not have fitted.
  for (size_t s = 0; s < kind.problem.chunks.size(); ++s) {
    const sim::Chunk& chunk = kind.problem.chunks[s];
    const int64_t has = kind.problem.devices[chunk.device].memory_bytes;
    const int64_t peak = kind.found.result.devices[chunk.device].peak_bytes;
    if (chunk.activation_bytes > 0 && peak + chunk.activation_bytes > has) {
      return absl::StrCat("memory binds: stage ", s, " has room for ", has / chunk.activation_bytes,
                          " of ", micro_batches, " micro-batches");
    }
  }
  double wire_s = 0;
  for (const sim::Chunk& chunk : kind.problem.chunks) {
    if (chunk.forward_link == sim::kNoLink) continue;
    wire_s = std::max(
        wire_s, 1e-9 * static_cast<double>(sim::AloneSerialNs(
                           kind.problem.network, kind.problem.network.links[chunk.forward_link],
                           chunk.forward_bytes)));
  }
  if (wire_s * micro_batches > 0.5 * outcome.step_s) {
    return absl::StrFormat("a link is busy %.0f%% of the step",
                           100 * wire_s * micro_batches / outcome.step_s);
  }
  return absl::StrCat("few micro-batches: ", micro_batches, " over ", kind.problem.chunks.size(),
                      " stages; filling and draining the pipeline shows");
}

std::string TimesFrom(const Cluster& cluster, const Costs& costs, const Layout& layout) {
  Source worst = Source::kMeasured;
  std::set<int> types;
  for (const Replica& replica : layout.replicas) {
    for (const Stage& stage : replica.stages) {
      const int type = cluster.devices[stage.devices[0]].type;
      if (!types.insert(type).second) continue;
      worst = std::max(
          worst, GroupCosts(cluster, costs, layout.micro_batch, stage.devices, layout.tensor_shares)
                     .source());
    }
  }
  if (worst == Source::kMeasured) return "measured";
  if (worst == Source::kInterpolated) return "interpolated between measured sizes";
  return absl::StrFormat("roofline at %.0f%% of the datasheet", 100 * costs.options().efficiency);
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

absl::StatusOr<Plan> FindBest(const Cluster& cluster, const Costs& costs, const Job& job,
                              Options options) {
  ATOLL_RETURN_IF_ERROR(Validate(cluster));
  ATOLL_RETURN_IF_ERROR(Validate(job));
  absl::Status why_not = absl::OkStatus(), over_limit = absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(CheckConstraints(cluster, costs, job));
  std::vector<Candidate> candidates =
      Enumerate(cluster, costs, job, options.stop, &why_not, &over_limit);
  if (candidates.empty() && !over_limit.ok()) return NoLayout(over_limit);
  if (candidates.empty()) return ExplainNoFit(cluster, costs, job, why_not);
  RefineBest(cluster, costs, job, options, candidates);
  const bool local = job.search == Search::kLocal;
  if (!local) MapBest(cluster, costs, job, options, candidates);
  Plan plan;
  plan.candidates = static_cast<int>(candidates.size());
  plan.memory_binds =
      !why_not.ok() || std::any_of(candidates.begin(), candidates.end(),
                                   [](const Candidate& c) { return SavesMemory(c.layout); });
  Contest contest(cluster, costs, job, options, plan);
  Compete(candidates, options, contest, plan);
  if (!contest.any()) {
    if (!contest.over_limit().ok()) return NoLayout(contest.over_limit());
    if (!over_limit.ok()) return NoLayout(over_limit);
    if (job.fixed.any()) return Annotate(contest.why_not(), "no layout fits");
    return ExplainNoFit(cluster, costs, job, contest.why_not());
  }
  if (!local) contest.MapWinner();
  contest.Improve(options.improvements);
  contest.TryShapes();
  contest.Polish();
  contest.Finish();
  plan.reason = Reason(plan, absl::StrFormat("%d layouts compared by the cost model, %d simulated",
                                             plan.candidates, plan.simulated));
  over_limit.Update(contest.over_limit());
  if (!over_limit.ok()) {
    absl::StrAppend(&plan.reason, "; layouts over a link's limit are left out: with one of them ",
                    over_limit.message());
  }
  return plan;
}

}  // namespace

absl::StatusOr<Plan> PlanJob(const Cluster& cluster, const Costs& costs, const Job& job,
                             const Options& options) {
  absl::StatusOr<Plan> plan = FindBest(cluster, costs, job, options);
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
  plan.price = PriceOf(cluster, costs, job, plan.layout).Of(plan.outcome.step_s);
  plan.rank = Ranking(cluster, costs, job).Rank(plan.layout, plan.outcome.step_s);
}

void NameSites(const Grouping& grouping, Cluster& cluster) {
  for (size_t s = 0; s < grouping.sites.size(); ++s) {
    for (const int d : grouping.sites[s]) cluster.devices[d].site = absl::StrCat("site", s);
  }
}

Cluster WithDevices(const Cluster& cluster, const std::function<bool(const Device&)>& keep) {
  Cluster rest;
  rest.types = cluster.types;
  rest.trunks = cluster.trunks;
  rest.node_latency_s = cluster.node_latency_s;
  rest.site_wire = cluster.site_wire;
  rest.wan_wire = cluster.wan_wire;
  rest.bytes_per_day = cluster.bytes_per_day;
  std::vector<int> index(cluster.devices.size(), -1);
  std::set<std::string> nodes, sites;
  for (size_t d = 0; d < cluster.devices.size(); ++d) {
    if (!keep(cluster.devices[d])) continue;
    sites.insert(cluster.devices[d].site);
    index[d] = static_cast<int>(rest.devices.size());
    rest.devices.push_back(cluster.devices[d]);
    nodes.insert(cluster.devices[d].node);
  }
  if (nodes.count(cluster.leader) > 0) rest.leader = cluster.leader;
  for (const std::string& from : sites) {
    for (const std::string& to : sites) {
      const auto wire = cluster.site_to_site.find({from, to});
      if (wire != cluster.site_to_site.end()) rest.site_to_site.insert(*wire);
    }
  }
  for (const auto& [pair, wire] : cluster.node_to_node) {
    if (nodes.count(pair.first) > 0 && nodes.count(pair.second) > 0) {
      rest.node_to_node.emplace_hint(rest.node_to_node.end(), pair, wire);
    }
  }
  for (const auto& [pair, wire] : cluster.measured) {
    if (index[pair.first] < 0 || index[pair.second] < 0) continue;
    rest.measured[{index[pair.first], index[pair.second]}] = wire;
  }
  return rest;
}

Cluster WithoutNode(const Cluster& cluster, absl::string_view site, absl::string_view node) {
  return WithDevices(
      cluster, [&](const Device& device) { return device.site != site || device.node != node; });
}

}  // namespace atl::plan

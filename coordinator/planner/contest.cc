#include "coordinator/planner/contest.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_join.h"
#include "coordinator/planner/cluster/leader.h"
#include "coordinator/planner/cluster/traffic.h"

namespace atl::plan {
namespace {

// A layout's schedule is searched for a little first. A longer search ends at most half of what
// the step takes beyond its bound, and is not worth it where that is less than this.
constexpr int kQuickRestarts = 8;
constexpr double kAtBound = 1.001;
// Two stages a device may make a layout so many times faster.
constexpr double kShapesGain = 1.08;
constexpr size_t kReshaped = 4;

// Where the layers lie.
std::string PlacementKey(const Layout& layout) {
  std::string key = absl::StrCat(static_cast<int>(layout.shape));
  for (const Replica& replica : layout.replicas) {
    absl::StrAppend(&key, ";", replica.micro_batches);
    for (const Stage& stage : replica.stages) {
      absl::StrAppend(&key, ",", stage.devices[0], "-", stage.last_layer);
    }
  }
  return key;
}

}  // namespace

std::string Family(const Candidate& candidate) {
  return absl::StrCat(Describe(candidate.layout), ", ", candidate.how);
}

std::string StructureKey(const Layout& layout) {
  std::vector<std::string> replicas;
  for (const Replica& replica : layout.replicas) {
    std::string text = absl::StrCat(replica.micro_batches, ":");
    for (const Stage& stage : replica.stages) absl::StrAppend(&text, stage.devices.size(), ",");
    replicas.push_back(std::move(text));
  }
  std::sort(replicas.begin(), replicas.end());
  return absl::StrCat(layout.micro_batch, " ", absl::StrJoin(replicas, " "));
}

Contest::Contest(const Cluster& cluster, const Costs& costs, const Job& job, const Options& options,
                 Plan& plan, double rank_limit)
    : cluster_(cluster),
      costs_(costs),
      job_(job),
      options_(options),
      ranking_(cluster, costs, job),
      plan_(plan),
      rank_limit_(rank_limit) {
  if (any()) return;
  plan_.seed = options.seed;
  plan_.outcome.step_s = INFINITY;
  plan_.rank = INFINITY;
}

bool Contest::Enter(Layout layout, const std::string& what) {
  if (!job_.fixed.schedule.empty()) {
    const absl::Status set = SetSchedule(cluster_, costs_, job_.fixed.schedule, layout);
    if (!set.ok()) why_not_ = set;
    if (!set.ok()) return false;
  }
  auto outcome = Evaluated(layout, nullptr);
  ++plan_.simulated;
  if (absl::IsCancelled(outcome.status())) {
    Lose(what, layout, EstimateSeconds(cluster_, costs_, job_, layout), nullptr);
    return false;
  }
  if (!outcome.ok()) {
    why_not_ = outcome.status();
    return false;
  }
  if (!KeepsLimits(layout, outcome->step_s)) return false;
  const double rank = ranking_.Rank(layout, outcome->step_s);
  NoteIdling(layout, *outcome, rank);
  if (rank >= RankToBeat()) {
    Lose(what, layout, outcome->step_s, &*outcome);
    return false;
  }
  if (any()) Lose(winner_, plan_.layout, plan_.outcome.step_s, &plan_.outcome);
  winner_ = what;
  Win(std::move(layout), *std::move(outcome), rank);
  return true;
}

void Contest::EnterBoth(const Candidate& candidate) {
  const bool satisfies = Satisfies(job_.fixed, candidate.layout);
  if (satisfies) Enter(candidate.layout, Family(candidate));
  if (!satisfies && ++violating_ > options_.simulate) return;
  const std::optional<Layout> reordered = Reordered(cluster_, costs_, candidate.layout);
  if (!reordered.has_value() || !IsAllowed(*reordered)) return;
  const double estimate_s = EstimateSeconds(cluster_, costs_, job_, *reordered);
  if (ranking_.Rank(*reordered, estimate_s) >= candidate.rank) return;
  Enter(*reordered,
        absl::StrCat(Describe(*reordered), ", ", candidate.how, ", ordered by beam search"));
}

void Contest::Lose(const std::string& what, const Layout& layout, double step_s,
                   const Outcome* outcome) {
  plan_.alternatives.push_back({.what = what,
                                .structure = DescribeStructure(layout),
                                .step_s = step_s,
                                .price = ComputePrice(cluster_, costs_, job_, layout).Of(step_s),
                                .rank = ranking_.Rank(layout, step_s),
                                .parts = {}});
  if (outcome != nullptr) plan_.alternatives.back().parts = GetStepParts(*outcome);
}

bool Contest::Improve(int tries) {
  for (int tried = 0; tried < tries && !Stopped();) {
    if (!std::exchange(changes_listed_, true)) {
      changes_ = ListChanges(cluster_, plan_.layout, plan_.outcome);
      next_change_ = 0;
    }
    if (next_change_ == changes_.size()) return false;
    Layout layout = plan_.layout;
    if (!Apply(cluster_, costs_, plan_.outcome, changes_[next_change_++], layout)) continue;
    if (!IsAllowed(layout) || !tried_.insert(PlacementKey(layout)).second) continue;
    ++tried;
    auto outcome = Evaluated(layout, &plan_.outcome);
    ++plan_.simulated;
    if (!outcome.ok() || !KeepsLimits(layout, outcome->step_s)) continue;
    const double rank = ranking_.Rank(layout, outcome->step_s);
    if (rank < plan_.rank) Win(std::move(layout), *std::move(outcome), rank);
  }
  return !Stopped();
}

void Contest::TryShapes() {
  if (!options_.two_stages_per_device || plan_.layout.shape != Shape::kPlain) return;
  if (!job_.fixed.schedule.empty()) return;
  if (any()) NoteIdling(plan_.layout, plan_.outcome, plan_.rank);
  const double rank = RankToBeat();
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

void Contest::Finish() {
  Rerank(cluster_, costs_, job_, plan_);
  std::stable_sort(plan_.alternatives.begin(), plan_.alternatives.end(),
                   [](const Alternative& a, const Alternative& b) { return a.rank < b.rank; });
  plan_.cluster_bound_s = ClusterBoundSeconds(cluster_, costs_, job_);
  plan_.times_from = TimesFrom(cluster_, costs_, plan_.layout);
}

absl::StatusOr<Outcome> Contest::Evaluated(Layout& layout, const Outcome* known) {
  Evaluation evaluation{std::min(kQuickRestarts, options_.restarts), options_.seed};
  evaluation.known = known;
  evaluation.searches = &searches_;
  evaluation.limit_s = ranking_.LongestStepBetter(layout, RankToBeat());
  // With two stages a device it may still be better (NoteIdling).
  evaluation.step_limit_s = evaluation.limit_s * (StaysInSites(cluster_, layout) ? kShapesGain : 1);
  auto outcome = EvaluateSaving(cluster_, costs_, job_, evaluation, layout);
  const bool gains = outcome.ok() && outcome->step_s > kAtBound * outcome->bound_s &&
                     (outcome->step_s + outcome->bound_s) / 2 < evaluation.limit_s;
  if (!gains || evaluation.restarts == options_.restarts) return outcome;
  evaluation.restarts = options_.restarts;
  return EvaluateSaving(cluster_, costs_, job_, evaluation, layout);
}

bool Contest::KeepsLimits(const Layout& layout, double step_s) {
  absl::Status kept = CheckTraffic(cluster_, costs_, job_, layout, step_s);
  if (kept.ok()) return true;
  over_limit_ = std::move(kept);
  return false;
}

void Contest::NoteIdling(const Layout& layout, const Outcome& outcome, double rank) {
  if (layout.shape != Shape::kPlain || ComputeBubbleFraction(outcome) < 0.01) return;
  if (!StaysInSites(cluster_, layout)) return;
  const std::string structure = StructureKey(layout);
  const auto same = std::find_if(idling_.begin(), idling_.end(), [&](const auto& one) {
    return StructureKey(one.second) == structure;
  });
  if (same != idling_.end() && same->first <= rank) return;
  if (same != idling_.end()) idling_.erase(same);
  const auto position = std::find_if(idling_.begin(), idling_.end(),
                                     [&](const auto& one) { return one.first > rank; });
  idling_.insert(position, {rank, layout});
  if (idling_.size() > kReshaped) idling_.pop_back();
}

void Contest::Win(Layout layout, Outcome outcome, double rank) {
  plan_.layout = std::move(layout);
  plan_.outcome = std::move(outcome);
  plan_.rank = rank;
  changes_listed_ = false;
}

bool Contest::IsAllowed(const Layout& layout) const {
  return Satisfies(job_.fixed, layout) && UsesLeader(cluster_, layout) &&
         DegreesAgree(costs_.model(), layout);
}

}  // namespace atl::plan

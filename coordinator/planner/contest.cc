#include "coordinator/planner/contest.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_join.h"
#include "coordinator/planner/cluster/traffic.h"
#include "coordinator/planner/groups/refine.h"

namespace atl::plan {
namespace {

// Two stages a device may make a layout so many times faster.
constexpr double kShapesGain = 1.08;
constexpr size_t kReshaped = 4, kReshapedOfFew = 24;
constexpr size_t kMostStarts = 16;  // that are improved
constexpr int kLastRestarts = 96;   // simulations of each kind of replica of the winner

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
                 Plan& plan)
    : cluster_(cluster),
      costs_(costs),
      job_(job),
      options_(options),
      ranking_(cluster, costs, job),
      plan_(plan) {
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
  const bool few = Few();
  Start* const known = few ? &starts_[Describe(layout)] : nullptr;
  const double limit = few ? std::min(known->rank, kMayWin * plan_.rank) : plan_.rank;
  auto outcome = Evaluated(layout, nullptr, limit, options_.restarts);
  ++plan_.simulated;
  if (absl::IsCancelled(outcome.status())) {
    Lose(what, layout, EstimateSeconds(cluster_, costs_, layout), nullptr);
    return false;
  }
  if (!outcome.ok()) {
    why_not_ = outcome.status();
    return false;
  }
  if (!KeepsLimits(layout, outcome->step_s)) return false;
  Start start{std::move(layout), *std::move(outcome), 0, what};
  start.rank = ranking_.Rank(start.layout, start.outcome.step_s);
  NoteIdling(start.layout, start.outcome, start.rank);
  const bool won = start.rank < plan_.rank;
  if (!won) Lose(what, start.layout, start.outcome.step_s, &start.outcome);
  if (won) Win(start);
  if (few && start.rank < known->rank) *known = std::move(start);
  return won;
}

void Contest::EnterStart(const Layout& layout) {
  int micro_batches = 0;
  const auto is_one_of = [](const std::vector<int>& allowed, int64_t size) {
    return std::ranges::find(allowed, size) != allowed.end();
  };
  bool sizes = is_one_of(MicroBatchSizes(job_), layout.micro_batch);
  if (!sizes || !IsWhole(costs_.model(), layout)) return;
  for (const Replica& replica : layout.replicas) {
    micro_batches += replica.micro_batches;
    for (const Stage& stage : replica.stages) {
      sizes = sizes && is_one_of(TensorParallelSizes(job_), std::ssize(stage.devices));
    }
  }
  const int total = (job_.global_batch + layout.micro_batch - 1) / layout.micro_batch;
  if (sizes && micro_batches == total && IsAllowed(layout)) {
    Enter(layout, absl::StrCat(Describe(layout), ", given"));
  }
}

void Contest::EnterBoth(const Candidate& candidate) {
  const bool satisfies = Satisfies(job_.fixed, candidate.layout);
  if (satisfies) Enter(candidate.layout, Family(candidate));
  if (!satisfies && ++violating_ > options_.simulate) return;
  const std::optional<Layout> reordered = Reordered(cluster_, costs_, candidate.layout);
  if (!reordered.has_value() || !IsAllowed(*reordered)) return;
  const double estimate_s = EstimateSeconds(cluster_, costs_, *reordered);
  if (ranking_.Rank(*reordered, estimate_s) >= candidate.rank) return;
  Enter(*reordered,
        absl::StrCat(Describe(*reordered), ", ", candidate.how, ", ordered by beam search"));
}

void Contest::Lose(const std::string& what, const Layout& layout, double step_s,
                   const Outcome* outcome) {
  plan_.alternatives.push_back({.what = what,
                                .structure = DescribeStructure(layout),
                                .step_s = step_s,
                                .price = ComputePrice(cluster_, costs_, layout).Of(step_s),
                                .rank = ranking_.Rank(layout, step_s),
                                .parts = {}});
  if (outcome != nullptr) plan_.alternatives.back().parts = GetStepParts(*outcome);
}

bool Contest::Climb(Start& start, int tries) {
  for (int tried = 0; tried < tries && !Stopped();) {
    if (!std::exchange(start.changes_listed, true)) {
      start.changes = ListChanges(start.layout, start.outcome);
      start.next_change = 0;
    }
    if (start.next_change == start.changes.size()) return false;
    Layout layout = start.layout;
    if (!Apply(start.outcome, start.changes[start.next_change++], layout)) continue;
    if (!IsAllowed(layout) || !tried_.insert(PlacementKey(layout)).second) continue;
    ++tried;
    auto outcome = Evaluated(layout, &start.outcome, start.rank, options_.restarts);
    ++plan_.simulated;
    if (!outcome.ok() || !KeepsLimits(layout, outcome->step_s)) continue;
    const double rank = ranking_.Rank(layout, outcome->step_s);
    if (rank >= start.rank) continue;
    start = {std::move(layout), *std::move(outcome), rank, start.what};
  }
  return !Stopped();
}

void Contest::ImproveAll(int tries) {
  if (!any()) return;
  std::vector<Start*> starts;
  for (auto& [kind, start] : starts_) {
    if (MayWin(start.rank)) starts.push_back(&start);
  }
  std::stable_sort(starts.begin(), starts.end(),
                   [](const Start* a, const Start* b) { return a->rank < b->rank; });
  if (starts.empty()) Improve(tries);  // of many devices the best alone
  for (size_t i = 0; i < std::min(starts.size(), kMostStarts); ++i) {
    Climb(*starts[i], tries);
    NoteIdling(starts[i]->layout, starts[i]->outcome, starts[i]->rank);
    if (starts[i]->rank < plan_.rank) Win(*starts[i]);
  }
}

bool Contest::Improve(int tries) {
  if (!best_ || best_->rank > plan_.rank) {
    best_ = Start{plan_.layout, plan_.outcome, plan_.rank, winner_};
  }
  const bool more = Climb(*best_, tries);
  if (best_->rank < plan_.rank) Win(*best_);
  return more;
}

void Contest::TryShapes() {
  if (!options_.two_stages_per_device || plan_.layout.shape != Shape::kPlain) return;
  if (!job_.fixed.schedule.empty()) return;
  if (any()) NoteIdling(plan_.layout, plan_.outcome, plan_.rank);
  const double limit = kShapesGain * plan_.rank;
  const std::vector<std::pair<double, Layout>> idling = std::move(idling_);
  bool won = false;
  for (const auto& [plain_rank, plain] : idling) {
    if (plain_rank > limit) break;
    for (const Shape shape : {Shape::kVShaped, Shape::kInterleaved}) {
      Layout layout = plain;
      if (Stopped() || !Reshape(cluster_, costs_, shape, layout)) continue;
      won = Enter(layout, Describe(layout)) || won;
    }
  }
  if (won || Few()) ImproveAll(options_.improvements / 4);
}

void Contest::SearchLonger() {
  Layout layout = plan_.layout;
  auto outcome = Evaluated(layout, nullptr, plan_.rank, std::max(kLastRestarts, options_.restarts));
  if (!outcome.ok() || !KeepsLimits(layout, outcome->step_s)) return;
  const double rank = ranking_.Rank(layout, outcome->step_s);
  if (rank < plan_.rank) Win({std::move(layout), *std::move(outcome), rank, winner_});
}

void Contest::Finish() {
  if (!Stopped()) SearchLonger();
  Rerank(cluster_, costs_, job_, plan_);
  std::stable_sort(plan_.alternatives.begin(), plan_.alternatives.end(),
                   [](const Alternative& a, const Alternative& b) { return a.rank < b.rank; });
  plan_.cluster_bound_s = ClusterBoundSeconds(cluster_, costs_, job_);
  plan_.times_from = TimesFrom(cluster_, costs_, plan_.layout);
}

absl::StatusOr<Outcome> Contest::Evaluated(Layout& layout, const Outcome* known, double rank_limit,
                                           int restarts) {
  Evaluation evaluation{restarts, options_.seed};
  evaluation.known = known;
  evaluation.limit_s = ranking_.LongestStepBetter(layout, rank_limit);
  // With two stages a device it may still be better (NoteIdling).
  evaluation.step_limit_s = evaluation.limit_s * (StaysInSites(cluster_, layout) ? kShapesGain : 1);
  return EvaluateSaving(cluster_, costs_, evaluation, layout);
}

bool Contest::KeepsLimits(const Layout& layout, double step_s) {
  absl::Status kept = CheckTraffic(cluster_, costs_, layout, step_s);
  if (kept.ok()) return true;
  over_limit_ = std::move(kept);
  return false;
}

void Contest::NoteIdling(const Layout& layout, const Outcome& outcome, double rank) {
  if (layout.shape != Shape::kPlain || (!Few() && ComputeBubbleFraction(outcome) < 0.01)) return;
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
  if (idling_.size() > (Few() ? kReshapedOfFew : kReshaped)) idling_.pop_back();
}

void Contest::Win(const Start& winner) {
  if (any() && winner_ != winner.what) {
    Lose(winner_, plan_.layout, plan_.outcome.step_s, &plan_.outcome);
  }
  winner_ = winner.what;
  plan_.layout = winner.layout;
  plan_.outcome = winner.outcome;
  plan_.rank = winner.rank;
}

bool Contest::IsAllowed(const Layout& layout) const {
  return Satisfies(job_.fixed, layout) && UsesLeader(cluster_, layout) &&
         DegreesAgree(costs_.model(), layout);
}

}  // namespace atl::plan

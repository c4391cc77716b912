#include "coordinator/simulator/search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/rng.h"
#include "common/status.h"
#include "coordinator/simulator/bounds.h"
#include "coordinator/simulator/schedules.h"

namespace atl::sim {
namespace {

std::string Describe(const GreedyPolicy& policy) {
  std::string text = policy.prefer == GreedyPolicy::Prefer::kBackward  ? "greedy B>F>W"
                     : policy.prefer == GreedyPolicy::Prefer::kForward ? "greedy F>B>W"
                     : policy.prefer == GreedyPolicy::Prefer::kCycle   ? "greedy F, B, W in turn"
                                                                       : "compact zero-bubble";
  if (policy.forward_patience > 0) {
    absl::StrAppend(&text, ", F waits ", std::round(policy.forward_patience * 100) / 100);
  }
  if (policy.weight_patience > 0) {
    absl::StrAppend(&text, ", W waits ", std::round(policy.weight_patience * 100) / 100);
  }
  if (!policy.open_limit.empty()) absl::StrAppend(&text, ", limits per stage");
  if (policy.shallow_backward) absl::StrAppend(&text, ", early chunks' B first");
  if (policy.flip_chance > 0) absl::StrAppend(&text, ", perturbed");
  return text;
}

// The most forwards that a schedule keeps open at each chunk.
std::vector<int> CountPeakForwards(const Problem& problem, const Schedule& schedule) {
  std::vector<int> peaks(problem.chunks.size(), 1);
  std::vector<int> now(problem.chunks.size(), 0);
  for (const std::vector<Op>& ops : schedule.device_ops) {
    for (const Op& op : ops) {
      if (op.kind == OpKind::kForward) peaks[op.chunk] = std::max(peaks[op.chunk], ++now[op.chunk]);
      if (op.kind == OpKind::kBackward) --now[op.chunk];
    }
  }
  return peaks;
}

// When a run ends at the latest whose value is at most this: periods are not known before the end.
Nanos LatestEnd(Nanos value, Objective objective) {
  return objective == Objective::kMakespan ? value : kForever;
}

bool AnySplit(const Problem& problem) {
  return std::any_of(problem.chunks.begin(), problem.chunks.end(), IsSplit);
}

// Does a device hold more than one chunk?
bool ManyChunks(const Problem& problem) {
  const std::vector<std::vector<int>> chunks = ListChunksByDevice(problem);
  return std::any_of(chunks.begin(), chunks.end(),
                     [](const std::vector<int>& list) { return list.size() > 1; });
}

// Keeps the best of what it is shown.
class Incumbent {
 public:
  Incumbent(const Problem& problem, const SearchOptions& options)
      : problem_(problem),
        options_(options),
        fill_(options.restarts > 1 && AnySplit(problem) && ManyChunks(problem)),
        bound_ns_(options.restarts == 1                       ? 0
                  : options.objective == Objective::kMakespan ? MakespanBound(problem).time_ns
                                                              : PeriodBound(problem).time_ns) {}

  // The best there can be is found.
  bool Over() const {
    return any_ && GetObjectiveValue(best_.result, options_.objective) <= bound_ns_;
  }
  // Nothing is left to try: over, or the simulations are used up.
  bool Spent() const { return tried_ >= options_.restarts || Over(); }

  // Returns the schedule's value and the forwards it kept open at each chunk; kForever if it does
  // not fit, or is above `of_use` and not the best.
  std::pair<Nanos, std::vector<int>> Try(const GreedyPolicy& policy, Nanos of_use) {
    ++tried_;
    const Nanos latest_end_ns = std::max(LatestEndNs(), LatestEnd(of_use, options_.objective));
    // W fill the gaps of a whole order.
    Found found = Greedy(problem_, policy, fill_ ? kForever : latest_end_ns);
    bool filled = false;
    if (fill_) {
      Found other = FillWithWeights(problem_, found.schedule, latest_end_ns);
      filled = other.result.verdict == Verdict::kFits &&
               GetObjectiveValue(other.result, options_.objective) <
                   GetObjectiveValue(found.result, options_.objective);
      if (filled) found = std::move(other);
    }
    const bool fits = found.result.verdict == Verdict::kFits;
    const Nanos value = fits ? GetObjectiveValue(found.result, options_.objective) : kForever;
    std::vector<int> peaks = CountPeakForwards(problem_, found.schedule);
    if (Offer(found)) {
      best_.how = Describe(policy);
      if (filled) best_.how += ", gaps filled with W";
      policy_ = policy;
    }
    return {value, std::move(peaks)};
  }

  void TryRule(const absl::StatusOr<Schedule>& schedule, absl::string_view how) {
    if (!schedule.ok()) return;
    ++tried_;
    const Options playing{.latest_end_ns = LatestEndNs()};
    Found found{*schedule, SimulateUnchecked(problem_, *schedule, playing), std::string(how)};
    Offer(found);
  }

  const GreedyPolicy& policy() const { return policy_; }
  const Found& best() const { return best_; }
  bool any() const { return any_; }

 private:
  // A schedule that takes longer is not the best.
  Nanos LatestEndNs() const {
    return any_ ? LatestEnd(best_.result.makespan_ns - 1, options_.objective) : kForever;
  }

  bool Offer(Found& found) {
    if (!any_ && !first_) {
      first_ = true;
      best_ = found;  // so that there is a reason to give when nothing fits
    }
    if (found.result.verdict != Verdict::kFits) return false;
    const auto value = [&](const Result& r) {
      return std::pair(GetObjectiveValue(r, options_.objective), r.makespan_ns);
    };
    if (any_ && value(found.result) >= value(best_.result)) return false;
    any_ = true;
    best_ = std::move(found);
    return true;
  }

  const Problem& problem_;
  const SearchOptions options_;
  const bool fill_;  // W of V-shaped schedules is placed better afterwards
  const Nanos bound_ns_;
  Found best_;
  GreedyPolicy policy_;
  int tried_ = 0;
  bool first_ = false;
  bool any_ = false;
};

// Per chunk, the forwards that it can run before its first B comes back through empty devices and
// links. The last one, which would end after that, is left out if less than `overrun` of it fits.
std::vector<int> RoundTripLimits(const Problem& problem, double overrun) {
  std::vector<int> limits(problem.chunks.size(), 1);
  for (const Pipeline& pipeline : problem.pipelines) {
    Nanos back_ns = 0;  // from the end of the chunk's F to the start of its B
    for (int c = pipeline.first_chunk + pipeline.chunk_count - 1; c >= pipeline.first_chunk; --c) {
      const Chunk& chunk = problem.chunks[c];
      back_ns += TransferNs(problem, chunk.forward_link, chunk.forward_bytes) +
                 TransferNs(problem, chunk.backward_link, chunk.backward_bytes);
      const double forwards =
          static_cast<double>(back_ns) / static_cast<double>(std::max<Nanos>(1, chunk.forward_ns));
      limits[c] = 1 + static_cast<int>(std::clamp(std::ceil(forwards - overrun), 0.0, 1e6));
      back_ns += chunk.forward_ns + chunk.backward_ns;
    }
  }
  return limits;
}

std::vector<GreedyPolicy> BasePolicies(const Problem& problem, bool split) {
  std::vector<GreedyPolicy> policies;
  using Prefer = GreedyPolicy::Prefer;
  const bool many = ManyChunks(problem);
  for (const bool shallow : {true, false}) {
    if (!many || !split) continue;
    policies.push_back({.prefer = Prefer::kCycle});
    policies.back().shallow_backward = shallow;
  }
  for (const double overrun : {1.0, 0.0, 0.75, 0.5, 0.25}) {
    const std::vector<int> limits = RoundTripLimits(problem, overrun);
    for (const double patience : {0.0, 0.25}) {
      policies.push_back({Prefer::kBackward, patience, 0, limits});
    }
  }
  for (const double forward_patience : {0.0, 0.5, 1.0, 0.25}) {
    for (const double weight_patience : {0.0, 1.0, 0.5}) {
      if (!split && weight_patience > 0) continue;
      for (const Prefer prefer : {Prefer::kBackward, Prefer::kWarmForward, Prefer::kForward}) {
        policies.push_back({prefer, forward_patience, weight_patience, {}});
      }
    }
  }
  return policies;
}

GreedyPolicy Perturbed(GreedyPolicy policy, const std::vector<int>& peaks, bool split, Rng& rng) {
  using Prefer = GreedyPolicy::Prefer;
  policy.seed = rng.Next();
  switch (rng.Below(split ? 6 : 5)) {
    case 0:
      policy.forward_patience = rng.Uniform() * 1.5;
      break;
    case 1:
      policy.prefer =
          std::vector{Prefer::kBackward, Prefer::kWarmForward, Prefer::kForward}[rng.Below(3)];
      break;
    case 2:
      policy.flip_chance = rng.Chance(0.5) ? 0 : rng.Uniform() * 0.1;
      break;
    case 5:
      policy.weight_patience = rng.Uniform() * 1.5;
      break;
    default: {
      if (policy.open_limit.empty()) policy.open_limit = peaks;
      const uint64_t changes = 1 + rng.Below(2);
      for (uint64_t i = 0; i < changes; ++i) {
        int& limit = policy.open_limit[rng.Below(policy.open_limit.size())];
        limit = std::max(1, limit + (rng.Chance(0.5) ? 1 : -1));
      }
    }
  }
  return policy;
}

// Rules, then policies one by one, then walks from the best policy, and in turn from others, so as
// not to stay in one valley.
void Explore(const Problem& problem, const SearchOptions& options, Incumbent& incumbent) {
  constexpr int kWalk = 48;
  const bool split = AnySplit(problem);
  if (options.restarts > 1) {
    incumbent.TryRule(OneForwardOneBackward(problem), "1f1b");
    if (split) incumbent.TryRule(ZeroBubbleH1(problem), "zb-h1");
    if (split) incumbent.TryRule(ZeroBubbleH2(problem), "zb-h2");
  }
  const std::vector<GreedyPolicy> base = BasePolicies(problem, split);
  for (const GreedyPolicy& policy : base) {
    if (incumbent.Spent()) return;
    incumbent.Try(policy, 0);
  }
  Rng rng(options.seed);
  GreedyPolicy here;
  std::pair<Nanos, std::vector<int>> at;  // what it gives
  for (int step = 0; incumbent.any() && !incumbent.Spent(); ++step) {
    if (step % kWalk == 0) {
      here = step % (2 * kWalk) == 0 ? incumbent.policy() : base[rng.Below(base.size())];
      at = incumbent.Try(here, kForever);
      continue;
    }
    GreedyPolicy next = Perturbed(here, at.second, split, rng);
    auto tried = incumbent.Try(next, at.first);
    if (tried.first > at.first) continue;
    here = std::move(next);
    at = std::move(tried);
  }
}

}  // namespace

absl::StatusOr<Found> Search(const Problem& problem, const SearchOptions& options) {
  ATOLL_RETURN_IF_ERROR(Validate(problem));
  Incumbent incumbent(problem, options);
  incumbent.Try({}, 0);
  Explore(problem, options, incumbent);
  if (incumbent.any()) return incumbent.best();
  return absl::FailedPreconditionError(
      absl::StrCat("no schedule fits: ", incumbent.best().result.reason));
}

}  // namespace atl::sim

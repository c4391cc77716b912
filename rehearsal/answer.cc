#include "rehearsal/answer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace atl::rehearsal {
namespace {

constexpr int64_t kMostTurns = 500;  // of steps between the pushes of a bound's islands

double SecondsAToken(const RunResult& run) {
  return Seconds(run.took) / static_cast<double>(std::max<int64_t>(1, run.tokens));
}

// A job whose state never changes hands is bounded by its steps: nothing fails, and transfers take
// no time.
absl::StatusOr<RunResult> PlayBound(const Scene& scene, Searches& searches, Duration until) {
  Scene free = scene;
  free.free_links = true;
  // Measured links that take no time would choose rounds of one step, whose decisions add up.
  OuterSpec& outer = free.spec.outer;
  if (outer.steps_per_round == 0) {
    constexpr int64_t kRounds = 64;
    const InnerSpec& inner = free.spec.inner;
    const int64_t step = inner.batch_sequences * free.spec.data.sequence_length;
    const int64_t turns = free.spec.schedule.train_tokens / step / kRounds / outer.fragments;
    outer.steps_per_round = outer.fragments * std::clamp<int64_t>(turns, 1, kMostTurns);
  }
  return Play(free, searches, {}, until, 0);
}

// Student's t, two-sided, 95%: few seeds say little of chance.
double StudentLimit(size_t freedom) {
  constexpr double kLimits[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262,
                                2.228,  2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101,
                                2.093,  2.086, 2.080, 2.074, 2.069, 2.064, 2.060};
  if (freedom <= std::size(kLimits)) return kLimits[freedom - 1];
  // Expanded about the normal's quantile.
  return 1.960 + 2.372 / static_cast<double>(freedom) +
         2.82 / static_cast<double>(freedom * freedom);
}

absl::StatusOr<std::vector<RunResult>> PlayAll(const Scene& scene, Searches& searches,
                                               const Failures& failures, Duration until,
                                               uint64_t first_seed, int64_t seeds) {
  ATOLL_ASSIGN_OR_RETURN(const FailureSource source, FailureSource::Make(&failures, &scene));
  std::vector<absl::StatusOr<RunResult>> played(static_cast<size_t>(seeds),
                                                absl::UnknownError("not played"));
  std::atomic<int64_t> next = 0;
  const auto work = [&] {
    for (int64_t i = next++; i < seeds; i = next++) {
      const uint64_t seed = first_seed + static_cast<uint64_t>(i);
      const absl::StatusOr<std::vector<Failure>> drawn = source.Draw(until, seed);
      played[static_cast<size_t>(i)] = drawn.ok() ? Play(scene, searches, *drawn, until, seed)
                                                  : absl::StatusOr<RunResult>(drawn.status());
    }
  };
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < std::min(cores, seeds); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  std::vector<RunResult> runs;
  for (absl::StatusOr<RunResult>& run : played) {
    if (!run.ok()) return run.status();
    runs.push_back(*std::move(run));
  }
  return runs;
}

}  // namespace

Spread GetSpread(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(place);
    const size_t above = std::min(below + 1, values.size() - 1);
    if (place == static_cast<double>(below) || values[above] == values[below]) return values[below];
    return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
  };
  return {at(0.05), at(0.5), at(0.95)};
}

absl::StatusOr<Answer> Rehearse(const Scene& scene, const Failures& failures, Duration until,
                                uint64_t first_seed, int64_t seeds) {
  Searches searches(&scene);
  Answer answer;
  ATOLL_ASSIGN_OR_RETURN(answer.bound, PlayBound(scene, searches, until));
  ATOLL_ASSIGN_OR_RETURN(answer.runs, PlayAll(scene, searches, failures, until, first_seed, seeds));
  std::vector<double> finish, price, rate, goodput;
  double all = 0;
  for (const RunResult& run : answer.runs) {
    answer.finished += run.finished;
    finish.push_back(run.finished ? Seconds(run.took) : INFINITY);
    price.push_back(run.price);
    rate.push_back(run.tokens_per_s());
    goodput.push_back(run.goodput());
    all += run.device_seconds();
    for (size_t u = 0; u < run.uses.size(); ++u) answer.shares[u] += run.uses[u];
    answer.dearest.insert(
        answer.dearest.end(), run.costs.begin(),
        run.costs.begin() + std::min(std::ssize(run.costs), static_cast<std::ptrdiff_t>(kDearest)));
  }
  for (double& share : answer.shares) share /= all;
  answer.finish_s = GetSpread(std::move(finish));
  answer.price = GetSpread(std::move(price));
  answer.tokens_per_s = GetSpread(std::move(rate));
  answer.goodput = GetSpread(std::move(goodput));
  std::stable_sort(
      answer.dearest.begin(), answer.dearest.end(),
      [](const FailureCost& a, const FailureCost& b) { return a.total() > b.total(); });
  if (answer.dearest.size() > kDearest) answer.dearest.resize(kDearest);
  return answer;
}

std::string Prevention(const FailureCost& cost, const JobSpec& spec) {
  const auto most =
      static_cast<Use>(std::max_element(cost.uses.begin(), cost.uses.end()) - cost.uses.begin());
  const FailureKind kind = cost.failure.kind;
  if (kind == FailureKind::kServer && most != Use::kWaiting) {
    return spec.outer.shard_copies < 2 ? "outer.shard_copies = 2" : "a quicker restart";
  }
  if (kind == FailureKind::kCoordinator) return "a standby coordinator";
  if (kind == FailureKind::kLink) {
    return most == Use::kTransfers && spec.outer.overlap == Overlap::kNone
               ? "outer.overlap = \"carry\""
               : "a second path between the sites, or servers on its other side";
  }
  switch (most) {
    case Use::kReplayed:
      if (spec.checkpoint.peer_copies < 2) {
        return absl::StrCat("checkpoint.peer_copies = ", spec.checkpoint.peer_copies + 1);
      }
      return "a smaller outer.steps_per_round";
    case Use::kReplanning:
      return kind == FailureKind::kPreemption
                 ? "a longer notice"
                 : "smaller islands (layout.workers_per_island): fewer workers wait for a plan";
    case Use::kRestarting:
      return "a quicker start of the worker's process";
    case Use::kTransfers:
      return "a longer outer.grace_seconds, or more bandwidth to the servers";
    default:
      return kind == FailureKind::kSite ? "a spare worker at another site"
                                        : "a spare worker at its site";
  }
}

double SecondsPerToken(const Answer& answer) {
  double sum = 0;
  for (const RunResult& run : answer.runs) sum += SecondsAToken(run);
  return sum / static_cast<double>(answer.runs.size());
}

Difference Compare(const Answer& better, const Answer& other) {
  const size_t n = better.runs.size();
  double sum = 0, squares = 0;
  for (size_t i = 0; i < n; ++i) {
    const double longer = SecondsAToken(other.runs[i]) - SecondsAToken(better.runs[i]);
    sum += longer;
    squares += longer * longer;
  }
  const auto count = static_cast<double>(n);
  const double mean = sum / count;
  Difference difference{mean / SecondsPerToken(better), false};
  if (n < 2) return difference;
  const double variance = std::max(0.0, squares - sum * mean) / (count - 1);
  difference.beyond_noise = std::abs(mean) > StudentLimit(n - 1) * std::sqrt(variance / count);
  return difference;
}

}  // namespace atl::rehearsal

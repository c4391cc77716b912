#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "coordinator/simulator/schedules.h"
#include "coordinator/simulator/search.h"

namespace atl::sim {
namespace {

// Lowers every device's memory to `forwards` of its whole stage (all its chunks together).
Problem WithSlots(Problem problem, int64_t forwards) {
  const std::vector<std::vector<int>> chunks = ListChunksByDevice(problem);
  for (size_t d = 0; d < chunks.size(); ++d) {
    int64_t stage_bytes = 0;
    for (const int c : chunks[d]) stage_bytes += problem.chunks[c].activation_bytes;
    int64_t& memory = problem.devices[d].memory_bytes;
    memory = std::min(memory, stage_bytes * forwards);
  }
  return problem;
}

absl::StatusOr<Found> PlayRule(const Problem& problem, absl::StatusOr<Schedule> schedule,
                               absl::string_view name) {
  if (!schedule.ok()) return schedule.status();
  return Found{*schedule, SimulateUnchecked(problem, *schedule, {}), std::string(name)};
}

int CountUsedDevices(const Problem& problem) {
  std::vector<bool> used(problem.devices.size(), false);
  const Pipeline& pipeline = problem.pipelines[0];
  for (int i = 0; i < pipeline.chunk_count; ++i) {
    used[problem.chunks[pipeline.first_chunk + i].device] = true;
  }
  return static_cast<int>(std::count(used.begin(), used.end(), true));
}

bool Better(const Found& a, const absl::StatusOr<Found>& b, Objective objective) {
  if (a.result.verdict != Verdict::kFits) return false;
  return !b.ok() || b->result.verdict != Verdict::kFits ||
         GetObjectiveValue(a.result, objective) < GetObjectiveValue(b->result, objective);
}

// The longest makespan that is better; for periods none, which are not known before the end.
Nanos LatestBetterEnd(const absl::StatusOr<Found>& best, Objective objective) {
  const bool any = best.ok() && best->result.verdict == Verdict::kFits;
  return any && objective == Objective::kMakespan ? best->result.makespan_ns - 1 : kForever;
}

// Shows `best` the published blocks of this D, as they are and with W filled in.
void TryBlocks(const Problem& problem, int d, absl::string_view name, Objective objective,
               absl::StatusOr<Found>& best) {
  constexpr int kBlocks = 32;
  const auto blocks = VBlockSchedules(problem, d, kBlocks);
  if (!blocks.ok()) return;  // not a V
  for (const Schedule& block : *blocks) {
    const Options playing{.latest_end_ns = LatestBetterEnd(best, objective)};
    Found plain{block, SimulateUnchecked(problem, block, playing),
                absl::StrCat(name, " building block")};
    if (Better(plain, best, objective)) best = std::move(plain);
    Found filled = FillWithWeights(problem, block, LatestBetterEnd(best, objective));
    filled.how = absl::StrCat(name, " building block, gaps filled with W");
    if (Better(filled, best, objective)) best = std::move(filled);
  }
}

absl::StatusOr<Found> FindV(const Problem& problem, int64_t forwards, int d, absl::string_view name,
                            const SearchOptions& options) {
  const Problem limited = WithSlots(problem, forwards);
  absl::StatusOr<Found> best = Search(limited, options);
  TryBlocks(limited, d, name, options.objective, best);
  return best;
}

// SpanTrain's: all F until the first B is ready, then B before F before W, or F before B before W.
Found CompactZeroBubble(const Problem& problem, Objective objective) {
  GreedyPolicy policy{.prefer = GreedyPolicy::Prefer::kWarmForward};
  Found best = Greedy(problem, policy);
  policy.prefer = GreedyPolicy::Prefer::kForward;
  Found other = Greedy(problem, policy);
  if (Better(other, best, objective)) best = std::move(other);
  best.how = "compact zero-bubble";
  return best;
}

}  // namespace

const std::vector<ScheduleFamily>& ScheduleFamilies() {
  static const auto* families = new std::vector<ScheduleFamily>{
      {"gpipe", Placement::kAny},
      {"1f1b", Placement::kOneChunk},
      {"interleaved", Placement::kInterleaved},
      {"zb-h1", Placement::kOneChunk},
      {"zb-h2", Placement::kOneChunk},
      {"zb-1p", Placement::kOneChunk},
      {"zb-2p", Placement::kOneChunk},
      {"zb-v", Placement::kV},
      {"v-half", Placement::kV},
      {"v-min", Placement::kV},
      {"compact-zb", Placement::kAny},
      {"jeeves", Placement::kAny},
      {"jeeves-search", Placement::kAny},
      {"best", Placement::kAny},
  };
  return *families;
}

std::vector<std::string> ScheduleNames() {
  std::vector<std::string> names;
  for (const ScheduleFamily& family : ScheduleFamilies()) names.push_back(family.name);
  return names;
}

absl::StatusOr<Found> ScheduleByName(const Problem& problem, absl::string_view name,
                                     const SearchOptions& options) {
  ATOLL_RETURN_IF_ERROR(Validate(problem));
  if (name == "gpipe") return PlayRule(problem, GPipe(problem), name);
  if (name == "1f1b") return PlayRule(problem, OneForwardOneBackward(problem), name);
  if (name == "interleaved") return PlayRule(problem, Interleaved(problem), name);
  if (name == "zb-h1") return PlayRule(problem, ZeroBubbleH1(problem), name);
  if (name == "zb-h2") return PlayRule(problem, ZeroBubbleH2(problem), name);
  const int p = CountUsedDevices(problem);
  if (name == "zb-1p") return Search(WithSlots(problem, p), options);
  if (name == "zb-2p") return Search(WithSlots(problem, 2 * p), options);
  if (name == "zb-v") return FindV(problem, p, 6, name, options);
  if (name == "v-half") return FindV(problem, p / 2 + 1, 3, name, options);
  if (name == "v-min") return FindV(problem, p / 3 + 2, 2, name, options);
  if (name == "compact-zb") return CompactZeroBubble(problem, options.objective);
  if (name == "jeeves") {
    SearchOptions once = options;
    once.restarts = 1;
    return Search(problem, once);
  }
  if (name == "jeeves-search") return Search(problem, options);
  if (name == "best") {
    absl::StatusOr<Found> best = Search(problem, options);
    TryBlocks(problem, 6, "zb-v", options.objective, best);
    TryBlocks(problem, 3, "v-half", options.objective, best);
    TryBlocks(problem, 2, "v-min", options.objective, best);
    return best;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no schedule \"", name, "\"; there are: ", absl::StrJoin(ScheduleNames(), ", ")));
}

}  // namespace atl::sim

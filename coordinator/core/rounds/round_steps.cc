#include "coordinator/core/rounds/round_steps.h"

#include <algorithm>
#include <optional>

#include "common/protocol/balanced_steps.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/rounds/round_length.h"
#include "coordinator/core/rounds/validation.h"
#include "coordinator/core/stalls.h"

namespace atl::coord {
namespace {

// Converts what members have measured, however slow that is.
Duration ForSeconds(double seconds) {
  constexpr double kMost = 1e7;
  return FromSeconds(std::min(seconds, kMost));
}

// Returns whether windows close by the grace time, and pushes follow from adoptions: those of
// fragments and with a delay are so many steps apart, however late versions come.
bool JoinsOthers(const OuterSpec& outer) {
  return outer.balance_steps && !outer.wait_for_all && !HasSinglePushRounds(outer) &&
         outer.fragments == 1 && outer.fragment_delay_steps == 0;
}

bool IsInRound(const DecisionRecord& committed, const IslandRecord& island) {
  return std::any_of(committed.participants.begin(), committed.participants.end(),
                     [&](const DecisionParticipant& p) {
                       return p.contribution.island == island.island &&
                              p.contribution.generation == island.generation;
                     });
}

// The last of the pushes expected of islands outside the round whose windows close before `at`.
std::optional<NextPush> PushBefore(const State& s, const Job& job, const DecisionRecord& committed,
                                   Instant at) {
  std::optional<NextPush> last;
  for (const auto& [id, push] : job.next_pushes) {
    const auto found = job.islands.find(id);
    if (found == job.islands.end() || found->second.generation != push.generation) continue;
    const IslandRecord& island = found->second;
    if (push.at <= s.now || push.at + GraceFor(s, job, id) >= at) continue;
    if (!IsActive(job, island) || IsStalled(job, id) || IsInRound(committed, island)) continue;
    if (!last || push.at > last->at) last = push;
  }
  return last;
}

// The steps, or as many fewer as let the island push with others.
int64_t StepsToJoin(const State& s, const Job& job, const DecisionRecord& committed, int64_t steps,
                    double step_s) {
  const double round_s = static_cast<double>(steps) * step_s;
  const auto other = PushBefore(s, job, committed, s.now + ForSeconds(round_s));
  if (!other) return steps;
  const double until_s = Seconds(other->at - s.now);
  const auto fewer = static_cast<int64_t>(until_s / step_s);
  // One of two islands whose windows close one after the other has at least that long left.
  const double least_s = (round_s - job.spec().outer.grace_seconds) / 2;
  return until_s >= least_s && fewer >= job.spec().outer.steps_min ? fewer : steps;
}

}  // namespace

Duration GraceFor(const State& s, const Job& job, IslandId first) {
  // Four fifths of the time until the island that came first has its next contribution, less what
  // it takes to commit this one and to pull it: so long, waiting for the others leaves no island
  // idle.
  constexpr double kSafety = 0.8;
  const OuterSpec& outer = job.spec().outer;
  const Duration most = FromSeconds(outer.grace_seconds);
  const auto island = job.islands.find(first);
  if (!outer.adaptive_grace || island == job.islands.end()) return most;
  const double speed = GetTokensPerSecond(s, island->second);
  if (speed <= 0) return most;
  const double round_s =
      static_cast<double>(island->second.steps_this_round) * CountStepTokens(job) / speed;
  const double free = kSafety * (round_s - 2 * Seconds(job.rounds.round_took));
  return std::clamp(ForSeconds(std::max(free, 0.0)), Duration(0), most);
}

void BalanceSteps(State& s, Job& job, const DecisionRecord& committed) {
  const OuterSpec& outer = job.spec().outer;
  const int64_t most = GetStepsBetweenPushes(job);
  const int64_t least = std::max<int64_t>(1, outer.steps_min / outer.fragments);
  double fastest = 0;
  for (const auto& [id, island] : job.islands) {
    if (island.incarnation != 0) fastest = std::max(fastest, GetTokensPerSecond(s, island));
  }
  for (const auto& [id, island] : job.islands) {
    if (island.incarnation == 0) continue;
    const double speed = GetTokensPerSecond(s, island);
    int64_t steps = most;
    if (outer.balance_steps && speed > 0) {
      steps = BalancedSteps(most, least, speed / fastest);
    }
    if (!IsInRound(committed, island)) {
      steps = std::min(steps, island.steps_this_round);  // which may be fewer to join others
    } else if (speed > 0) {
      const double step_s = CountStepTokens(job) / speed;
      if (JoinsOthers(outer)) steps = StepsToJoin(s, job, committed, steps, step_s);
      // Pulling and pushing come on top: for all alike.
      job.next_pushes[id] = {island.generation,
                             s.now + ForSeconds(static_cast<double>(steps) * step_s)};
    }
    if (steps != island.steps_this_round) job.EditIsland(id).steps_this_round = steps;
  }
}

}  // namespace atl::coord

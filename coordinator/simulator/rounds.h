// Simulates outer rounds (DiLoCo): islands train on their own, push to parameter servers, and pull
// what a round decided. On the same network and event queue as a step (simulate.h), by the
// coordinator's rules:
//
// - An island trains `steps_per_round` inner steps, then pushes one shard to every server, in the
//   order of a Latin square (island i's s-th transfer goes to server (i + s) mod n). A server
//   writes shards to its log one after the other; when all are written, the contribution is
//   complete.
// - The first complete contribution opens a window. It closes when all living islands are in, or,
//   unless all are waited for, when the grace time since its opening is over; and not before the
//   round before has been applied everywhere.
// - A decision takes a round trip for the statistics and one for the commit. Every server then
//   applies the contributions; when all have, the version is committed and the participants pull.
// - Overlap: kNone, an island waits from its push until it has pulled; kCarry, it trains on
//   meanwhile, but has one contribution under way at most.
// - An island that fails loses the steps that it has not completely pushed. A complete contribution
//   still counts. When the island is back, it pulls and trains on. A window waits for it until its
//   failure has been noticed. An outage of a server is one of its links (network.h).

#ifndef ATOLL_COORDINATOR_SIMULATOR_ROUNDS_H_
#define ATOLL_COORDINATOR_SIMULATOR_ROUNDS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/simulator/network.h"

namespace atl::sim {

struct RoundIsland {
  Nanos step_ns = 0;  // one inner step
  double tokens_per_step = 0;
  std::vector<Outage> down;     // when it is not there, one after the other
  std::vector<int> push_links;  // by server, into Network::links
  std::vector<int> pull_links;
  int64_t steps_per_round = 0;  // 0: the problem's
};

struct RoundServer {
  int64_t push_bytes = 0;  // its shard, as a contribution and as parameters
  int64_t pull_bytes = 0;
  double log_bytes_per_s = 1e18;    // writing a shard to the log
  double apply_bytes_per_s = 1e18;  // applying one contribution to parameters
};

enum class Overlap { kNone, kCarry };

struct RoundsProblem {
  Network network;
  std::vector<RoundIsland> islands;
  std::vector<RoundServer> servers;
  int64_t steps_per_round = 64;
  Nanos grace_ns = 0;
  bool wait_for_all = false;  // synchronous rounds
  Overlap overlap = Overlap::kNone;
  Nanos control_ns = 0;  // one way between the coordinator and any member
  Nanos detect_ns = 0;   // until an island's failure is noticed
  Nanos until_ns = 0;    // how long to play

  int64_t GetStepsPerRound(size_t island) const {
    const int64_t own = islands[island].steps_per_round;
    return own > 0 ? own : steps_per_round;
  }
};

// Everything that makes it impossible: no islands or servers or more than 4096 of either, a link
// that is not there, times or rates that are not positive, more than 2^24 inner rounds in all.
absl::Status Validate(const RoundsProblem& problem);

enum class IslandState : uint8_t { kTrain, kPush, kWait, kPull, kDown };

struct IslandSpan {
  IslandState state = IslandState::kTrain;
  Nanos start_ns = 0;
  Nanos end_ns = 0;
};

struct IslandUse {
  Nanos in_state_ns[5] = {};  // by IslandState; adds up to the time played
  int64_t contributions = 0;  // that were committed
  int64_t steps_lost = 0;     // by failures
  double tokens = 0;          // committed
  double staleness = 0;       // versions between a contribution's base and its round, mean
  Nanos TimeIn(IslandState state) const { return in_state_ns[static_cast<int>(state)]; }
};

struct RoundSpan {
  int opened_by = 0;
  int participants = 0;
  Nanos opened_ns = 0;
  Nanos decided_ns = 0;
  Nanos committed_ns = 0;
};

struct RoundsResult {
  int64_t rounds = 0;  // committed
  double tokens = 0;
  double rounds_per_s = 0;
  double tokens_per_s = 0;
  // Tokens over those of islands that never do anything but train and never fail.
  double efficiency = 0;
  // Share of the islands' living time in which they do not train.
  double waiting = 0;
  std::vector<IslandUse> islands;
  std::vector<RoundSpan> timeline;
  std::vector<std::vector<IslandSpan>> island_timelines;  // with `record`
};

absl::StatusOr<RoundsResult> SimulateRounds(const RoundsProblem& problem, bool record);

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_ROUNDS_H_

// How many inner steps a round of a job has: as the job says, or chosen from what its islands
// measure (common/protocol/round_length.h).

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_ROUND_LENGTH_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_ROUND_LENGTH_H_

#include <string>

#include "coordinator/core/state.h"

namespace atl::coord {

double CountStepTokens(const Job& job);  // of an island's inner step

// Steps of the fastest island. Without fragments both are the same.
int64_t GetStepsBetweenPushes(const Job& job);
int64_t GetStepsPerRound(const Job& job);  // H: between two exchanges of a layer

// The first version whose contributions are to have moments; kNoVersion: none are averaged.
Version GetMomentsVersion(const Job& job);

// Every so many rounds what the job schedules each `every` rounds is due; 0: never.
int64_t ScheduledRounds(const Job& job, int64_t every);

// Rounds between two snapshots of a server, at most; the same all the time, as assignments are.
int64_t GetSnapshotRounds(const Job& job);

// The place of a push's statistics (PenaltyState): pushes of like lengths have one.
int64_t StatisticsIndex(const Job& job, int64_t fragment, int64_t inner_steps);

// Takes the exchange that a heartbeat of the generation in force reports.
void NoteExchange(Instant now, Job& job, IslandId island, const IslandProgress& progress);

// After a round was committed: where the job leaves its length to measurements, the next one's.
void ChooseRoundLength(State& s, Job& job);

// "2 steps a round: ...", for a person.
std::string RoundLengthText(const State& s, const Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_ROUND_LENGTH_H_

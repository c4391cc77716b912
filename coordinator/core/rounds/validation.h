// Who evaluates a version, and what came of it.

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_VALIDATION_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_VALIDATION_H_

#include "coordinator/core/state.h"

namespace atl::coord {

// progress.validate_version is evaluated by a spare worker (sharing/spares.h), else by the fastest
// island (the first among equals), or by that of each site where sites hold different data, as long
// as its result is not there. The first one also scores it in the tasks of progress.evaluations.
// Nothing is left to do where there is no such island.
void ChooseValidators(State& s, Job& job);
// Returns whether the number can be the mean loss of something, nats a token.
bool IsLoss(double loss);

// The version is committed: it is validated, and scored in tasks, where either is due or was not
// done yet. A version that all islands which have yet to answer have adopted is evaluated even if
// others follow meanwhile; if each of these were evaluated in its place, rounds that are quicker
// than an evaluation would keep one island after the other from training.
void ScheduleValidation(State& s, Job& job, Version version);

// A site's loss is kept by the site's name, and the job's is then the mean over sites, by tokens.
void OnValidation(State& s, Worker& worker, const ValidationResult& message);

// Tokens a second, as its leader says; 0: not known.
double GetTokensPerSecond(const State& s, const IslandRecord& island);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_VALIDATION_H_

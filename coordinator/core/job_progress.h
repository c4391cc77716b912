// How far a job is: its record in the store, of which jobs and their rounds keep a part each.

#ifndef ATOLL_COORDINATOR_CORE_JOB_PROGRESS_H_
#define ATOLL_COORDINATOR_CORE_JOB_PROGRESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/protocol/control.h"
#include "common/protocol/job_spec.h"

namespace atl {

inline constexpr int kValidationLossesMax = kValidationSetsMax + kDataSitesMax;

// A failed one may be resumed.
inline bool HasEnded(JobState state) {
  return state == JobState::kDone || state == JobState::kFailed || state == JobState::kCancelled;
}

// Progress of a job, besides its rounds.
struct JobProgress {
  JobId job;
  JobState state = JobState::kQueued;
  std::string reason;              // why it is in this state, human-readable
  Generation plan_generation = 0;  // of the newest plan; grows with every change of an island
  IslandId initializer = -1;       // island that makes version 0; -1: none chosen
  Version validate_version = kNoVersion;  // to be validated; kNoVersion: nothing to do
  // By these islands, which have yet to answer: one, or one of each site that has data of its own.
  std::vector<IslandId> validators = {};
  Version validated_version = kNoVersion;  // newest result
  double validation_loss = 0;              // its loss, nats a token
  double validation_accuracy = 0;          // of images, share classified right; 0: unknown
  double first_validation_loss = 0;        // the one of version 0; 0: none yet
  bool validated_final = false;  // state finishing: the last validation is done or timed out
  // Not empty: a member has seen newer changes than the store has, which may lack some of this job:
  // nothing is decided until it is adopted. Who, and what is missing.
  std::string outdated;
  // The store comes from a backup: nothing is decided until it is rebuilt from its servers.
  bool restored = false;
  std::vector<ValidationLoss> validation_sets = {};  // newest of each named set or site, by name
  Version exported_version = kNoVersion;             // newest that was exported
  // The version to be validated is still to be scored in these tasks, indices of spec.evaluation.
  std::vector<int32_t> evaluations = {};
  std::vector<int32_t> evaluations_next = {};  // became due meanwhile: to be scored in a later one
  std::vector<TaskScore> scores = {};          // newest of each task, by name

  bool operator==(const JobProgress&) const = default;
};

// How far the rounds of a job are.
struct RoundsProgress {
  Version version = kNoVersion;  // committed: every parameter server has applied it
  int64_t tokens_committed = 0;  // up to `version`
  int64_t round = 0;             // decisions made, void ones too
  // For a site's job, counts since the version that made its newest contribution: rounds, and of
  // what they accepted the steps of all islands, the tokens that the loss does not count, and the
  // loss times the tokens that it does.
  int64_t rounds_since = 0;
  int64_t steps_since = 0;
  int64_t masked_since = 0;
  double loss_since = 0;
  // Steps of the fastest island, where the job leaves it to measurements; 0: nothing is measured
  // yet.
  int64_t steps_between_pushes = 0;
  Version averaged_version = kNoVersion;  // newest whose round averaged moments
  int64_t skipped_sequences = 0;          // of accepted contributions: their steps changed nothing

  bool operator==(const RoundsProgress&) const = default;
};

// Key: job.
struct ProgressRecord : JobProgress, RoundsProgress {
  bool operator==(const ProgressRecord&) const = default;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_JOB_PROGRESS_H_

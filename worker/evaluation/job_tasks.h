// The tasks of a job's [[evaluation]].

#ifndef ATOLL_WORKER_EVALUATION_JOB_TASKS_H_
#define ATOLL_WORKER_EVALUATION_JOB_TASKS_H_

#include "common/model/config.h"
#include "common/protocol/job_spec.h"
#include "worker/evaluation/task_rows.h"

namespace atl {

// Reads a task of the job: its rows are of the job's sequence length, made with its tokenizer, and
// have at most `tokens_max` tokens. Errors name the evaluation, the file, and what is wrong with
// either or with the model.
absl::StatusOr<TaskRows> OpenTask(const JobSpec& spec, const EvaluationSpec& evaluation,
                                  const ModelConfig& config, int64_t tokens_max = kTaskTokensMax,
                                  const Cancelled& cancelled = {});

}  // namespace atl

#endif  // ATOLL_WORKER_EVALUATION_JOB_TASKS_H_

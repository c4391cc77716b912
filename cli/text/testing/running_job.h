// A job that trains, as tests of the texts show it.

#ifndef ATOLL_CLI_TEXT_TESTING_RUNNING_JOB_H_
#define ATOLL_CLI_TEXT_TESTING_RUNNING_JOB_H_

#include "proto/coordinator.pb.h"

namespace atl::cli {

inline v1::Job RunningJob() {
  v1::Job job;
  v1::JobSummary& s = *job.mutable_summary();
  s.set_job("lm-1");
  s.set_state(v1::JOB_STATE_RUNNING);
  s.set_version(3);
  s.set_tokens_committed(250'000);
  s.set_tokens_budget(1'000'000);
  s.set_tokens_per_s(5000);
  s.set_train_loss(2.5);
  s.set_validation_loss(2.75);
  s.set_validated_version(2);
  s.set_first_validation_loss(5.5);
  s.set_active_islands(2);
  v1::Island& island = *job.add_islands();
  island.set_worker("w1");
  island.set_attached(true);
  island.set_activity("training");
  island.mutable_progress()->set_inner_step(120);
  island.mutable_progress()->set_train_loss(2.5);
  return job;
}

}  // namespace atl::cli

#endif  // ATOLL_CLI_TEXT_TESTING_RUNNING_JOB_H_

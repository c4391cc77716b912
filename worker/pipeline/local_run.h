// One of an engine's devices.

#ifndef ATOLL_WORKER_PIPELINE_LOCAL_RUN_H_
#define ATOLL_WORKER_PIPELINE_LOCAL_RUN_H_

#include <memory>
#include <string>
#include <utility>

#include "worker/pipeline/all_reduce_meter.h"
#include "worker/pipeline/device.h"
#include "worker/pipeline/executor.h"
#include "worker/pipeline/work_meter.h"
#include "worker/work_queue.h"

namespace atl::worker {

// A device with its threads, and what it does under the plan.
struct LocalRun {
  LocalRun(std::string name, LocalDevice parts) : device(std::move(name), std::move(parts)) {}

  Device device;
  GradientSync::Communicators communicators;
  std::unique_ptr<Executor> executor;
  StepInput input;
  StepResult result;
  std::unique_ptr<WorkMeter> meter;
  std::unique_ptr<AllReduceMeter> sums;
  absl::Status status;
  WorkQueue thread;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_LOCAL_RUN_H_

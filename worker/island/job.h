// A job that a worker has opened: its model and data.

#ifndef ATOLL_WORKER_ISLAND_JOB_H_
#define ATOLL_WORKER_ISLAND_JOB_H_

#include <span>
#include <vector>

#include "common/model/layout.h"
#include "common/protocol/control.h"
#include "common/protocol/job_spec.h"
#include "common/status.h"
#include "worker/data/dataset.h"
#include "worker/evaluation/job_tasks.h"
#include "worker/pipeline/engine.h"

namespace atl::worker {

struct GroupJob {
  // An error names file, field and remedy.
  static absl::StatusOr<GroupJob> Open(const JobSpec& spec, DType compute,
                                       const DataOptions& data = {});

  JobSpec spec;
  EngineJob engine;
  Dataset data;
  JobFacts facts;
  uint64_t digest = 0;                        // see ComputeModelDigest
  std::vector<LayerLayout> layouts;           // of whole layers
  std::vector<LayerLayout> base_layouts;      // of their frozen tensors; empty without an adapter
  std::vector<std::vector<Range>> undivided;  // by layer, see common/model/optimizer_state.h
  std::vector<TaskRows> tasks;                // of spec.evaluation

  int64_t row() const { return data.row(); }  // numbers

  // An island evaluates by position: the validation sequences, and behind them each task's rows. A
  // range of positions is of one of these.
  // INVALID_ARGUMENT: this one is not, or is longer than a batch.
  absl::Status CheckEvaluated(int64_t first, int64_t count) const;
  int64_t GetTaskBegin(size_t task) const;  // position of its first row
  // The task of a position; null: it is of validation. REQUIRES: the position exists.
  const TaskRows* FindTask(int64_t position) const;
  // Reads and counts as Dataset::ReadValidation and CountMaskedValidation. What is left of a row is
  // masked.
  absl::Status ReadEvaluated(int64_t first, std::span<int32_t> out,
                             const Cancelled& cancelled) const;
  absl::StatusOr<int64_t> CountMaskedEvaluated(int64_t first, int64_t count,
                                               const Cancelled& cancelled) const;

  // Returns the layout of a shard's buffers; the error names a layer that does not exist, or a cut
  // that is impossible.
  absl::StatusOr<LayerLayout> GetLayerLayout(const LayerShard& shard) const;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_JOB_H_

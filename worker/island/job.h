// A job that a worker has opened: its model and data.

#ifndef ATOLL_WORKER_ISLAND_JOB_H_
#define ATOLL_WORKER_ISLAND_JOB_H_

#include <memory>
#include <mutex>
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

inline constexpr int64_t kReferencesMax = int64_t{1} << 25;  // pairs, of 8 bytes on the host

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
  // Keeps what Engine::FindReferences has returned since the job was opened, by sequence of
  // training and of validation behind them; not a number: nothing yet. Null: the data are no pairs.
  struct References {
    std::mutex mutex;
    std::vector<double> leads;
  };
  std::shared_ptr<References> references;

  int64_t row() const { return data.row(); }  // numbers
  // Returns whether pairs are compared with a folder's weights (GetReferencePath), not an adapter's
  // base.
  bool has_reference_folder() const {
    return spec.data.documents == Documents::kPairs && !engine.model.adapter.present();
  }

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

  // References of the pairs that a call names, in its order; none: some are not known. REQUIRES: a
  // job of pairs; CheckReferences is OK, and one value for each. Thread-safe.
  std::vector<double> GetReferences(const ReferenceCall& call) const;
  void SetReferences(const ReferenceCall& call, const std::vector<double>& values) const;
  // FAILED_PRECONDITION: the job is not of pairs. INVALID_ARGUMENT: more than a batch, or not
  // there.
  absl::Status CheckReferences(const ReferenceCall& call) const;

  // Returns the layout of a shard's buffers; the error names a layer that does not exist, or a cut
  // that is impossible.
  absl::StatusOr<LayerLayout> GetLayerLayout(const LayerShard& shard) const;

 private:
  absl::Status MakeReferences();
  double& FindReference(const ReferenceCall& call, int64_t position) const;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_JOB_H_

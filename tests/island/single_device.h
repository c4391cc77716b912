// The single-device reference that islands are compared with: ModelRunner and an optimizer on one
// backend, without plan, members, saves or parameter servers.

#ifndef ATOLL_TESTS_ISLAND_SINGLE_DEVICE_H_
#define ATOLL_TESTS_ISLAND_SINGLE_DEVICE_H_

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/protocol/control.h"
#include "common/protocol/job_spec.h"
#include "common/status.h"
#include "kernels/backend.h"
#include "worker/data/dataset.h"
#include "worker/model/optimizer.h"
#include "worker/model/runner.h"

namespace atl::worker {

struct MeanLoss {
  double loss = 0;     // nats a token
  int64_t tokens = 0;  // that the loss counts
};

class SingleDevice {
 public:
  explicit SingleDevice(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  absl::StatusOr<JobFacts> Prepare(const JobSpec& spec);
  absl::Status InitialWeights();
  absl::StatusOr<MeanLoss> Step(const std::vector<PositionRange>& ranges, double learning_rate);
  absl::StatusOr<int64_t> CountMasked(const std::vector<PositionRange>& ranges);
  absl::StatusOr<MeanLoss> Validate(int64_t sequences, int set);
  // Scores a task of the specification, each row as short as it is.
  absl::StatusOr<TaskScore> ScoreTask(const EvaluationSpec& evaluation);

  // One layer's parameters and moments, to and from host memory of exactly the layer's size.
  absl::Status GetParameters(int layer, std::span<float> out) {
    return ToHost(job_->runner->params(layer), out);
  }
  absl::Status SetParameters(int layer, std::span<const float> values);
  absl::Status GetMoments(int layer, std::span<float> first, std::span<float> second);

 private:
  struct Job {
    JobSpec spec;
    std::optional<Dataset> data;
    std::optional<Model> model;
    std::unique_ptr<ModelRunner> runner;
    std::unique_ptr<Optimizer> optimizer;
    int64_t optimizer_steps = 0;
    std::vector<int32_t> tokens;  // of one batch, rows of data's row()

    int layers() const { return static_cast<int>(model->layers().size()); }
    int64_t row() const { return data->row(); }
  };

  absl::Status ToHost(const Tensor& from, std::span<float> to);

  const std::unique_ptr<Backend> backend_;
  std::unique_ptr<Job> job_;
};

}  // namespace atl::worker

#endif  // ATOLL_TESTS_ISLAND_SINGLE_DEVICE_H_

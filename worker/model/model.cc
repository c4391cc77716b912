#include "worker/model/model.h"

#include <utility>

namespace atl {

void CheckGroup(const LayerCall& call, const TensorPart& part) {
  const Communicator* communicator = call.communicator;
  if (part.whole() && communicator == nullptr) return;
  ATOLL_CHECK(communicator != nullptr && communicator->size() == part.ranks &&
                  communicator->rank() == part.rank,
              "not the communicator of rank ", part.rank, " of ", part.ranks);
}

absl::StatusOr<Model> Model::Create(const ModelConfig& config, DType compute) {
  ATOLL_RETURN_IF_ERROR(config.Validate());
  return Create(config, compute, WholePart(config));
}

absl::StatusOr<Model> Model::Create(const ModelConfig& config, DType compute,
                                    const TensorPart& part) {
  ATOLL_RETURN_IF_ERROR(config.Validate());
  Model model;
  model.config_ = config;
  model.part_ = part;
  model.compute_ = compute;
  std::vector<LayerLayout> layouts = MakeLayouts(config, part);
  const auto new_block = config.family == ModelFamily::kGpt2 ? &NewGpt2Block : &NewLlamaBlock;
  for (size_t i = 0; i < layouts.size(); ++i) {
    const auto make = i == 0 ? &NewEmbedding : i + 1 == layouts.size() ? &NewHead : new_block;
    model.layers_.push_back(make(config, part, compute, std::move(layouts[i])));
  }
  return model;
}

Tensor Model::Constants(int64_t seq_len, void* memory) const {
  if (config_.family == ModelFamily::kGpt2) return {};
  return {memory, StateType(compute_), seq_len, config_.head_dim()};
}

void Model::InitConstants(Backend& backend, Stream& stream, const Tensor& constants) const {
  if (constants.present()) {
    backend.Run(stream, RopeTable{constants, static_cast<float>(config_.rope_theta)});
  }
}

namespace {

void DoLoss(Exec& exec, const TensorPart& part, CrossEntropy loss) {
  if (!part.whole()) {
    const int64_t n = loss.logits.rows;
    loss.first_class = part.vocab.begin;
    loss.max = exec.Temporary(loss.totals.dtype, 1, n);
    loss.sums = exec.Temporary(loss.totals.dtype, 2, n);
    exec.Run(CrossEntropyMax{loss.logits, loss.max});
    exec.AllReduceMax(loss.max);
    exec.Run(CrossEntropySums{loss.logits, loss.targets, loss.max, loss.sums, loss.first_class});
    exec.AllReduceSum(loss.sums);
  }
  exec.Run(loss);
}

}  // namespace

absl::Status Model::Loss(const LayerCall& call, const CrossEntropy& loss) const {
  CheckGroup(call, part_);
  Exec exec(call.backend, call.stream, call.workspace, call.communicator);
  DoLoss(exec, part_, loss);
  return exec.status();
}

int64_t Model::LossWorkspaceBytes(Backend& backend, const CrossEntropy& loss) const {
  Exec exec = Exec::Measuring(backend);
  DoLoss(exec, part_, loss);
  return exec.needed_bytes();
}

}  // namespace atl

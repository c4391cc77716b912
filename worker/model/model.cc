#include "worker/model/model.h"

#include <utility>

#include "common/model/family.h"
#include "common/model/rope.h"

namespace atl {

static_assert(kTokenTypeShift == kTypeShift, "a token's type lies where kernels look for it");

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
  // Frozen weights are of the compute type alone, and a rounded bias chooses other experts.
  if (config.experts.correction && config.adapter.present() && compute == DType::kBfloat16) {
    return absl::InvalidArgumentError(
        "adapters of a model whose experts are chosen with a correcting bias need workers of "
        "--compute fp32");
  }
  Model model;
  model.config_ = config;
  model.arch_ = config.architecture();
  model.part_ = part;
  model.compute_ = compute;
  std::vector<LayerLayout> layouts = MakeLayouts(config, part);
  for (size_t i = 0; i < layouts.size(); ++i) {
    LayerLayout layout = std::move(layouts[i]);
    if (config.is_images()) {
      model.layers_.push_back(
          NewImageLayer(config, compute, std::move(layout), static_cast<int64_t>(i)));
      continue;
    }
    model.layers_.push_back(i == 0 ? NewEmbedding(config, part, compute, std::move(layout))
                            : i + 1 == layouts.size()
                                ? NewHead(config, part, compute, std::move(layout))
                                : NewTransformerBlock(config, part, compute, std::move(layout),
                                                      static_cast<int64_t>(i) - 1));
  }
  return model;
}

Tensor Model::Constants(int64_t seq_len, void* memory) const {
  if (!arch_.rotary()) return {};
  return {memory, StateType(compute_), seq_len, config_.head_dim()};
}

absl::Status Model::InitConstants(Backend& backend, Stream& stream, const Tensor& constants) const {
  if (!constants.present()) return absl::OkStatus();
  const std::vector<double> table = RopeTable(config_, constants.rows);
  const std::vector<float> rounded(table.begin(), table.end());
  const bool wide = constants.dtype == DType::kFloat64;
  backend.CopyToDevice(stream, constants,
                       wide ? static_cast<const void*>(table.data()) : rounded.data());
  return backend.Synchronize(stream);
}

namespace {

// Targets are smoothed where gradients come of it: what validation reports is the plain loss.
float GetLabelSmoothing(const ModelConfig& config, const CrossEntropy& loss) {
  return loss.dlogits.rows > 0 ? static_cast<float>(config.image.label_smoothing) : 0.0f;
}

void DoLoss(Exec& exec, const TensorPart& part, const Architecture& arch, float smoothing,
            CrossEntropy loss, const Tensor& hits) {
  const Tensor raw = loss.logits, gradient = loss.dlogits;
  const auto cap = static_cast<float>(arch.logit_softcap);
  loss.smoothing = smoothing;
  if (cap > 0) {
    loss.logits = exec.Temporary(raw.dtype, raw.rows, raw.cols);
    loss.dlogits = gradient.rows > 0 ? loss.logits : Tensor();
    exec.Run(SoftcapForward{raw, loss.logits, cap});
  }
  if (!part.whole()) {
    const int64_t n = loss.logits.rows;
    loss.first_class = part.vocab.begin;
    loss.max = exec.Temporary(loss.totals.dtype, 1, n);
    loss.sums = exec.Temporary(loss.totals.dtype, 3, n);
    exec.Run(CrossEntropyMax{loss.logits, loss.max});
    exec.AllReduceMax(loss.max);
    exec.Run(CrossEntropySums{loss.logits, loss.targets, loss.max, loss.sums, loss.first_class});
    exec.AllReduceSum(loss.sums);
  }
  if (hits.present()) exec.Run(CountHits{loss.logits, loss.targets, hits, loss.sums});
  exec.Run(loss);
  if (cap > 0 && gradient.rows > 0) exec.Run(SoftcapBackward{raw, loss.dlogits, gradient, cap});
}

}  // namespace

void Model::FinishLogits(Backend& backend, Stream& stream, const Tensor& logits) const {
  if (arch_.logit_softcap == 0) return;
  backend.Run(stream, SoftcapForward{logits, logits, static_cast<float>(arch_.logit_softcap)});
}

absl::Status Model::Loss(const LayerCall& call, const CrossEntropy& loss,
                         const Tensor& hits) const {
  CheckGroup(call, part_);
  Exec exec(call.backend, call.stream, call.workspace, call.communicator);
  DoLoss(exec, part_, arch_, GetLabelSmoothing(config_, loss), loss, hits);
  return exec.status();
}

int64_t Model::LossWorkspaceBytes(Backend& backend, const CrossEntropy& loss) const {
  Exec exec = Exec::Measuring(backend);
  DoLoss(exec, part_, arch_, GetLabelSmoothing(config_, loss), loss, /*hits=*/{});
  return exec.needed_bytes();
}

}  // namespace atl

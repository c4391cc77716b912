// A model as an ordered list of layers with forward, backward for the input (B) and backward for
// the weights (W) apart, so that a schedule may move W. Kernels are called explicitly: no autograd.
//
// For every micro-batch a layer runs Forward, then BackwardInput, then BackwardWeight, once each;
// those of different micro-batches may interleave in any way. Gradients are exact, and
// bit-identical for every such order as long as each layer's BackwardWeight sees the micro-batches
// in one order.
//
// All memory is the caller's, its sizes are known beforehand, and nothing is allocated in a step:
//   input, output    activations between layers. `input` stays intact until BackwardWeight.
//   forward stash    from Forward to the end of BackwardWeight, one per micro-batch in flight.
//   backward stash   from BackwardInput to the end of BackwardWeight, likewise.
//   grad_output      stays intact until BackwardWeight; grad_input is free as soon as it was read.
//   workspace        scratch within one call; one for all calls on a stream.
// "End" means: until the stream has passed it. Everything is enqueued on the given stream.
//
// A tensor-parallel group is one Model per rank, each of its own TensorPart, whose layers are
// called with the same inputs in the same order; activations between layers and their gradients are
// whole, and the same bits, on all ranks. F and B then contain sums over the group (F: one for the
// embedding and each half of a block; B: one for each half of a block and for the head); W has
// none. What is returned is the collectives' failure: the outputs are then worthless.
//
// Thread safety: a Model is constant after Create and may be shared.

#ifndef ATOLL_WORKER_MODEL_MODEL_H_
#define ATOLL_WORKER_MODEL_MODEL_H_

#include <memory>
#include <span>
#include <vector>

#include "common/model/config.h"
#include "common/model/layout.h"
#include "common/model/stash.h"
#include "kernels/backend.h"
#include "worker/model/exec.h"

namespace atl {

// One layer's memory in the backend, laid out as its LayerLayout says. A head that shares the
// embedding's table reads it through tied_params and accumulates its gradient into tied_grads, both
// [vocab of the part, d_model]. On one device these may simply be the first part of the embedding's
// buffers (of a model with an adapter, of its frozen one, without a gradient); the two uses then
// add up in the order of their BackwardWeight calls. A schedule that varies that order, or a
// pipeline whose ends are on two devices, gives the head buffers of its own and adds its gradient
// to the embedding's when all micro-batches are done.
struct LayerMemory {
  void* params = nullptr;  // compute type
  void* grads =
      nullptr;  // f32 (f64 in a model of f64); null where only Forward and BackwardInput are called
  void* tied_params = nullptr;
  void* tied_grads = nullptr;
  void* frozen = nullptr;        // compute type, as LayerLayout::frozen; of a model with an adapter
  bool without_adapter = false;  // Forward computes what the frozen base does
  void* state_params = nullptr;  // f32 (f64 in a model of f64): what `params` are rounded from
};

struct Stash {
  void* forward = nullptr;
  void* backward = nullptr;
};

struct LayerBytes {
  int64_t forward_stash = 0;
  int64_t backward_stash = 0;
  int64_t workspace = 0;
};

// Where the sequences of a micro-batch end, or begin anew.
struct Borders {
  // It is of encoders the lengths of AttentionForward, int32 [1, rows], and of decoders the starts
  // of kernels/ops.h, int32 [1, N]. Absent: all sequences are whole, of one document each.
  Tensor at = {};
  bool continue_positions = false;  // positions do not begin anew with a document
};

// The losses of routers, which training adds; evaluation has none.
struct RouterCall {
  Tensor share;   // f32 [1, 1]: of a sequence in their means over the step's sequences
  Tensor totals;  // f32 [1, 2 + E]: += RouterLosses; absent: there are none
  Tensor starts;  // of documents, where sequences have several
  Tensor loads;   // f32 [1, E]: see RouterLosses; absent: none are kept
};

// Arguments that all calls of one layer on one stream share.
struct LayerCall {
  Backend& backend;
  Stream& stream;
  Workspace workspace;
  BatchShape shape;
  Tensor constants;                      // from Model::InitConstants
  Communicator* communicator = nullptr;  // of the tensor-parallel group; null for a whole model
  bool evaluates = false;                // running statistics stand for those of the micro-batch
  Borders borders = {};
  RouterCall router = {};
};

// Checks that the call has the communicator of the part's rank.
void CheckGroup(const LayerCall& call, const TensorPart& part);

class Layer {
 public:
  virtual ~Layer() = default;

  const LayerLayout& layout() const { return layout_; }

  // Columns of `input` (one row per token; the embedding's is int32 tokens [1, N], or pixels) and
  // `output`.
  // The head's are the part's vocabulary.
  virtual int64_t output_cols() const = 0;

  virtual absl::Status Forward(const LayerCall& call, const LayerMemory& memory,
                               const Tensor& input, const Tensor& output,
                               const Stash& stash) const = 0;
  // B. The embedding's does nothing: tokens have no gradient.
  virtual absl::Status BackwardInput(const LayerCall& call, const LayerMemory& memory,
                                     const Tensor& input, const Tensor& grad_output,
                                     const Tensor& grad_input, const Stash& stash) const = 0;
  // W: memory.grads += ...
  virtual void BackwardWeight(const LayerCall& call, const LayerMemory& memory, const Tensor& input,
                              const Tensor& grad_output, const Stash& stash) const = 0;

  virtual LayerBytes Bytes(Backend& backend, const BatchShape& shape) const = 0;

 protected:
  explicit Layer(LayerLayout layout) : layout_(std::move(layout)) {}

 private:
  LayerLayout layout_;
};

class Model {
 public:
  // `compute` is the type of activations and of the parameters that layers read.
  // INVALID_ARGUMENT if the config is not valid.
  static absl::StatusOr<Model> Create(const ModelConfig& config, DType compute = DType::kFloat32);
  // Creates the model that one tensor-parallel rank runs; `part` is one of CutModel's.
  static absl::StatusOr<Model> Create(const ModelConfig& config, DType compute,
                                      const TensorPart& part);

  const ModelConfig& config() const { return config_; }
  const TensorPart& part() const { return part_; }
  DType compute() const { return compute_; }
  std::span<const std::unique_ptr<Layer>> layers() const { return layers_; }

  // LayerCall::constants for sequences of up to `seq_len` tokens, in `memory` (null: only the
  // shape, which may be empty). InitConstants fills it, once.
  Tensor Constants(int64_t seq_len, void* memory) const;
  absl::Status InitConstants(Backend& backend, Stream& stream, const Tensor& constants) const;

  // Logits as they are sampled from, in place of the head's output.
  void FinishLogits(Backend& backend, Stream& stream, const Tensor& logits) const;

  // Loss of the head's output, and its gradient. `loss` is given without max and sums: a group
  // shares the maximum and the sum of each row, never its logits, and all ranks find the same
  // totals (count one rank's). `hits` [1, 1], if present, gets CountHits.
  absl::Status Loss(const LayerCall& call, const CrossEntropy& loss, const Tensor& hits = {}) const;
  int64_t LossWorkspaceBytes(Backend& backend, const CrossEntropy& loss) const;

  // Columns of what layer `layer` hands to the next one.
  int64_t output_cols(int layer) const {
    return layers_[static_cast<size_t>(layer)]->output_cols();
  }

 private:
  Model() = default;

  ModelConfig config_;
  Architecture arch_;
  TensorPart part_;
  DType compute_ = DType::kFloat32;
  std::vector<std::unique_ptr<Layer>> layers_;
};

// The layers; see Model::Create.
std::unique_ptr<Layer> NewEmbedding(const ModelConfig& config, const TensorPart& part,
                                    DType compute, LayerLayout layout);
std::unique_ptr<Layer> NewTransformerBlock(const ModelConfig& config, const TensorPart& part,
                                           DType compute, LayerLayout layout, int64_t index);
std::unique_ptr<Layer> NewHead(const ModelConfig& config, const TensorPart& part, DType compute,
                               LayerLayout layout);

std::unique_ptr<Layer> NewImageLayer(const ModelConfig& config, DType compute, LayerLayout layout,
                                     int64_t index);

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_MODEL_H_

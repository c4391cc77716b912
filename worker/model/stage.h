// Consecutive layers of a model on one device, with the memory to have several micro-batches in
// flight: what a pipeline's schedule moves around, and, with all layers and one micro-batch, a
// whole model's training.
//
//   const int slot = stage.Start(shape);        // takes memory for one micro-batch
//   ... fill stage.input(slot)
//   stage.Forward(call, slot, 0, output);       // F; where the head is stage.Loss(...), with B and
//                                               // W of the head (loss_head.h)
//   stage.StartBackward(slot);                  // takes memory for its gradients
//   ... fill stage.grad_output(slot)
//   stage.BackwardInput(call, slot, 0, grad_input);              // B
//   for (i = layers - 1 ... 0) stage.BackwardWeight(call, slot, i);  // W
//   stage.Finish(slot);                         // gives all of it back
//
// A micro-batch may run as 1, 2, 4, ... chunks of about as many sequences each: every chunk has its
// own F and B, in order, and W goes over all of them. Chunks change gradients by rounding only.
//
// A recomputed layer keeps only its input from F to B, and runs F again before B. (An embedding
// keeps nothing else anyway, and neither does a head.)
//
// All memory is taken by Allocate, before anything else; its size is known before. Used by one
// thread at a time; operations are enqueued.

#ifndef ATOLL_WORKER_MODEL_STAGE_H_
#define ATOLL_WORKER_MODEL_STAGE_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "worker/model/layer_state.h"
#include "worker/model/loss_head.h"
#include "worker/model/model.h"

namespace atl {

struct StageOptions {
  enum class Backward : uint8_t {
    kNone,   // F only: two activations and one stash serve all layers in turn
    kFused,  // Backward() does B and W layer by layer: the gradients' memory, likewise
    kSplit,  // B and W apart
  };

  int first_layer = 0;
  int layers = 0;
  BatchShape shape;  // of the largest micro-batch
  Backward backward = Backward::kSplit;
  int forward_slots = 1;   // micro-batches between Start and Finish
  int backward_slots = 1;  // of these, between StartBackward and Finish; kSplit only
  int max_chunks = 1;
  std::vector<int> recomputed_layers;  // of the model
};

// Arguments that all calls on one stream share.
struct StageCall {
  Backend& backend;
  Stream& stream;
  Workspace workspace;  // at least Stage::workspace_bytes
  Tensor constants;     // from Model::InitConstants
  Communicator* communicator = nullptr;
  bool evaluates = false;    // see LayerCall
  Borders borders = {};      // of the whole micro-batch
  bool counts_hits = false;  // Loss does, also of tokens
  // See RouterCall; `router_totals` has a row for each mixture; none in evaluation.
  Tensor router_share = {}, router_totals = {};
  // Called with each of the model's layers before its F, where set; may enqueue on the stream.
  std::function<void(int layer)> before_layer = {};
  bool without_adapter = false;  // Forward computes what the frozen base does
};

// The numbers of a micro-batch: see Stage::Loss.
inline constexpr int64_t kLossTotals = 3;
// The numbers of a mixture before those of its experts: see RouterCall::totals.
inline constexpr int64_t kRouterTotals = 2;

// Sequences [first, first + rows) of a micro-batch. Cuts of fewer chunks are cuts of more, too.
struct ChunkRows {
  int64_t first = 0;
  int64_t rows = 0;
};
ChunkRows RowsOfChunk(int64_t rows, int chunks, int chunk);

class Stage {
 public:
  // `states`: of the layers, in order. `table`: whose parameters begin with the table that a tied
  // head here reads, and whose gradient takes the head's share of it; else null. All outlive the
  // stage, as do backend and model.
  static std::unique_ptr<Stage> Create(Backend& backend, const Model& model,
                                       std::vector<LayerState*> states, LayerState* table,
                                       const StageOptions& options);

  int layers() const { return options_.layers; }
  bool has_embedding() const { return options_.first_layer == 0; }
  bool has_head() const;

  int64_t workspace_bytes() const { return workspace_bytes_; }
  int64_t activation_bytes() const { return activation_bytes_; }
  // Returns the part of these bytes that the stage's layer `index` needs: its stashes, its output
  // and their gradients.
  int64_t layer_bytes(int index) const { return layer_bytes_[index]; }
  absl::Status Allocate();

  // REQUIRES: a free slot, and as many rows as chunks.
  int Start(const BatchShape& shape, int chunks = 1);
  int chunks(int slot) const { return forward_[slot].chunks; }
  BatchShape shape(int slot) const { return forward_[slot].shape; }
  // int32 tokens [1, N] (or pixels) where the embedding is, else the input activation
  // [N, columns of the layer before].
  Tensor input(int slot) const;
  // `output` [N, columns of the last layer] is of the whole micro-batch; absent where the head is,
  // which this leaves out.
  absl::Status Forward(const StageCall& call, int slot, int chunk, const Tensor& output);

  // Returns logits of these rows of the micro-batch, [rows, vocab of the part], where the head is:
  // at most logit_rows(), until the next call. REQUIRES: one chunk, and F of it.
  absl::StatusOr<Tensor> Logits(const StageCall& call, int slot, int64_t first, int64_t rows);
  int64_t logit_rows() const { return head_->rows(); }
  // Adds the loss of these tokens of a chunk to `totals`, [1, kLossTotals], in its first three:
  // nats, targets that count, and of images, or where the call says so, hits. With `train` it runs
  // B and W of the head, too. `targets` are of the whole micro-batch, int32 [1, N], and `tokens` of
  // its tokens.
  absl::Status Loss(const StageCall& call, int slot, const Range& tokens, const Tensor& targets,
                    const Tensor& totals, float grad_scale, bool train);
  // Returns the tokens of a chunk.
  Range TokensOfChunk(int slot, int chunk) const;

  // REQUIRES: a free slot. F and Loss of all chunks are done.
  void StartBackward(int slot);
  // Returns the gradient of `output`, of the whole micro-batch. REQUIRES: no head here.
  Tensor grad_output(int slot) const;
  // `grad_input`, as `input`, is of the whole micro-batch; absent where the embedding is.
  absl::Status BackwardInput(const StageCall& call, int slot, int chunk, const Tensor& grad_input);
  // Runs W of the stage's layer `index`, all chunks; nothing for a head. Once per layer, after B of
  // all chunks.
  void BackwardWeight(const StageCall& call, int slot, int index);
  // B and W of one chunk, layer by layer: kFused.
  absl::Status Backward(const StageCall& call, int slot, int chunk, const Tensor& grad_input);

  void Finish(int slot);
  void FinishAll();  // drops all in flight

 private:
  // A micro-batch in flight. Tensors are of the largest micro-batch.
  struct ForwardSlot {
    Tensor input;
    std::vector<Tensor> outputs;  // by layer; absent where the caller's tensor takes it
    std::vector<void*> stashes;   // by layer; from F to W, but those of recomputed layers
    BatchShape shape;
    int chunks = 1;
    int backward = -1;  // slot of its gradients
    bool busy = false;
  };
  struct BackwardSlot {
    // By layer; absent for a head, and for the layer before, whose output has become its gradient.
    std::vector<Tensor> grad_outputs;
    std::vector<void*> stashes;     // by layer
    std::vector<void*> recomputed;  // by layer: forward stashes
    bool busy = false;
  };
  enum class StashKind : uint8_t { kForward, kBackward };
  enum class Work : uint8_t { kForward, kBackwardInput, kBackwardWeight, kBackward };

  Stage(Backend& backend, const Model& model, std::vector<LayerState*> states, LayerState* table,
        const StageOptions& options);

  const Layer& layer(int index) const { return *model_.layers()[options_.first_layer + index]; }
  bool Recomputed(int index) const { return recomputed_[index]; }
  LayerMemory Memory(int index) const;
  LayerBytes Bytes(int index, const BatchShape& shape) const;
  int64_t StashBytes(int index, StashKind kind) const;
  void Carve(class Carver& carver);
  void CarveForward(class Carver& carver, ForwardSlot& slot);
  void CarveBackward(class Carver& carver, BackwardSlot& slot);

  // The part of a whole micro-batch's tensor, or stash, that belongs to a chunk.
  BatchShape ChunkShape(const ForwardSlot& slot, int chunk) const;
  Tensor Part(const ForwardSlot& slot, int chunk, const Tensor& whole) const;
  int64_t InputCols(int index) const;  // of the stage's layer `index`, but of an embedding
  int64_t InputNumbers(const BatchShape& shape) const;  // where the embedding is
  void* Part(const ForwardSlot& slot, int chunk, int index, void* stash, StashKind kind) const;
  Tensor LayerInput(const ForwardSlot& slot, int chunk, int index) const;
  Tensor GradOutput(const ForwardSlot& slot, int chunk, int index) const;
  Stash GetStash(const ForwardSlot& slot, int chunk, int index) const;
  // `index`: of the layer, where its router's losses count.
  LayerCall Call(const StageCall& call, const ForwardSlot& slot, int chunk, int index = -1) const;
  // Work that is repeated in every step; `which`: the chunk, or the layer. `at_link`: the
  // activations or gradients that it receives or makes there, the caller's.
  absl::Status Repeat(const StageCall& call, Work what, int slot, int which, const Tensor& at_link,
                      absl::FunctionRef<absl::Status()> work) const;
  absl::Status ForwardLayer(const StageCall& call, const ForwardSlot& slot, int chunk, int index,
                            const Tensor& output, void* stash);
  absl::Status LayerBackwardInput(const StageCall& call, const ForwardSlot& slot, int chunk,
                                  int index, const Tensor& grad_input);
  bool HandsOn(const StageCall& call, int slot, int chunk, const Tensor& grad_input) const;
  void LayerBackwardWeight(const StageCall& call, const ForwardSlot& slot, int chunk, int index);

  Backend& backend_;
  const Model& model_;
  const std::vector<LayerState*> states_;
  LayerState* const table_;
  const StageOptions options_;
  std::vector<bool> recomputed_;
  int body_ = 0;  // layers but the head
  std::optional<LossHead> head_;
  mutable std::map<std::pair<int, std::pair<int64_t, int64_t>>, LayerBytes> bytes_;
  int64_t workspace_bytes_ = 0;
  int64_t activation_bytes_ = 0;
  std::vector<int64_t> layer_bytes_;
  Buffer memory_;
  std::vector<ForwardSlot> forward_;
  std::vector<BackwardSlot> backward_;
  void* scratch_stash_ = nullptr;  // F of recomputed layers
  // Its output when it runs again, of layers where that has not the shape of their input.
  Tensor scratch_output_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_STAGE_H_

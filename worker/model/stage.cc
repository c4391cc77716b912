#include "worker/model/stage.h"

#include <algorithm>

#include "worker/model/exec.h"

namespace atl {

ChunkRows RowsOfChunk(int64_t rows, int chunks, int chunk) {
  const int64_t first = rows * chunk / chunks;
  return {first, rows * (chunk + 1) / chunks - first};
}

Stage::Stage(Backend& backend, const Model& model, std::vector<LayerState*> states,
             LayerState* table, const StageOptions& options)
    : backend_(backend),
      model_(model),
      states_(std::move(states)),
      table_(table),
      options_(options),
      recomputed_(options.layers),
      forward_(options.forward_slots),
      backward_(options.backward == StageOptions::Backward::kSplit   ? options.backward_slots
                : options.backward == StageOptions::Backward::kFused ? 1
                                                                     : 0) {
  const int model_layers = static_cast<int>(model.layers().size());
  body_ = options.layers;
  if (has_head()) {
    --body_;
    head_.emplace(backend, model, options.shape, options.backward != StageOptions::Backward::kNone);
  }
  for (const int l : options.recomputed_layers) {
    if (l == 0 || l + 1 == model_layers) continue;
    recomputed_[l - options.first_layer] = true;
  }
}

std::unique_ptr<Stage> Stage::Create(Backend& backend, const Model& model,
                                     std::vector<LayerState*> states, LayerState* table,
                                     const StageOptions& options) {
  ATOLL_CHECK(options.layers > 0 && states.size() == static_cast<size_t>(options.layers));
  ATOLL_CHECK(options.shape.rows > 0 && options.max_chunks > 0 && options.forward_slots > 0);
  std::unique_ptr<Stage> stage(new Stage(backend, model, std::move(states), table, options));
  ATOLL_CHECK((table != nullptr) == (stage->has_head() && model.config().tied_head));
  Carver sizes(nullptr);
  stage->Carve(sizes);
  stage->activation_bytes_ = sizes.bytes();
  for (int i = 0; i < stage->body_; ++i) {
    stage->workspace_bytes_ =
        std::max(stage->workspace_bytes_, stage->Bytes(i, options.shape).workspace);
  }
  if (stage->head_) {
    stage->workspace_bytes_ = std::max(stage->workspace_bytes_, stage->head_->workspace_bytes());
  }
  return stage;
}

absl::Status Stage::Allocate() {
  ATOLL_ASSIGN_OR_RETURN(memory_, backend_.Allocate(activation_bytes_));
  Carver carver(memory_.data());
  Carve(carver);
  return absl::OkStatus();
}

bool Stage::has_head() const {
  return options_.first_layer + options_.layers == static_cast<int>(model_.layers().size());
}

LayerBytes Stage::Bytes(int index, const BatchShape& shape) const {
  const auto [it, is_new] = bytes_.try_emplace({index, {shape.rows, shape.seq_len}}, LayerBytes());
  if (is_new) it->second = layer(index).Bytes(backend_, shape);
  return it->second;
}

// Enough for every number of chunks.
int64_t Stage::StashBytes(int index, StashKind kind) const {
  int64_t most = 0;
  const BatchShape& shape = options_.shape;
  for (int64_t p = 1; p <= options_.max_chunks && p <= shape.rows; p *= 2) {
    const LayerBytes bytes = Bytes(index, {(shape.rows + p - 1) / p, shape.seq_len});
    most = std::max(most,
                    p * (kind == StashKind::kForward ? bytes.forward_stash : bytes.backward_stash));
  }
  return most;
}

void Stage::Carve(Carver& carver) {
  layer_bytes_.assign(options_.layers, 0);
  for (ForwardSlot& slot : forward_) CarveForward(carver, slot);
  for (BackwardSlot& slot : backward_) CarveBackward(carver, slot);
  if (head_) {
    const int64_t before = carver.bytes();
    head_->Carve(carver);
    layer_bytes_[body_] += carver.bytes() - before;
  }
  int64_t scratch = 0, output = 0;
  for (int i = 0; i < options_.layers; ++i) {
    if (!Recomputed(i)) continue;
    scratch = std::max(scratch, StashBytes(i, StashKind::kForward));
    if (layer(i).output_cols() != InputCols(i)) output = std::max(output, layer(i).output_cols());
  }
  if (scratch == 0) return;
  if (output > 0) scratch_output_ = carver.Take(model_.compute(), options_.shape.tokens(), output);
  // Fused, F's scratch is where a layer's F runs again before its B.
  const bool fused = options_.backward == StageOptions::Backward::kFused;
  scratch_stash_ = fused ? backward_[0].recomputed[0] : carver.Bytes(scratch);
}

void Stage::CarveForward(Carver& carver, ForwardSlot& slot) {
  const int64_t n = options_.shape.tokens();
  const bool trains = options_.backward != StageOptions::Backward::kNone;
  slot.input = has_embedding()
                   ? carver.Take(DType::kInt32, 1, InputNumbers(options_.shape))
                   : carver.Take(model_.compute(), n, model_.output_cols(options_.first_layer - 1));
  slot.outputs.assign(options_.layers, Tensor());
  slot.stashes.assign(options_.layers, nullptr);
  int64_t shared = 0;
  for (int i = 0; i < body_; ++i) {
    const int64_t before = carver.bytes();
    const bool last = i + 1 == options_.layers;
    const bool shares = !trains && i >= 2 && slot.outputs[i - 2].cols == layer(i).output_cols();
    if (!last && shares) {
      slot.outputs[i] = slot.outputs[i - 2];
    } else if (!last) {
      slot.outputs[i] = carver.Take(model_.compute(), n, layer(i).output_cols());
    }
    if (trains && !Recomputed(i)) {
      slot.stashes[i] = carver.Bytes(StashBytes(i, StashKind::kForward));
    }
    shared = std::max(shared, StashBytes(i, StashKind::kForward));
    layer_bytes_[i] += carver.bytes() - before;
  }
  if (!trains) std::fill(slot.stashes.begin(), slot.stashes.end(), carver.Bytes(shared));
}

void Stage::CarveBackward(Carver& carver, BackwardSlot& slot) {
  const bool fused = options_.backward == StageOptions::Backward::kFused;
  slot.grad_outputs.assign(options_.layers, Tensor());
  slot.stashes.assign(options_.layers, nullptr);
  slot.recomputed.assign(options_.layers, nullptr);
  int64_t backward = 0, recomputed = 0;
  for (int i = body_ - 1; i >= 0; --i) {
    const int64_t before = carver.bytes();
    if (has_head() && i + 1 == body_) {
      // in the place of its output
    } else if (fused && i + 3 <= options_.layers - 1 && slot.grad_outputs[i + 2].present() &&
               slot.grad_outputs[i + 2].cols == layer(i).output_cols()) {
      slot.grad_outputs[i] = slot.grad_outputs[i + 2];
    } else {
      slot.grad_outputs[i] =
          carver.Take(model_.compute(), options_.shape.tokens(), layer(i).output_cols());
    }
    const int64_t b = StashBytes(i, StashKind::kBackward);
    const int64_t r = Recomputed(i) ? StashBytes(i, StashKind::kForward) : 0;
    backward = std::max(backward, b);
    recomputed = std::max(recomputed, r);
    if (!fused) {
      slot.stashes[i] = carver.Bytes(b);
      slot.recomputed[i] = carver.Bytes(r);
    }
    layer_bytes_[i] += carver.bytes() - before;
  }
  if (!fused) return;
  std::fill(slot.stashes.begin(), slot.stashes.end(), carver.Bytes(backward));
  std::fill(slot.recomputed.begin(), slot.recomputed.end(), carver.Bytes(recomputed));
}

int Stage::Start(const BatchShape& shape, int chunks) {
  ATOLL_CHECK(shape.rows > 0 && shape.rows <= options_.shape.rows && shape.seq_len > 0 &&
                  shape.seq_len <= options_.shape.seq_len && chunks <= shape.rows &&
                  chunks <= options_.max_chunks,
              shape.rows, " sequences of ", shape.seq_len, " tokens in ", chunks, " chunks");
  for (size_t s = 0; s < forward_.size(); ++s) {
    ForwardSlot& slot = forward_[s];
    if (slot.busy) continue;
    slot.busy = true;
    slot.shape = shape;
    slot.chunks = chunks;
    slot.backward = -1;
    return static_cast<int>(s);
  }
  ATOLL_CHECK(false, "more than ", forward_.size(), " micro-batches in flight");
  __builtin_unreachable();
}

void Stage::StartBackward(int s) {
  for (size_t b = 0; b < backward_.size(); ++b) {
    if (backward_[b].busy) continue;
    backward_[b].busy = true;
    forward_[s].backward = static_cast<int>(b);
    return;
  }
  ATOLL_CHECK(false, "more than ", backward_.size(), " micro-batches between B and W");
}

void Stage::Finish(int s) {
  ForwardSlot& slot = forward_[s];
  ATOLL_CHECK(slot.busy);
  if (slot.backward >= 0) backward_[slot.backward].busy = false;
  slot.busy = false;
}

void Stage::FinishAll() {
  for (ForwardSlot& slot : forward_) slot.busy = false;
  for (BackwardSlot& slot : backward_) slot.busy = false;
}

BatchShape Stage::ChunkShape(const ForwardSlot& slot, int chunk) const {
  return {RowsOfChunk(slot.shape.rows, slot.chunks, chunk).rows, slot.shape.seq_len};
}

Tensor Stage::Part(const ForwardSlot& slot, int chunk, const Tensor& whole) const {
  if (!whole.present()) return whole;
  const ChunkRows rows = RowsOfChunk(slot.shape.rows, slot.chunks, chunk);
  const int64_t first = rows.first * slot.shape.seq_len, count = rows.rows * slot.shape.seq_len;
  if (whole.dtype != DType::kInt32) return whole.Rows(first, count);
  if (whole.data != slot.input.data) return whole.Columns(first, count);
  const int64_t each = InputNumbers({1, slot.shape.seq_len});
  return whole.Columns(rows.first * each, rows.rows * each);
}

int64_t Stage::InputCols(int index) const {
  return model_.output_cols(options_.first_layer + index - 1);
}

int64_t Stage::InputNumbers(const BatchShape& shape) const {
  return shape.rows * model_.config().InputNumbers(shape.seq_len);
}

void* Stage::Part(const ForwardSlot& slot, int chunk, int index, void* stash,
                  StashKind kind) const {
  if (chunk == 0) return stash;
  const LayerBytes bytes =
      Bytes(index, {(slot.shape.rows + slot.chunks - 1) / slot.chunks, slot.shape.seq_len});
  const int64_t each = kind == StashKind::kForward ? bytes.forward_stash : bytes.backward_stash;
  return static_cast<char*>(stash) + chunk * each;
}

Tensor Stage::input(int s) const {
  const ForwardSlot& slot = forward_[s];
  const int64_t n = slot.shape.tokens();
  return has_embedding() ? slot.input.Columns(0, InputNumbers(slot.shape)) : slot.input.Rows(0, n);
}

Tensor Stage::grad_output(int s) const {
  ATOLL_CHECK(!has_head());
  const ForwardSlot& slot = forward_[s];
  return backward_[slot.backward].grad_outputs.back().Rows(0, slot.shape.tokens());
}

Tensor Stage::LayerInput(const ForwardSlot& slot, int chunk, int index) const {
  return Part(slot, chunk, index == 0 ? slot.input : slot.outputs[index - 1]);
}

Tensor Stage::GradOutput(const ForwardSlot& slot, int chunk, int index) const {
  const Tensor& own = backward_[slot.backward].grad_outputs[index];
  return Part(slot, chunk, own.present() ? own : slot.outputs[index]);
}

Stash Stage::GetStash(const ForwardSlot& slot, int chunk, int index) const {
  const BackwardSlot& backward = backward_[slot.backward];
  void* forward = Recomputed(index) ? backward.recomputed[index] : slot.stashes[index];
  return {Part(slot, chunk, index, forward, StashKind::kForward),
          Part(slot, chunk, index, backward.stashes[index], StashKind::kBackward)};
}

LayerMemory Stage::Memory(int index) const {
  LayerMemory memory = states_[index]->memory();
  if (table_ != nullptr && index + 1 == options_.layers) {
    const LayerMemory table = table_->memory();
    memory.tied_params = table.frozen != nullptr ? table.frozen : table.params;
    memory.tied_grads = table.grads;
  }
  return memory;
}

LayerCall Stage::Call(const StageCall& call, const ForwardSlot& slot, int chunk, int index) const {
  Borders borders = call.borders;
  if (borders.at.present()) {
    const ChunkRows rows = RowsOfChunk(slot.shape.rows, slot.chunks, chunk);
    const int64_t each = borders.at.cols / slot.shape.rows;
    borders.at = borders.at.Columns(rows.first * each, rows.rows * each);
  }
  RouterCall router;
  const int64_t block = options_.first_layer + index - 1;
  const ModelConfig& config = model_.config();
  // The first layer and the last one are no blocks.
  if (call.router_totals.present() && block >= 0 && block < config.layers &&
      config.HasExperts(block)) {
    const int64_t row = config.MixtureIndex(block);
    router = {call.router_share, call.router_totals.Rows(row, 1), borders.at};
  }
  return {call.backend,   call.stream,       call.workspace, ChunkShape(slot, chunk),
          call.constants, call.communicator, call.evaluates, borders,
          router};
}

absl::Status Stage::ForwardLayer(const StageCall& call, const ForwardSlot& slot, int chunk,
                                 int index, const Tensor& output, void* stash) {
  LayerMemory memory = Memory(index);
  memory.without_adapter = call.without_adapter;
  return layer(index).Forward(Call(call, slot, chunk), memory, LayerInput(slot, chunk, index),
                              Part(slot, chunk, output),
                              {Part(slot, chunk, index, stash, StashKind::kForward), nullptr});
}

absl::Status Stage::Repeat(const StageCall& call, Work what, int s, int which,
                           const Tensor& at_link, absl::FunctionRef<absl::Status()> work) const {
  // Collectives, of which W has none, are not the backend's to record, nor is what the caller
  // enqueues.
  const bool reduces = call.communicator != nullptr && what != Work::kBackwardWeight;
  if (reduces || call.before_layer != nullptr) return work();
  const ForwardSlot& slot = forward_[s];
  const auto address = [](const void* x) { return reinterpret_cast<int64_t>(x); };
  const WorkKey key = {address(this),
                       static_cast<int64_t>(what),
                       s,
                       slot.backward,
                       which,
                       slot.chunks,
                       slot.shape.rows,
                       slot.shape.seq_len,
                       address(at_link.data),
                       address(call.workspace.data),
                       (call.evaluates ? 1 : 0) | (call.without_adapter ? 2 : 0),
                       address(call.borders.at.data)};
  return call.backend.Repeat(call.stream, key, work);
}

absl::Status Stage::Forward(const StageCall& call, int s, int chunk, const Tensor& output) {
  const ForwardSlot& slot = forward_[s];
  const auto await = [&](int i) {
    if (call.before_layer != nullptr) call.before_layer(options_.first_layer + i);
  };
  const auto work = [&]() -> absl::Status {
    for (int i = 0; i < body_; ++i) {
      await(i);
      const Tensor& own = slot.outputs[i];
      ATOLL_RETURN_IF_ERROR(ForwardLayer(call, slot, chunk, i, own.present() ? own : output,
                                         Recomputed(i) ? scratch_stash_ : slot.stashes[i]));
    }
    return absl::OkStatus();
  };
  if (body_ > 0) {
    ATOLL_RETURN_IF_ERROR(Repeat(call, Work::kForward, s, chunk, output, work));
  }
  if (head_) await(body_);  // for Loss
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Stage::Logits(const StageCall& call, int s, int64_t first, int64_t rows) {
  const ForwardSlot& slot = forward_[s];
  ATOLL_CHECK(head_ && slot.chunks == 1);
  return head_->Logits(Call(call, slot, 0), Memory(body_),
                       LayerInput(slot, 0, body_).Rows(first, rows));
}

Range Stage::TokensOfChunk(int s, int chunk) const {
  const ForwardSlot& slot = forward_[s];
  const ChunkRows rows = RowsOfChunk(slot.shape.rows, slot.chunks, chunk);
  return {rows.first * slot.shape.seq_len, (rows.first + rows.rows) * slot.shape.seq_len};
}

absl::Status Stage::Loss(const StageCall& call, int s, const Range& tokens, const Tensor& targets,
                         const Tensor& totals, float grad_scale, bool train) {
  const ForwardSlot& slot = forward_[s];
  const bool counts_hits = call.counts_hits || model_.config().is_images();
  const Tensor& whole = body_ == 0 ? slot.input : slot.outputs[body_ - 1];
  const Tensor input = whole.Rows(tokens.begin, tokens.size());
  const CrossEntropy loss{.targets = targets.Columns(tokens.begin, tokens.size()),
                          .totals = totals.Columns(0, 2),
                          .grad_scale = grad_scale};
  return head_->Run(Call(call, slot, /*chunk=*/0), Memory(body_), input, loss,
                    counts_hits ? totals.Columns(2, 1) : Tensor(), train ? input : Tensor());
}

// Loss has made the gradient, which goes on from a stage of the head alone.
bool Stage::HandsOn(const StageCall& call, int s, int chunk, const Tensor& grad_input) const {
  if (body_ > 0) return false;
  const ForwardSlot& slot = forward_[s];
  call.backend.Run(call.stream,
                   Convert{Part(slot, chunk, slot.input), Part(slot, chunk, grad_input)});
  return true;
}

absl::Status Stage::LayerBackwardInput(const StageCall& call, const ForwardSlot& slot, int chunk,
                                       int index, const Tensor& grad_input) {
  const BackwardSlot& backward = backward_[slot.backward];
  const Tensor& own = index == 0 ? grad_input : backward.grad_outputs[index - 1];
  if (Recomputed(index)) {
    // The output is not needed again: it goes where the gradient will be, if it has its shape.
    Tensor output = own;
    if (const int64_t cols = layer(index).output_cols(); cols != InputCols(index)) {
      output = Tensor(scratch_output_.data, scratch_output_.dtype, scratch_output_.rows, cols);
    }
    ATOLL_RETURN_IF_ERROR(
        ForwardLayer(call, slot, chunk, index, output, backward.recomputed[index]));
  }
  return layer(index).BackwardInput(Call(call, slot, chunk, index), Memory(index),
                                    LayerInput(slot, chunk, index), GradOutput(slot, chunk, index),
                                    Part(slot, chunk, own), GetStash(slot, chunk, index));
}

void Stage::LayerBackwardWeight(const StageCall& call, const ForwardSlot& slot, int chunk,
                                int index) {
  layer(index).BackwardWeight(Call(call, slot, chunk), Memory(index),
                              LayerInput(slot, chunk, index), GradOutput(slot, chunk, index),
                              GetStash(slot, chunk, index));
}

absl::Status Stage::BackwardInput(const StageCall& call, int s, int chunk,
                                  const Tensor& grad_input) {
  ATOLL_CHECK(options_.backward == StageOptions::Backward::kSplit);
  if (HandsOn(call, s, chunk, grad_input)) return absl::OkStatus();
  return Repeat(call, Work::kBackwardInput, s, chunk, grad_input, [&]() -> absl::Status {
    for (int i = body_ - 1; i >= 0; --i) {
      ATOLL_RETURN_IF_ERROR(LayerBackwardInput(call, forward_[s], chunk, i, grad_input));
    }
    return absl::OkStatus();
  });
}

void Stage::BackwardWeight(const StageCall& call, int s, int index) {
  const ForwardSlot& slot = forward_[s];
  if (index == body_) return;  // Loss has made it
  // W has no collectives, and so nothing that could fail.
  (void)Repeat(call, Work::kBackwardWeight, s, index, Tensor(), [&]() -> absl::Status {
    for (int p = 0; p < slot.chunks; ++p) LayerBackwardWeight(call, slot, p, index);
    return absl::OkStatus();
  });
}

absl::Status Stage::Backward(const StageCall& call, int s, int chunk, const Tensor& grad_input) {
  ATOLL_CHECK(options_.backward == StageOptions::Backward::kFused);
  if (HandsOn(call, s, chunk, grad_input)) return absl::OkStatus();
  return Repeat(call, Work::kBackward, s, chunk, grad_input, [&]() -> absl::Status {
    for (int i = body_ - 1; i >= 0; --i) {
      ATOLL_RETURN_IF_ERROR(LayerBackwardInput(call, forward_[s], chunk, i, grad_input));
      LayerBackwardWeight(call, forward_[s], chunk, i);
    }
    return absl::OkStatus();
  });
}

}  // namespace atl

#include "worker/pipeline/executor.h"

#include <algorithm>

#include "common/check.h"
#include "common/event_loop.h"

namespace atl::worker {
namespace {

constexpr Duration kLook = std::chrono::microseconds(100);  // at a device that is not done yet

PlanOp Op(PlanOpKind kind, int32_t stage, int32_t m, bool gradient = false) {
  return {.kind = kind, .stage = stage, .micro_batch = m, .gradient = gradient};
}

}  // namespace

Executor::Executor(Device& device, const EngineJob& job, const EngineOptions& options,
                   const CommitTable& table, Transport& transport,
                   const GradientSync::Communicators& communicators, Interrupt& interrupt)
    : device_(device),
      job_(job),
      options_(options),
      table_(table),
      transport_(transport),
      communicators_(communicators),
      interrupt_(interrupt),
      sync_(device, communicators, interrupt),
      clock_(device.compute(), device.stream()) {
  const DeviceRole& role = device.role();
  for (const StageRole& stage : role.stages) {
    StageRun run;
    run.role = &stage;
    run.stage = &device.stage(stage.stage);
    run.weight_op.resize(role.micro_batches);
    if (!stage.tensor_group.empty()) {
      run.group = std::make_unique<GroupClock>(communicators_.at(stage.tensor_group).get());
    }
    if (!stage.next_is_here && !stage.to_next.empty()) {
      run.activations = NewAdapter(stage, false);
    }
    if (!stage.before_is_here && !stage.to_before.empty()) {
      run.gradients = NewAdapter(stage, true);
    }
    runs_.push_back(std::move(run));
  }
  for (size_t i = 0; i < role.program.ops.size(); ++i) {
    const PlanOp& op = role.program.ops[i];
    if (op.kind == PlanOpKind::kWeightGradient) Local(op.stage)->weight_op[op.micro_batch] = i;
  }
}

// ---- small helpers ----

Executor::StageRun* Executor::Local(int32_t stage) {
  for (StageRun& run : runs_) {
    if (run.role->stage == stage) return &run;
  }
  ATOLL_CHECK(false, "no stage ", stage, " on ", device_.name());
  __builtin_unreachable();
}

BatchShape Executor::Shape(int32_t m) const {
  return {input_->micro_batches[m].rows, job_.sequence_length};
}

int32_t Executor::LastMicroBatch() const {
  int32_t last = -1;
  for (size_t m = 0; m < input_->micro_batches.size(); ++m) {
    if (input_->micro_batches[m].rows > 0) last = static_cast<int32_t>(m);
  }
  return last;
}

Tensor Executor::Rows(const Tensor& whole, int64_t first, int64_t rows) const {
  return whole.Rows(first * job_.sequence_length, rows * job_.sequence_length);
}

// The output of layer `layer`, for so many sequences, in memory for the largest activation.
Tensor Executor::StageLink(const Tensor& memory, int32_t layer, int64_t rows) const {
  const int64_t cols = model().output_cols(layer);
  ATOLL_CHECK(cols <= memory.cols);
  return {memory.data, memory.dtype, rows * job_.sequence_length, cols};
}

Borders Executor::GetBorders(int32_t m) {
  if (!device_.run().borders.present()) return {};
  const int64_t first = m * device_.role().micro_batch_sequences, rows = Shape(m).rows;
  if (AreWhole(job_.model, device_.host_borders(first, rows), job_.sequence_length)) return {};
  const int64_t each = device_.border_numbers();
  return {device_.run().borders.Columns(first * each, rows * each),
          job_.documents == Documents::kContinue};
}

StageCall Executor::Call(const StageRun& run, int32_t m) {
  Communicator* group = run.group.get();
  if (group != nullptr && !result_->device.timed) {
    group = communicators_.at(run.role->tensor_group).get();
  }
  StageCall call{.backend = device_.compute(),
                 .stream = device_.stream(),
                 .workspace = device_.run().workspace,
                 .constants = device_.run().constants,
                 .communicator = group,
                 .evaluates = !input_->train,
                 .borders = GetBorders(m),
                 .counts_hits = input_->step.counts_hits,
                 .without_adapter = input_->references};
  if (input_->train && !input_->references) {
    call.router_share = device_.run().router_share;
    call.router_totals = device_.run().router_totals;
  }
  return call;
}

void Executor::SetChunk(int chunk, int chunks) {
  result_->device.spans.back().chunk = chunk;
  result_->device.spans.back().chunks = chunks;
}

// ---- a step ----

absl::Status Executor::BeginRouters() {
  const Tensor& totals = device_.run().router_totals;
  if (!totals.present()) return absl::OkStatus();
  Backend& backend = device_.compute();
  if (router_share_.data() == nullptr) {
    ATOLL_ASSIGN_OR_RETURN(router_share_, HostReals::Create(backend, totals.dtype, 1));
    ATOLL_ASSIGN_OR_RETURN(router_totals_, HostReals::Create(backend, totals.dtype, totals.size()));
  }
  router_share_.Set(0, 1.0 / static_cast<double>(input_->step.sequences));
  backend.CopyToDevice(device_.stream(), device_.run().router_share, router_share_.data());
  backend.Zero(device_.stream(), totals);
  return absl::OkStatus();
}

absl::Status Executor::Run(const StepInput& input, StepResult* result) {
  input_ = &input;
  result_ = result;
  result->device.device = device_.name();
  Times();
  result->device.begun = SteadyNow();
  absl::Status status = Begin();
  const std::vector<PlanOp>& ops = device_.role().program.ops;
  for (size_t i = 0; status.ok() && i < ops.size(); ++i) {
    status = interrupt_.status();
    if (status.ok()) status = Do(ops[i]);
  }
  if (status.ok()) status = Commit();
  if (!status.ok()) {
    interrupt_.Raise(Annotate(status, device_.name()));
    sync_.Stop();
    if (input.train) (void)sync_.Wait();
  } else if (input.train) {
    result->device.sync_spans = sync_.spans();  // the parameters that come back delay no step's end
  }
  result->device.ended = SteadyNow();
  if (status.ok()) Adapt();
  return status;
}

absl::Status Executor::Begin() {
  Backend& backend = device_.compute();
  const auto micro_batches = static_cast<size_t>(device_.role().micro_batches);
  ATOLL_CHECK(input_->micro_batches.size() == micro_batches);
  for (StageRun& run : runs_) {
    run.stage->FinishAll();
    run.slot.assign(micro_batches, -1);
    run.weight_layers.assign(micro_batches, -1);
    run.next_weight = 0;
    run.forwards_left = FilledMicroBatches();
    run.forwards_first = 0;
    run.work = Duration(0);
    if (run.group != nullptr) run.group->Use(points_ ? &clock_ : nullptr, waits_);
  }
  waited_ = Duration(0);
  waited_here_ = false;
  received_ = -1;
  noted_.clear();
  ATOLL_RETURN_IF_ERROR(sync_.EndSpread(/*waits=*/false));  // no step on parameters that were lost
  if (waits_) {                                             // for what the last step has left, too
    ATOLL_RETURN_IF_ERROR(backend.Synchronize(device_.stream()));
    ATOLL_RETURN_IF_ERROR(sync_.EndSpread(/*waits=*/true));
    ATOLL_RETURN_IF_ERROR(device_.communication().Synchronize(device_.communication_stream()));
  }
  if (points_) ATOLL_RETURN_IF_ERROR(clock_.Start());
  if (reached_ == nullptr) {
    ATOLL_ASSIGN_OR_RETURN(reached_, backend.NewEvent());
  }
  waiting_number_ = 0;
  pairs_ = LossSum();
  leads_.assign(input_->references ? static_cast<size_t>(input_->step.sequences) : 0, 0);
  backend.Zero(device_.stream(), device_.run().totals);
  ATOLL_RETURN_IF_ERROR(BeginRouters());
  if (device_.run().borders.present()) {
    backend.CopyToDevice(device_.stream(), device_.run().borders,
                         device_.host_borders(0, 0).data());
  }
  if (!input_->train) return absl::OkStatus();
  if (gradients_dirty_) {
    for (HeldState* held : device_.planned()) {
      if (held->elements > 0) backend.Zero(device_.stream(), held->state.grads());
    }
  }
  gradients_dirty_ = true;
  sync_.Start();
  if (LastMicroBatch() >= 0) return absl::OkStatus();
  for (const HeldState* held : device_.planned()) {
    if (!held->table_only) sync_.Complete(held->shard.layer);
  }
  return absl::OkStatus();
}

absl::Status Executor::Do(const PlanOp& op) {
  switch (op.kind) {
    case PlanOpKind::kForward:
      return Forward(*Local(op.stage), op.micro_batch);
    case PlanOpKind::kInputGradient:
      return input_->train ? Backward(*Local(op.stage), op.micro_batch) : absl::OkStatus();
    case PlanOpKind::kWeightGradient: {
      StageRun& run = *Local(op.stage);
      while (run.weight_layers[op.micro_batch] > 0) WeightLayer(run, op.micro_batch);
      return absl::OkStatus();
    }
    case PlanOpKind::kSend:     // with what makes it
    case PlanOpKind::kReceive:  // with what needs it
    case PlanOpKind::kSync:     // on the other thread
    case PlanOpKind::kOptimizer:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

// ---- F ----

// Takes the slots that F writes to; returns the stage's.
int Executor::StartForward(StageRun& run, int32_t m, const Inbox& inbox, int out_chunks,
                           Tensor* output) {
  if (run.slot[m] < 0) {
    run.slot[m] = run.stage->Start(Shape(m), std::max({1, inbox.chunks, out_chunks}));
  }
  const int slot = run.slot[m];
  if (run.role->next_is_here) {
    StageRun& next = *Local(run.role->stage + 1);
    next.slot[m] = next.stage->Start(Shape(m), run.stage->chunks(slot));
    *output = next.stage->input(next.slot[m]);
  } else if (!run.role->next.empty()) {
    const PlanStage& plan = run.role->plan;
    *output = StageLink(device_.run().output, plan.first_layer + plan.layers - 1, Shape(m).rows);
  }
  return slot;
}

absl::Status Executor::Forward(StageRun& run, int32_t m) {
  const BatchShape shape = Shape(m);
  if (shape.rows == 0) return absl::OkStatus();
  const bool sends = !run.role->next.empty() && !run.role->next_is_here;
  const bool receives = !run.role->before.empty() && !run.role->before_is_here;
  Inbox inbox = MakeInbox(run, m, false);
  if (receives) ATOLL_RETURN_IF_ERROR(Await(inbox));
  Outbox outbox = MakeOutbox(run, m, false, Tensor());
  Tensor output;
  const int slot = StartForward(run, m, inbox, sends ? outbox.chunks : 1, &output);
  outbox.payload = output;
  outbox.chunks = std::min(outbox.chunks, run.stage->chunks(slot));
  inbox.into = run.stage->input(slot);
  const int64_t first_row = m * device_.role().micro_batch_sequences;
  if (run.stage->has_embedding()) {
    device_.compute().CopyToDevice(
        device_.stream(), inbox.into,
        device_.host_inputs() + first_row * job_.model.InputNumbers(job_.sequence_length));
  }
  if (run.stage->has_head()) {
    device_.compute().CopyToDevice(device_.stream(),
                                   device_.run().targets.Columns(0, shape.tokens()),
                                   device_.host_targets() + first_row * job_.sequence_length);
  }
  for (int p = 0; p < run.stage->chunks(slot); ++p) {
    const ChunkRows rows = RowsOfChunk(shape.rows, run.stage->chunks(slot), p);
    if (receives) ATOLL_RETURN_IF_ERROR(ReceiveUpTo(inbox, rows.first + rows.rows));
    const Moment start = Now();
    if (computes()) ATOLL_RETURN_IF_ERROR(ForwardChunk(run, m, p, output));
    Done(start, Op(PlanOpKind::kForward, run.role->stage, m), run.role->plan.first_layer,
         run.role->plan.layers, rows.rows);
    SetChunk(p, run.stage->chunks(slot));
    if (sends) ATOLL_RETURN_IF_ERROR(SendUpTo(outbox, rows.first + rows.rows));
  }
  --run.forwards_left;
  if (!input_->train) {
    run.stage->Finish(slot);
    run.slot[m] = -1;
  }
  return absl::OkStatus();
}

absl::Status Executor::ForwardChunk(StageRun& run, int32_t m, int chunk, const Tensor& output) {
  const int slot = run.slot[m];
  StageCall call = Call(run, m);
  if (sync_.spreads()) call.before_layer = [this](int layer) { sync_.AwaitSpread(layer); };
  ATOLL_RETURN_IF_ERROR(run.stage->Forward(call, slot, chunk, output));
  if (!run.stage->has_head()) return absl::OkStatus();
  if (input_->references || !input_->step.references.empty()) return RunPairs(run, m, chunk);
  const auto tokens = static_cast<float>(std::max<int64_t>(1, input_->counted_tokens));
  return run.stage->Loss(Call(run, m), slot, run.stage->TokensOfChunk(slot, chunk),
                         device_.run().targets, device_.run().totals.Rows(m, 1), 1.0f / tokens,
                         input_->train);
}

// A sequence is a pair, in which the rejected answer with its prompt is the second document: where
// the head is, each of the two has a log-probability. What both are decides the gradient of either,
// so that the head runs twice, and the host waits between.
absl::Status Executor::RunPairs(StageRun& run, int32_t m, int chunk) {
  Backend& backend = device_.compute();
  const int slot = run.slot[m];
  const Range tokens = run.stage->TokensOfChunk(slot, chunk);
  const int64_t length = job_.sequence_length;
  const Tensor& totals = device_.run().pair_totals;  // of each answer
  const auto run_answers = [&](bool train, const auto& get_scale) -> absl::Status {
    for (int64_t row = tokens.begin / length; row < tokens.end / length; ++row) {
      const int64_t first = m * device_.role().micro_batch_sequences;
      const auto borders = device_.host_borders(first + row, 1);
      const int64_t begin = row * length, end = begin + length;
      const int64_t middle =
          begin +
          (std::ranges::find_if(borders, [](int32_t at) { return at > 0; }) - borders.begin());
      for (const auto& [answer, range] :
           {std::pair(2 * row, Range{begin, middle}), std::pair(2 * row + 1, Range{middle, end})}) {
        if (range.size() == 0) continue;
        ATOLL_RETURN_IF_ERROR(run.stage->Loss(Call(run, m), slot, range, device_.run().targets,
                                              totals.Rows(answer, 1), get_scale(answer), train));
      }
    }
    return absl::OkStatus();
  };
  if (pair_totals_.data() == nullptr) {
    ATOLL_ASSIGN_OR_RETURN(pair_totals_, HostReals::Create(backend, totals.dtype, totals.size()));
  }
  backend.Zero(device_.stream(), totals);
  ATOLL_RETURN_IF_ERROR(run_answers(/*train=*/false, [](int64_t) { return 0.0f; }));
  backend.CopyToHost(device_.stream(), pair_totals_.data(), totals);
  ATOLL_RETURN_IF_ERROR(backend.Synchronize(device_.stream()));
  std::vector<float> scales(static_cast<size_t>(totals.rows));  // of each answer's nats
  for (int64_t row = tokens.begin / length; row < tokens.end / length; ++row) {
    const double lead =
        pair_totals_[kLossTotals * (2 * row + 1)] - pair_totals_[kLossTotals * 2 * row];
    const auto pair = static_cast<size_t>(input_->micro_batches[m].first_row + row);
    if (input_->references) {
      leads_[pair] = lead;
      continue;
    }
    const PreferenceLoss loss = ComputePreference(job_.dpo, lead - input_->step.references[pair]);
    pairs_.nats += loss.nats;
    pairs_.hits += loss.prefers_chosen ? 1 : 0;
    const double slope = loss.slope / static_cast<double>(input_->counted_tokens);
    scales[static_cast<size_t>(2 * row)] = static_cast<float>(-slope);
    scales[static_cast<size_t>(2 * row + 1)] = static_cast<float>(slope);
  }
  if (!input_->train) return absl::OkStatus();
  return run_answers(/*train=*/true,
                     [&](int64_t answer) { return scales[static_cast<size_t>(answer)]; });
}

// ---- B ----

absl::Status Executor::Backward(StageRun& run, int32_t m) {
  const BatchShape shape = Shape(m);
  if (shape.rows == 0) return absl::OkStatus();
  const int slot = run.slot[m];
  if (run.forwards_first == 0) run.forwards_first = FilledMicroBatches() - run.forwards_left;
  const bool receives = !run.role->next.empty() && !run.role->next_is_here;
  const bool sends = !run.role->before.empty() && !run.role->before_is_here;
  if (!run.role->next_is_here) run.stage->StartBackward(slot);
  Tensor grad_input;
  if (run.role->before_is_here) {
    StageRun& before = *Local(run.role->stage - 1);
    before.stage->StartBackward(before.slot[m]);
    grad_input = before.stage->grad_output(before.slot[m]);
  } else if (sends) {
    grad_input = StageLink(device_.run().grad_input, run.role->plan.first_layer - 1, shape.rows);
  }
  Inbox inbox = MakeInbox(run, m, true);
  if (receives) inbox.into = run.stage->grad_output(slot);
  Outbox outbox = MakeOutbox(run, m, true, grad_input);
  outbox.chunks = std::min(outbox.chunks, run.stage->chunks(slot));
  for (int p = 0; p < run.stage->chunks(slot); ++p) {
    const ChunkRows rows = RowsOfChunk(shape.rows, run.stage->chunks(slot), p);
    if (receives) ATOLL_RETURN_IF_ERROR(ReceiveUpTo(inbox, rows.first + rows.rows));
    const Moment start = Now();
    if (computes()) ATOLL_RETURN_IF_ERROR(BackwardChunk(run, m, p, grad_input));
    const PlanStage& plan = run.role->plan;
    const PlanOp b = Op(PlanOpKind::kInputGradient, run.role->stage, m);
    Done(start, b, plan.first_layer, plan.layers, rows.rows);
    SetChunk(p, run.stage->chunks(slot));
    if (run.role->fused && options_.emulation.duration != nullptr) {
      const PlanOp w = Op(PlanOpKind::kWeightGradient, run.role->stage, m);
      Done(Now(), w, plan.first_layer, plan.layers, rows.rows);
      SetChunk(p, run.stage->chunks(slot));
    } else {
      result_->device.spans.back().with_weights = run.role->fused;
    }
    if (sends) ATOLL_RETURN_IF_ERROR(SendUpTo(outbox, rows.first + rows.rows));
  }
  run.weight_layers[m] = run.role->fused ? 0 : run.role->plan.layers;
  if (run.role->fused) WeightsDone(run, m);
  return absl::OkStatus();
}

absl::Status Executor::BackwardChunk(StageRun& run, int32_t m, int chunk,
                                     const Tensor& grad_input) {
  if (!run.role->fused) {
    return run.stage->BackwardInput(Call(run, m), run.slot[m], chunk, grad_input);
  }
  return run.stage->Backward(Call(run, m), run.slot[m], chunk, grad_input);
}

// ---- W ----

void Executor::WeightLayer(StageRun& run, int32_t m) {
  const int index = --run.weight_layers[m];
  const int32_t layer = run.role->plan.first_layer + index;
  const Moment start = Now();
  if (computes()) run.stage->BackwardWeight(Call(run, m), run.slot[m], index);
  const Duration took =
      Done(start, Op(PlanOpKind::kWeightGradient, run.role->stage, m), layer, 1, Shape(m).rows);
  result_->device.spans.back().layer = layer;
  if (timed_ && !points_) run.weight_layer = took;
  if (m == LastMicroBatch()) sync_.Complete(layer);
  if (index == 0) WeightsDone(run, m);
}

void Executor::WeightsDone(StageRun& run, int32_t m) {
  run.stage->Finish(run.slot[m]);
  run.slot[m] = -1;
  run.next_weight = m + 1;
  if (!run.role->fused || m != LastMicroBatch()) return;
  for (int32_t l = run.role->plan.layers - 1; l >= 0; --l) {
    sync_.Complete(run.role->plan.first_layer + l);
  }
}

// Whose W comes next in the program, of those whose B is done and whose turn in their stage it is.
Executor::StageRun* Executor::NextWeight() {
  StageRun* next = nullptr;
  for (StageRun& run : runs_) {
    const auto count = static_cast<int32_t>(run.weight_layers.size());
    while (run.next_weight < count && Shape(run.next_weight).rows == 0) ++run.next_weight;
    if (run.next_weight == count || run.weight_layers[run.next_weight] <= 0) continue;
    if (next == nullptr || run.weight_op[run.next_weight] < next->weight_op[next->next_weight]) {
      next = &run;
    }
  }
  return next;
}

// Does a layer of W, or waits a little first: a message that is just about to come should not find
// the device in the middle of one, nor a queue of them before it. False: there is none to do, or no
// time.
bool Executor::FillGap(const std::vector<MessageTag>& tags, Instant deadline, Gap* gap) {
  StageRun* next = NextWeight();
  const Instant now = SteadyNow();
  if (next == nullptr || now >= deadline) return false;
  Backend& backend = device_.compute();
  if (!gap->begun) backend.Record(device_.stream(), *reached_);
  gap->begun = true;
  if (!backend.Passed(*reached_)) {
    WaitFor(tags, std::min(now + kLook, deadline));
  } else if (gap->patient) {
    WaitFor(tags, std::min(now + next->weight_layer / 4, deadline));
    gap->patient = false;
  } else {
    WeightLayer(*next, next->next_weight);
    backend.Record(device_.stream(), *reached_);
  }
  return true;
}

}  // namespace atl::worker

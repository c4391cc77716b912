#include "worker/pipeline/executor.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "common/check.h"
#include "common/event_loop.h"

namespace atl::worker {
namespace {

// The largest power of two that is at most `limit`.
int PiecesWithin(int64_t limit) {
  int pieces = 1;
  while (2 * pieces <= limit) pieces *= 2;
  return pieces;
}

PlanOp Op(PlanOpKind kind, int32_t stage, int32_t m, bool gradient = false) {
  return {.kind = kind, .stage = stage, .micro_batch = m, .gradient = gradient};
}

}  // namespace

CommitTable::CommitTable(const IslandPlan& plan, int32_t layers)
    : layers_(layers),
      ranks_(plan.tensor_parallel()),
      first_device_(layers * ranks_ + static_cast<int>(plan.replicas.size())),
      devices_(DevicesOf(plan)) {}

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
      sync_(device, communicators, interrupt) {
  const DeviceRole& role = device.role();
  for (const StageRole& stage : role.stages) {
    StageRun run;
    run.role = &stage;
    run.stage = &device.stage(stage.stage);
    run.weight_op.resize(role.micro_batches);
    if (!stage.next_is_here && !stage.next.empty()) {
      run.activations = NewAdapter(stage.next, false);
    }
    if (!stage.before_is_here && !stage.before.empty()) {
      run.gradients = NewAdapter(stage.before, true);
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

StageCall Executor::Call(const StageRun& run) {
  Communicator* group = nullptr;
  if (!run.role->tensor_group.empty()) group = communicators_.at(run.role->tensor_group).get();
  return {device_.compute(), device_.stream(), device_.run().workspace, device_.run().constants,
          group};
}

Duration Executor::Done(Instant start, const PlanOp& op, int32_t first_layer, int32_t layers,
                        int64_t rows) {
  if (options_.emulation.duration != nullptr) {
    Instant end = start;
    for (int32_t l = first_layer; l < first_layer + layers; ++l) {
      end += options_.emulation.duration(device_.name(), l, op.kind, rows);
    }
    std::this_thread::sleep_until(std::chrono::steady_clock::time_point(end.time_since_epoch()));
  }
  const Instant now = SteadyNow();
  result_->device.busy += now - start;
  result_->device.spans.push_back({op, start, now});
  return now - start;
}

// ---- the adapters ----

std::unique_ptr<Adapter> Executor::NewAdapter(const std::string& to, bool gradient) const {
  BoundarySetup setup;
  setup.from = device_.name();
  setup.to = to;
  setup.gradient = gradient;
  setup.rows = device_.role().micro_batch_sequences;
  setup.bytes_per_row = job_.sequence_length * job_.model.d_model * SizeOf(job_.compute);
  setup.max_pieces = job_.max_pieces;
  return std::make_unique<Adapter>(std::move(setup));
}

// Between steps: what the last one's messages and work say.
void Executor::Adapt() {
  int64_t rows = 0;
  for (const MicroBatchRows& micro_batch : input_->micro_batches) rows += micro_batch.rows;
  std::vector<std::string> done;
  for (StageRun& run : runs_) {
    for (Adapter* adapter : {run.activations.get(), run.gradients.get()}) {
      if (adapter == nullptr) continue;
      if (rows > 0 && input_->train) {
        adapter->OnWork(Seconds(run.work) * static_cast<double>(adapter->setup().rows) /
                        static_cast<double>(rows));
      }
      const std::string& to = adapter->setup().to;
      if (std::find(done.begin(), done.end(), to) != done.end()) continue;
      done.push_back(to);
      for (const Transfer& transfer : transport_.TakeTransfers(device_.name(), to)) {
        for (StageRun& other : runs_) {
          Adapter* own = (transfer.gradient ? other.gradients : other.activations).get();
          if (own == nullptr || own->setup().to != to) continue;
          own->OnMessage(transfer.bytes, transfer.seconds);
          break;
        }
      }
    }
  }
}

int Executor::PiecesOf(const StageRun& run, bool gradient) const {
  if (options_.fixed_pieces > 0) return options_.fixed_pieces;
  const bool exposed = gradient ? run.forwards_left == 0 : !run.backward_begun;
  return (gradient ? run.gradients : run.activations)
      ->pieces(exposed ? StepPhase::kFillOrDrain : StepPhase::kSteady);
}

std::vector<BoundaryState> Executor::Boundaries() const {
  std::vector<BoundaryState> all;
  for (const StageRun& run : runs_) {
    for (const Adapter* adapter : {run.activations.get(), run.gradients.get()}) {
      if (adapter == nullptr) continue;
      BoundaryState state;
      state.from = adapter->setup().from;
      state.to = adapter->setup().to;
      state.pieces = options_.fixed_pieces > 0 ? options_.fixed_pieces
                                               : adapter->pieces(StepPhase::kFillOrDrain);
      state.message_seconds = adapter->message_seconds();
      state.bandwidth_bytes_per_s = adapter->bandwidth_bytes_per_s();
      state.saturated = adapter->saturated();
      state.reason = adapter->reason();
      all.push_back(std::move(state));
    }
  }
  return all;
}

std::string Executor::PlanWanted() const {
  for (const BoundaryState& state : Boundaries()) {
    if (state.saturated) return absl::StrCat("link ", state.from, " > ", state.to, " saturated");
  }
  return "";
}

// ---- a step ----

absl::Status Executor::Run(const StepInput& input, StepResult* result) {
  input_ = &input;
  result_ = result;
  result->device.device = device_.name();
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
  }
  if (input.train) (void)sync_.Wait();
  result->device.sync_spans = sync_.spans();
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
    run.forwards_left = 0;
    for (const MicroBatchRows& m : input_->micro_batches) run.forwards_left += m.rows > 0 ? 1 : 0;
    run.backward_begun = false;
    run.work = Duration(0);
  }
  backend.Zero(device_.stream(), device_.run().totals);
  if (!input_->train) return absl::OkStatus();
  if (gradients_dirty_) {
    for (HeldState* held : device_.planned()) backend.Zero(device_.stream(), held->state.grads());
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
int Executor::StartForward(StageRun& run, int32_t m, const Inbox& inbox, int out_pieces,
                           Tensor* output) {
  if (run.slot[m] < 0) {
    run.slot[m] = run.stage->Start(Shape(m), std::max({1, inbox.pieces, out_pieces}));
  }
  const int slot = run.slot[m];
  if (run.role->next_is_here) {
    StageRun& next = *Local(run.role->stage + 1);
    next.slot[m] = next.stage->Start(Shape(m), run.stage->pieces(slot));
    *output = next.stage->input(next.slot[m]);
  } else if (!run.role->next.empty()) {
    *output = Rows(device_.run().output, 0, Shape(m).rows);
  }
  return slot;
}

absl::Status Executor::Forward(StageRun& run, int32_t m) {
  const BatchShape shape = Shape(m);
  if (shape.rows == 0) return absl::OkStatus();
  const bool sends = !run.role->next.empty() && !run.role->next_is_here;
  const bool receives = !run.role->before.empty() && !run.role->before_is_here;
  Inbox inbox = InboxOf(run, m, false);
  if (receives) ATOLL_RETURN_IF_ERROR(Await(inbox));
  Outbox outbox = OutboxOf(run, m, false, Tensor());
  Tensor output;
  const int slot = StartForward(run, m, inbox, sends ? outbox.pieces : 1, &output);
  outbox.payload = output;
  outbox.pieces = std::min(outbox.pieces, run.stage->pieces(slot));
  inbox.into = run.stage->input(slot);
  const int64_t first = m * device_.role().micro_batch_sequences * job_.sequence_length;
  if (run.stage->has_embedding()) {
    device_.compute().CopyToDevice(device_.stream(), inbox.into, device_.host_inputs() + first);
  }
  if (run.stage->has_head()) {
    device_.compute().CopyToDevice(device_.stream(),
                                   device_.run().targets.Columns(0, shape.tokens()),
                                   device_.host_targets() + first);
  }
  for (int p = 0; p < run.stage->pieces(slot); ++p) {
    const PieceRows rows = RowsOfPiece(shape.rows, run.stage->pieces(slot), p);
    if (receives) ATOLL_RETURN_IF_ERROR(ReceiveUpTo(inbox, rows.first + rows.rows));
    const Instant start = SteadyNow();
    if (computes()) ATOLL_RETURN_IF_ERROR(ForwardPiece(run, m, p, output));
    const Duration took = Done(start, Op(PlanOpKind::kForward, run.role->stage, m),
                               run.role->plan.first_layer, run.role->plan.layers, rows.rows);
    run.work += took;
    if (sends) run.activations->OnCompute(rows.rows, Seconds(took));
    if (sends) ATOLL_RETURN_IF_ERROR(SendUpTo(outbox, rows.first + rows.rows));
  }
  --run.forwards_left;
  if (!input_->train) {
    run.stage->Finish(slot);
    run.slot[m] = -1;
  }
  return absl::OkStatus();
}

absl::Status Executor::ForwardPiece(StageRun& run, int32_t m, int piece, const Tensor& output) {
  const int slot = run.slot[m];
  ATOLL_RETURN_IF_ERROR(run.stage->Forward(Call(run), slot, piece, output));
  if (!run.stage->has_head()) return absl::OkStatus();
  const auto tokens = static_cast<float>(input_->sequences * job_.sequence_length);
  return run.stage->Loss(Call(run), slot, piece, device_.run().targets,
                         device_.run().totals.Rows(m, 1), 1.0f / tokens, input_->train);
}

// ---- B ----

absl::Status Executor::Backward(StageRun& run, int32_t m) {
  const BatchShape shape = Shape(m);
  if (shape.rows == 0) return absl::OkStatus();
  const int slot = run.slot[m];
  run.backward_begun = true;
  const bool receives = !run.role->next.empty() && !run.role->next_is_here;
  const bool sends = !run.role->before.empty() && !run.role->before_is_here;
  if (!run.role->next_is_here) run.stage->StartBackward(slot);
  Tensor grad_input;
  if (run.role->before_is_here) {
    StageRun& before = *Local(run.role->stage - 1);
    before.stage->StartBackward(before.slot[m]);
    grad_input = before.stage->grad_output(before.slot[m]);
  } else if (sends) {
    grad_input = Rows(device_.run().grad_input, 0, shape.rows);
  }
  Inbox inbox = InboxOf(run, m, true);
  if (receives) inbox.into = run.stage->grad_output(slot);
  Outbox outbox = OutboxOf(run, m, true, grad_input);
  outbox.pieces = std::min(outbox.pieces, run.stage->pieces(slot));
  for (int p = 0; p < run.stage->pieces(slot); ++p) {
    const PieceRows rows = RowsOfPiece(shape.rows, run.stage->pieces(slot), p);
    if (receives) ATOLL_RETURN_IF_ERROR(ReceiveUpTo(inbox, rows.first + rows.rows));
    const Instant start = SteadyNow();
    if (computes()) ATOLL_RETURN_IF_ERROR(BackwardPiece(run, m, p, grad_input));
    const PlanStage& plan = run.role->plan;
    const PlanOp b = Op(PlanOpKind::kInputGradient, run.role->stage, m);
    Duration took = Done(start, b, plan.first_layer, plan.layers, rows.rows);
    if (run.role->fused && options_.emulation.duration != nullptr) {
      const PlanOp w = Op(PlanOpKind::kWeightGradient, run.role->stage, m);
      took += Done(SteadyNow(), w, plan.first_layer, plan.layers, rows.rows);
    }
    run.work += took;
    if (sends) run.gradients->OnCompute(rows.rows, Seconds(took));
    if (sends) ATOLL_RETURN_IF_ERROR(SendUpTo(outbox, rows.first + rows.rows));
  }
  run.weight_layers[m] = run.role->fused ? 0 : run.role->plan.layers;
  if (run.role->fused) WeightsDone(run, m);
  return absl::OkStatus();
}

absl::Status Executor::BackwardPiece(StageRun& run, int32_t m, int piece,
                                     const Tensor& grad_input) {
  if (!run.role->fused) {
    return run.stage->BackwardInput(Call(run), run.slot[m], piece, grad_input);
  }
  return run.stage->Backward(Call(run), run.slot[m], piece, grad_input);
}

// ---- W ----

void Executor::WeightLayer(StageRun& run, int32_t m) {
  const int index = --run.weight_layers[m];
  const int32_t layer = run.role->plan.first_layer + index;
  const Instant start = SteadyNow();
  if (computes()) run.stage->BackwardWeight(Call(run), run.slot[m], index);
  run.work +=
      Done(start, Op(PlanOpKind::kWeightGradient, run.role->stage, m), layer, 1, Shape(m).rows);
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

// The next W of the program whose B is done and whose turn in its stage it is.
bool Executor::PullWeightLayer() {
  StageRun* next = nullptr;
  for (StageRun& run : runs_) {
    const auto count = static_cast<int32_t>(run.weight_layers.size());
    while (run.next_weight < count && Shape(run.next_weight).rows == 0) ++run.next_weight;
    if (run.next_weight == count || run.weight_layers[run.next_weight] <= 0) continue;
    if (next == nullptr || run.weight_op[run.next_weight] < next->weight_op[next->next_weight]) {
      next = &run;
    }
  }
  if (next == nullptr) return false;
  WeightLayer(*next, next->next_weight);
  return true;
}

// ---- messages ----

MessageTag Executor::Tag(int32_t stage, int32_t m, bool gradient) const {
  MessageTag tag;
  tag.step = input_->number;
  tag.replica = device_.role().replica;
  tag.stage = stage;
  tag.rank = device_.role().rank;
  tag.micro_batch = m;
  tag.gradient = gradient;
  return tag;
}

Executor::Inbox Executor::InboxOf(const StageRun& run, int32_t m, bool gradient) const {
  return {gradient ? run.role->next : run.role->before, Tag(run.role->stage, m, gradient), Tensor(),
          Shape(m).rows};
}

Executor::Outbox Executor::OutboxOf(const StageRun& run, int32_t m, bool gradient,
                                    const Tensor& payload) const {
  Outbox outbox{gradient ? run.role->before : run.role->next,
                Tag(run.role->stage + (gradient ? -1 : 1), m, gradient), payload, Shape(m).rows};
  if (outbox.to.empty() || outbox.to == device_.name()) return outbox;
  outbox.pieces =
      PiecesWithin(std::min<int64_t>({PiecesOf(run, gradient), job_.max_pieces, outbox.rows}));
  return outbox;
}

// Until the next piece is there; meanwhile, W.
absl::Status Executor::Await(Inbox& inbox) {
  std::vector<MessageTag> tags;
  inbox.tag.piece = inbox.received;
  if (inbox.pieces > 0) {
    inbox.tag.pieces = inbox.pieces;
    tags.push_back(inbox.tag);
  } else {
    const auto most = std::min<int64_t>(job_.max_pieces, inbox.rows);
    for (inbox.tag.pieces = 1; inbox.tag.pieces <= most; inbox.tag.pieces *= 2) {
      tags.push_back(inbox.tag);
    }
  }
  const Instant start = SteadyNow();
  const Instant deadline = start + options_.message_timeout;
  bool waited = false;
  for (;;) {
    for (const MessageTag& tag : tags) {
      if (!transport_.Arrived(device_.name(), tag)) continue;
      ATOLL_RETURN_IF_ERROR(interrupt_.status());
      inbox.tag = tag;
      inbox.pieces = tag.pieces;
      const PlanOp op =
          Op(PlanOpKind::kReceive, inbox.tag.stage, inbox.tag.micro_batch, inbox.tag.gradient);
      if (waited) result_->device.spans.push_back({op, start, SteadyNow()});
      return absl::OkStatus();
    }
    ATOLL_RETURN_IF_ERROR(interrupt_.status());
    if (PullWeightLayer()) continue;
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("the ", inbox.tag.gradient ? "gradient" : "activation", " of micro-batch ",
                       inbox.tag.micro_batch, " for stage ", inbox.tag.stage, " did not come from ",
                       inbox.from, " within ", Seconds(options_.message_timeout), " s"));
    }
    waited = true;
    transport_.Wait(device_.name(), tags, deadline);
  }
}

absl::Status Executor::ReceiveUpTo(Inbox& inbox, int64_t row) {
  while (inbox.pieces == 0 || RowsOfPiece(inbox.rows, inbox.pieces, inbox.received).first < row) {
    ATOLL_RETURN_IF_ERROR(Await(inbox));
    const PieceRows rows = RowsOfPiece(inbox.rows, inbox.pieces, inbox.received);
    ATOLL_RETURN_IF_ERROR(transport_.Receive(
        device_.name(), inbox.tag, device_.compute(), device_.stream(),
        Rows(inbox.into, rows.first, rows.rows), SteadyNow() + options_.message_timeout));
    ++inbox.received;
  }
  return absl::OkStatus();
}

absl::Status Executor::SendUpTo(Outbox& outbox, int64_t row) {
  while (outbox.sent < outbox.pieces) {
    const PieceRows rows = RowsOfPiece(outbox.rows, outbox.pieces, outbox.sent);
    if (rows.first + rows.rows > row) break;
    outbox.tag.piece = outbox.sent;
    outbox.tag.pieces = outbox.pieces;
    ATOLL_RETURN_IF_ERROR(transport_.Send(device_.name(), outbox.to, outbox.tag, device_.compute(),
                                          device_.stream(),
                                          Rows(outbox.payload, rows.first, rows.rows)));
    ++outbox.sent;
  }
  return absl::OkStatus();
}

// ---- commit ----

void Executor::FillTable(const std::vector<double>& sums, std::vector<double>* values) const {
  const DeviceRole& role = device_.role();
  const std::vector<HeldState*>& planned = device_.planned();
  for (size_t i = 0; i < sums.size(); ++i) {
    if (role.replica != 0 || planned[i]->table_only) continue;
    (*values)[table_.norm(planned[i]->shard.layer, role.rank)] = sums[i];
  }
  const bool has_head = role.HoldsLayer(static_cast<int32_t>(model().layers().size()) - 1);
  if (has_head && role.rank == 0) {
    double& nats = (*values)[table_.loss(role.replica)];
    for (int32_t m = 0; m < role.micro_batches; ++m) nats += totals_[2 * m];
  }
  for (size_t d = 0; d < table_.devices().size(); ++d) {
    if (table_.devices()[d] != device_.name()) continue;
    (*values)[table_.steps(d)] = static_cast<double>(planned[0]->optimizer_step);
  }
}

absl::Status Executor::ExchangeTable(std::vector<double>* values) {
  const auto group = communicators_.find("commit");
  if (group == communicators_.end()) return absl::OkStatus();
  const Tensor& commit = device_.run().commit;
  device_.compute().CopyToDevice(device_.stream(), commit, values->data());
  ATOLL_RETURN_IF_ERROR(group->second->AllReduceSum(device_.compute(), device_.stream(), commit));
  device_.compute().CopyToHost(device_.stream(), values->data(), commit);
  return device_.compute().Synchronize(device_.stream());
}

absl::Status Executor::CheckSteps(const std::vector<double>& values) const {
  for (size_t d = 1; d < table_.devices().size(); ++d) {
    if (values[table_.steps(d)] == values[table_.steps(0)]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(table_.devices()[d], " has taken ", values[table_.steps(d)],
                     " optimizer steps, but ", table_.devices()[0], " ", values[table_.steps(0)]));
  }
  return absl::OkStatus();
}

absl::Status Executor::Commit() {
  const bool train = input_->train;
  if (train) ATOLL_RETURN_IF_ERROR(sync_.Wait());
  totals_ = HostReals(device_.run().totals.dtype, device_.run().totals.size());
  device_.compute().CopyToHost(device_.stream(), totals_.data(), device_.run().totals);
  std::vector<double> sums;
  if (train && computes()) {
    ATOLL_ASSIGN_OR_RETURN(sums, device_.optimizer().SumsOfSquares(device_.role().rank));
  }
  ATOLL_RETURN_IF_ERROR(device_.compute().Synchronize(device_.stream()));
  std::vector<double> values(static_cast<size_t>(table_.slots()));
  FillTable(sums, &values);
  ATOLL_RETURN_IF_ERROR(interrupt_.status());
  ATOLL_RETURN_IF_ERROR(ExchangeTable(&values));
  for (int r = 0; r < table_.replicas(); ++r) result_->loss.nats += values[table_.loss(r)];
  result_->loss.tokens = input_->sequences * job_.sequence_length;
  if (!train) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(CheckSteps(values));
  double sum_of_squares = 0;
  for (int i = 0; i < table_.layers_and_ranks(); ++i) sum_of_squares += values[i];
  result_->gradient_norm = std::sqrt(sum_of_squares);
  return Optimize(sum_of_squares);
}

// From here on every device takes the step.
absl::Status Executor::Optimize(double sum_of_squares) {
  const Instant start = SteadyNow();
  const int64_t step = device_.planned()[0]->optimizer_step + 1;
  if (computes()) {
    device_.optimizer().Apply(step, static_cast<float>(input_->learning_rate), sum_of_squares,
                              options_.keep_gradients);
    gradients_dirty_ = options_.keep_gradients;
  }
  ATOLL_RETURN_IF_ERROR(device_.compute().Synchronize(device_.stream()));
  for (HeldState* held : device_.planned()) held->optimizer_step = step;
  const StageRole& first = device_.role().stages.front();
  Done(start, Op(PlanOpKind::kOptimizer, first.stage, 0), first.plan.first_layer, 0, 0);
  return absl::OkStatus();
}

}  // namespace atl::worker

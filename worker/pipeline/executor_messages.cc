// Messages that leave and reach a device, in chunks, the adapters that choose their number, and the
// times of operations, from which those learn.

#include <algorithm>
#include <thread>

#include "common/check.h"
#include "common/event_loop.h"
#include "worker/pipeline/executor.h"
#include "worker/pipeline/windows.h"

namespace atl::worker {
namespace {

constexpr int64_t kTimedEvery = 16;  // steps; and not the first, in which much is done once

// The largest power of two that is at most `limit`.
int ChunksWithin(int64_t limit) {
  int chunks = 1;
  while (2 * chunks <= limit) chunks *= 2;
  return chunks;
}

}  // namespace

MessageTag Executor::Tag(int32_t stage, int32_t m, bool gradient) const {
  MessageTag tag;
  tag.step = input_->step.number;
  tag.replica = device_.role().replica;
  tag.stage = stage;
  tag.rank = device_.role().rank;
  tag.micro_batch = m;
  tag.gradient = gradient;
  return tag;
}

Executor::Inbox Executor::MakeInbox(const StageRun& run, int32_t m, bool gradient) const {
  return {gradient ? run.role->next : run.role->before, Tag(run.role->stage, m, gradient), Tensor(),
          Shape(m).rows};
}

Executor::Outbox Executor::MakeOutbox(const StageRun& run, int32_t m, bool gradient,
                                      const Tensor& payload) const {
  const StageRole& role = *run.role;
  Outbox outbox{gradient ? role.to_before : role.to_next,
                Tag(role.stage + (gradient ? -1 : 1), m, gradient), payload, Shape(m).rows};
  const bool is_here = gradient ? role.before_is_here : role.next_is_here;
  if (is_here || (gradient ? role.before : role.next).empty()) return outbox;
  // Also where nothing leaves: all ranks of the stage compute in the same chunks.
  outbox.chunks = ChunksWithin(
      std::min<int64_t>({SelectChunkCount(run, gradient), job_.max_chunks, outbox.rows}));
  return outbox;
}

// The next chunk, under every number of chunks that its sender may have chosen.
std::vector<MessageTag> Executor::Candidates(const Inbox& inbox) const {
  MessageTag tag = inbox.tag;
  tag.chunk = inbox.received;
  tag.chunks = inbox.chunks;
  if (inbox.chunks > 0) return {tag};
  std::vector<MessageTag> tags;
  const auto most = std::min<int64_t>(job_.max_chunks, inbox.rows);
  for (tag.chunks = 1; tag.chunks <= most; tag.chunks *= 2) tags.push_back(tag);
  return tags;
}

void Executor::WaitFor(const std::vector<MessageTag>& tags, Instant deadline) {
  const Instant start = SteadyNow();
  transport_.Wait(device_.name(), tags, deadline);
  overslept_ = Duration(0);
  if (!IsSteady()) return;
  waited_here_ = true;
  if (!points_) waited_ += SteadyNow() - start;
}

// Waits until the next chunk is there; meanwhile, W.
absl::Status Executor::Await(Inbox& inbox) {
  const std::vector<MessageTag> tags = Candidates(inbox);
  const Instant start = SteadyNow();
  const Instant deadline = start + options_.message_timeout;
  bool waited = false;
  Gap gap;
  for (;;) {
    ATOLL_RETURN_IF_ERROR(interrupt_.status());
    for (const MessageTag& tag : tags) {
      if (!transport_.Arrived(device_.name(), tag)) continue;
      inbox.tag = tag;
      inbox.chunks = tag.chunks;
      if (!waited) return absl::OkStatus();
      const PlanOp op{.kind = PlanOpKind::kReceive,
                      .stage = tag.stage,
                      .micro_batch = tag.micro_batch,
                      .gradient = tag.gradient};
      result_->device.spans.push_back({op, start, SteadyNow()});
      return absl::OkStatus();
    }
    if (FillGap(tags, deadline, &gap)) continue;
    if (SteadyNow() >= deadline) break;
    waited = true;
    WaitFor(tags, deadline);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("the ", inbox.tag.gradient ? "gradient" : "activation", " of micro-batch ",
                   inbox.tag.micro_batch, " for stage ", inbox.tag.stage, " did not come from ",
                   inbox.from, " within ", Seconds(options_.message_timeout),
                   " s: its device hangs, or it or the link is many times slower than planned "
                   "(`atoll profile` has what was measured)"));
}

absl::Status Executor::ReceiveUpTo(Inbox& inbox, int64_t row) {
  while (inbox.chunks == 0 || RowsOfChunk(inbox.rows, inbox.chunks, inbox.received).first < row) {
    ATOLL_RETURN_IF_ERROR(Await(inbox));
    const ChunkRows rows = RowsOfChunk(inbox.rows, inbox.chunks, inbox.received);
    received_ = Now().point;
    ATOLL_RETURN_IF_ERROR(transport_.Receive(
        device_.name(), inbox.tag, device_.compute(), device_.stream(),
        Rows(inbox.into, rows.first, rows.rows), SteadyNow() + options_.message_timeout));
    ++inbox.received;
  }
  return absl::OkStatus();
}

absl::Status Executor::SendUpTo(Outbox& outbox, int64_t row) {
  while (outbox.sent < outbox.chunks) {
    const ChunkRows rows = RowsOfChunk(outbox.rows, outbox.chunks, outbox.sent);
    if (rows.first + rows.rows > row) break;
    outbox.tag.chunk = outbox.sent;
    outbox.tag.chunks = outbox.chunks;
    for (const auto& [rank, to] : outbox.to) {
      outbox.tag.rank = rank;
      ATOLL_RETURN_IF_ERROR(transport_.Send(device_.name(), to, outbox.tag, device_.compute(),
                                            device_.stream(),
                                            Rows(outbox.payload, rows.first, rows.rows)));
    }
    ++outbox.sent;
  }
  return absl::OkStatus();
}

std::unique_ptr<Adapter> Executor::NewAdapter(const StageRole& role, bool gradient) const {
  const std::string& to = (gradient ? role.to_before : role.to_next).front().second;
  const int32_t first = role.plan.first_layer;
  const int64_t cols = model().output_cols(gradient ? first - 1 : first + role.plan.layers - 1);
  StageLinkSetup setup;
  setup.from = device_.name();
  setup.to = to;
  setup.gradient = gradient;
  setup.rows = device_.role().micro_batch_sequences;
  setup.bytes_per_row = job_.sequence_length * cols * GetElementSize(job_.compute);
  setup.max_chunks = job_.max_chunks;
  setup.next_window = NextWindow;
  return std::make_unique<Adapter>(std::move(setup));
}

// Between steps: what the last one's messages and work say.
void Executor::Adapt() {
  int64_t rows = 0;
  for (const MicroBatchRows& micro_batch : input_->micro_batches) rows += micro_batch.rows;
  std::vector<std::string> done;
  for (StageRun& run : runs_) {
    if (run.activations != nullptr) run.activations->BeginStep();
    if (run.gradients != nullptr) run.gradients->BeginStep();
  }
  for (StageRun& run : runs_) {
    for (Adapter* adapter : {run.activations.get(), run.gradients.get()}) {
      if (adapter == nullptr) continue;
      if (rows > 0 && input_->train && timed_) {
        const double share = static_cast<double>(adapter->setup().rows) / static_cast<double>(rows);
        const int32_t steady = std::max(1, FilledMicroBatches() - run.forwards_first);
        adapter->OnWork(Seconds(run.work) * share, Seconds(waited_) / steady);
      }
      const std::string& to = adapter->setup().to;
      if (std::find(done.begin(), done.end(), to) != done.end()) continue;
      done.push_back(to);
      for (const Transfer& transfer : transport_.TakeTransfers(device_.name(), to)) {
        for (StageRun& other : runs_) {
          Adapter* own = (transfer.gradient ? other.gradients : other.activations).get();
          if (own == nullptr || own->setup().to != to) continue;
          (void)own->OnMessage(transfer.bytes, transfer.seconds);  // reason() has all of it
          break;
        }
      }
    }
  }
}

int32_t Executor::FilledMicroBatches() const {
  int32_t filled = 0;
  for (const MicroBatchRows& m : input_->micro_batches) filled += m.rows > 0 ? 1 : 0;
  return filled;
}

// Between a stage's first B and its last F.
bool Executor::IsSteady() const {
  return std::any_of(runs_.begin(), runs_.end(), [](const StageRun& run) {
    return run.forwards_first > 0 && run.forwards_left > 0;
  });
}

int Executor::SelectChunkCount(const StageRun& run, bool gradient) const {
  if (!transport_.Cuts(device_.name(), gradient ? run.role->before : run.role->next)) return 1;
  if (options_.fixed_chunks > 0) return options_.fixed_chunks;
  const bool exposed =
      run.forwards_first == 0 ||
      (gradient ? run.forwards_left == 0 : run.forwards_left <= run.forwards_first);
  return Chosen(run, gradient, exposed ? StepPhase::kFillOrDrain : StepPhase::kSteady);
}

int Executor::Chosen(const StageRun& run, bool gradient, StepPhase phase) const {
  if (device_.role().ranks > 1) return run.agreed.of[StageChunks::Index(gradient, phase)];
  return (gradient ? run.gradients : run.activations)->chunks(phase);
}

void Executor::ProposeChunks(std::vector<double>* values) const {
  const DeviceRole& role = device_.role();
  if (role.ranks == 1 || role.rank != 0) return;
  for (const StageRun& run : runs_) {
    double* const own = values->data() + table_.chunks(role.replica, run.role->stage);
    for (const bool gradient : {false, true}) {
      const Adapter* adapter = (gradient ? run.gradients : run.activations).get();
      for (const StepPhase phase : {StepPhase::kFillOrDrain, StepPhase::kSteady}) {
        own[StageChunks::Index(gradient, phase)] = adapter == nullptr ? 1 : adapter->chunks(phase);
      }
    }
  }
}

void Executor::AgreeOnChunks(const std::vector<double>& values) {
  const DeviceRole& role = device_.role();
  if (role.ranks == 1) return;
  for (StageRun& run : runs_) {
    const double* const numbers = values.data() + table_.chunks(role.replica, run.role->stage);
    for (int i = 0; i < StageChunks::kNumbers; ++i) {
      // Sent by another worker. No number is out of range of itself.
      const bool known = numbers[i] >= 1 && numbers[i] <= job_.max_chunks;
      run.agreed.of[i] = known ? static_cast<int>(numbers[i]) : 1;
    }
  }
}

std::vector<StageLinkState> Executor::StageLinks() const {
  std::vector<StageLinkState> all;
  for (const StageRun& run : runs_) {
    for (const bool gradient : {false, true}) {
      const Adapter* adapter = (gradient ? run.gradients : run.activations).get();
      if (adapter == nullptr) continue;
      StageLinkState state;
      state.from = adapter->setup().from;
      state.to = adapter->setup().to;
      state.chunks = options_.fixed_chunks > 0 ? options_.fixed_chunks
                                               : Chosen(run, gradient, StepPhase::kFillOrDrain);
      state.message_seconds = adapter->message_seconds();
      state.bandwidth_bytes_per_s = adapter->bandwidth_bytes_per_s();
      state.saturated = adapter->saturated();
      state.reason = adapter->reason();
      if (device_.role().rank > 0 && !state.saturated) {
        state.reason = "as the first device of its stage cuts its messages";
      }
      // Links are measured as they are between hosts, which NCCL's messages are not.
      if (transport_.Cuts(state.from, state.to)) {
        state.window = adapter->window();
        state.quickest_bytes = adapter->quickest().bytes;
        state.quickest_seconds = adapter->quickest().seconds;
      }
      state.transport = transport_.DescribeTransport(state.from, state.to);
      all.push_back(std::move(state));
    }
  }
  return all;
}

std::string Executor::PlanWanted() const {
  for (const StageLinkState& state : StageLinks()) {
    if (state.saturated) return absl::StrCat("link ", state.from, " > ", state.to, " saturated");
  }
  return "";
}

// ---- Times ----

// Where operations run behind their host, their times are noted now and then.
void Executor::Times() {
  const bool behind = device_.runs_behind_host();
  const bool now_and_then = input_->train && trained_++ % kTimedEvery == 1;
  waits_ = behind && (input_->step.trace || options_.emulation.any());
  timed_ = now_and_then || waits_ || !behind;
  points_ = timed_ && behind && !waits_;
  result_->device.timed = timed_;
}

Executor::Moment Executor::Now() {
  Moment moment{SteadyNow()};
  if (!points_) return moment;
  const absl::StatusOr<int> point = clock_.Mark();
  if (point.ok()) {
    moment.point = *point;
  } else {
    interrupt_.Raise(Annotate(point.status(), device_.name()));
  }
  return moment;
}

Duration Executor::Done(const Moment& start, const PlanOp& op, int32_t first_layer, int32_t layers,
                        int64_t rows) {
  if (waits_) {
    const absl::Status done = device_.compute().Synchronize(device_.stream());
    if (!done.ok()) interrupt_.Raise(Annotate(done, device_.name()));
  }
  const Moment end = Now();
  std::vector<OpSpan>& spans = result_->device.spans;
  OpSpan span{op, start.at, end.at};
  GroupClock* const group = Local(op.stage)->group.get();
  if (group != nullptr) span.in_group = group->Take();
  if (start.point >= 0 && end.point >= 0) {
    // Work on a message begins where it is taken in.
    const bool of_message = op.kind != PlanOpKind::kWeightGradient && received_ >= 0;
    const int from = of_message ? std::exchange(received_, -1) : start.point;
    noted_.push_back({spans.size(), from, end.point,
                      group == nullptr ? std::vector<int>() : group->TakePoints(), waited_here_});
  }
  waited_here_ = false;
  if (options_.emulation.any()) Emulate(first_layer, layers, rows, &span);
  spans.push_back(span);
  return span.end - span.start;
}

// The device has come to the end of all F, B and W of the step: how long they took, and how long it
// had none to do where messages were waited for in steady state.
void Executor::Account() {
  std::vector<OpSpan>& spans = result_->device.spans;
  Instant idle_since = kNever;
  for (const Noted& noted : noted_) {
    OpSpan& span = spans[noted.span];
    span.start = clock_.At(noted.start);
    span.end = clock_.At(noted.end);
    for (size_t i = 0; i + 1 < noted.in_group.size(); i += 2) {
      span.in_group += clock_.At(noted.in_group[i + 1]) - clock_.At(noted.in_group[i]);
    }
    if (noted.waited && idle_since < span.start) waited_ += span.start - idle_since;
    idle_since = span.end;
    if (span.op.kind == PlanOpKind::kWeightGradient) {
      Local(span.op.stage)->weight_layer = span.end - span.start;
    }
  }
  points_ = false;
  if (!timed_) return;
  for (size_t i = 0; i < spans.size(); ++i) {
    const OpSpan& span = spans[i];
    if (span.op.kind == PlanOpKind::kReceive) continue;
    StageRun& run = *Local(span.op.stage);
    Duration took = span.end - span.start;
    run.work += took;
    if (span.op.kind == PlanOpKind::kWeightGradient) continue;
    // Emulated, W of a fused B has a span of its own.
    const bool fused = run.role->fused && i + 1 < spans.size() &&
                       spans[i + 1].op.kind == PlanOpKind::kWeightGradient &&
                       spans[i + 1].op.stage == span.op.stage &&
                       spans[i + 1].op.micro_batch == span.op.micro_batch;
    if (fused) took += spans[i + 1].end - spans[i + 1].start;
    Adapter* const adapter =
        (span.op.kind == PlanOpKind::kForward ? run.activations : run.gradients).get();
    if (adapter == nullptr) continue;
    const int64_t rows = Shape(span.op.micro_batch).rows;
    adapter->OnCompute(RowsOfChunk(rows, span.chunks, span.chunk).rows, Seconds(took));
  }
}

// The emulated device's own time: it begins where the operation before ended, unless there was a
// wait, and does not know that this thread is woken up late or does not run. Waits for the others
// of its tensor-parallel group are not its own: slowed down, too, they would grow with every
// all-reduce.
void Executor::Emulate(int32_t first_layer, int32_t layers, int64_t rows, OpSpan* span) {
  const Emulation& emulation = options_.emulation;
  Duration lasts = computes() ? span->end - span->start - span->in_group : Duration(0);
  if (emulation.duration != nullptr) {
    Duration said{0};
    const auto last = static_cast<int32_t>(model().layers().size()) - 1;
    for (int32_t l = first_layer; l < first_layer + layers; ++l) {
      const LayerKind kind = l == 0      ? LayerKind::kEmbedding
                             : l == last ? LayerKind::kHead
                                         : LayerKind::kBlock;
      said += emulation.duration(device_.name(), kind, span->op.kind, rows);
    }
    lasts = std::max(lasts, said);
  }
  if (lasts <= Duration(0)) {
    overslept_ = Duration(0);
    return;
  }
  span->start -= overslept_;
  span->end = span->start + span->in_group + FromSeconds(emulation.slowdown * Seconds(lasts));
  std::this_thread::sleep_until(ToSteady(span->end));
  overslept_ = SteadyNow() - span->end;
}

}  // namespace atl::worker

// Messages that leave and reach a device, in chunks, and the adapters that choose their number.

#include <algorithm>

#include "common/check.h"
#include "common/event_loop.h"
#include "worker/pipeline/executor.h"
#include "worker/pipeline/windows.h"

namespace atl::worker {
namespace {

// The largest power of two that is at most `limit`.
int ChunksWithin(int64_t limit) {
  int chunks = 1;
  while (2 * chunks <= limit) chunks *= 2;
  return chunks;
}

}  // namespace

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

}  // namespace atl::worker

// How long operations take: as the host sees it, or as points of the device's stream say.

#include <algorithm>
#include <thread>

#include "common/check.h"
#include "common/event_loop.h"
#include "worker/pipeline/executor.h"

namespace atl::worker {
namespace {

constexpr int64_t kTimedEvery = 16;  // steps; and not the first, in which much is done once

}  // namespace

// Where operations run behind their host, their times are noted now and then.
void Executor::Times() {
  const bool behind = device_.runs_behind_host();
  const bool now_and_then = input_->train && trained_++ % kTimedEvery == 1;
  waits_ = behind && (input_->trace || options_.emulation.any());
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
    noted_.push_back({spans.size(), start.point, end.point,
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
                       spans[i + 1].op.kind == PlanOpKind::kWeightGradient;
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

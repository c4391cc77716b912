#include "worker/pipeline/gradient_sync.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "common/check.h"
#include "common/event_loop.h"

namespace atl::worker {

GradientSync::GradientSync(Device& device, const Communicators& communicators, Interrupt& interrupt)
    : device_(device),
      communicators_(communicators),
      interrupt_(interrupt),
      clock_(device.communication(), device.communication_stream()) {}

void GradientSync::Start() {
  {
    const std::lock_guard lock(mutex_);
    complete_.clear();
    stopped_ = false;
  }
  status_ = absl::OkStatus();
  timed_.clear();
  spread_spans_.clear();
  if (device_.role().syncs.empty()) return;
  thread_.Add([this] {
    status_ = Run();
    if (!status_.ok()) interrupt_.Raise(status_);
  });
}

void GradientSync::Complete(int32_t layer) {
  if (device_.role().syncs.empty()) return;
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Event>& event = events_[layer];
  if (event == nullptr) {
    auto made = device_.compute().NewEvent();
    if (!made.ok()) return interrupt_.Raise(made.status());
    event = *std::move(made);
  }
  device_.compute().Record(device_.stream(), *event);
  complete_.insert(layer);
  changed_.notify_all();
}

void GradientSync::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

absl::Status GradientSync::Wait() {
  thread_.Await();
  return status_;
}

void GradientSync::Join() {
  if (summed_ != nullptr) device_.compute().Wait(device_.stream(), *summed_);
}

std::vector<OpSpan> GradientSync::spans() const {
  std::vector<OpSpan> spans;
  for (const Timed& timed : timed_) {
    OpSpan& span = spans.emplace_back(timed.span);
    span.start = clock_.At(timed.start);
    span.end = clock_.At(timed.end);
  }
  spans.insert(spans.end(), spread_spans_.begin(), spread_spans_.end());
  return spans;
}

absl::Status GradientSync::Run() {
  Backend& backend = device_.communication();
  Stream& stream = device_.communication_stream();
  if (summed_ == nullptr) {
    ATOLL_ASSIGN_OR_RETURN(summed_, backend.NewEvent());
  }
  ATOLL_RETURN_IF_ERROR(clock_.Start());
  for (const SyncTask& task : device_.role().syncs) {
    const absl::Status waited = WaitFor(task);
    ATOLL_RETURN_IF_ERROR(EndSpread(/*waits=*/false));
    ATOLL_RETURN_IF_ERROR(waited);
    summed_bytes_ = 0;
    ATOLL_ASSIGN_OR_RETURN(const int start, clock_.Mark());
    ATOLL_RETURN_IF_ERROR(Do(task));
    ATOLL_ASSIGN_OR_RETURN(const int end, clock_.Mark());
    OpSpan span{.op = {.kind = PlanOpKind::kSync, .layer = task.layer}};
    span.bytes = summed_bytes_;
    timed_.push_back({span, start, end});
  }
  backend.Record(stream, *summed_);
  return absl::OkStatus();
}

// The table's gradient is complete when the embedding's and the head's are, whichever are here.
absl::Status GradientSync::WaitFor(const SyncTask& task) {
  const auto head = static_cast<int32_t>(device_.model().layers().size()) - 1;
  std::vector<int32_t> layers;
  if (device_.role().HoldsLayer(task.layer)) layers.push_back(task.layer);
  if (task.what == SyncTask::What::kTable && device_.role().HoldsLayer(head)) {
    layers.push_back(head);
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    if (stopped_) return true;
    for (const int32_t layer : layers) {
      if (!complete_.contains(layer)) return false;
    }
    return true;
  });
  if (stopped_) return absl::AbortedError("the step was abandoned");
  for (const int32_t layer : layers) {
    device_.communication().Wait(device_.communication_stream(), *events_.at(layer));
  }
  return absl::OkStatus();
}

// Which member of the task's group adds up which of these elements of its layer, counted from the
// first of them.
Cuts GradientSync::ComputeCuts(const SyncTask& task, Range elements) const {
  const bool copy = !device_.role().HoldsLayer(task.layer);
  const HeldState& held = *device_.FindPlanned(task.layer, copy);
  Cuts cuts = {0};
  for (const int32_t replica : task.replicas) {
    int64_t end = elements.begin;
    if (replica >= 0) {
      end = device_.role().ownership.Summed(replica, held.elements, held.undivided).end;
    }
    cuts.push_back(std::max(cuts.back(), std::min(end, elements.end) - elements.begin));
  }
  return cuts;
}

absl::Status GradientSync::Sum(const SyncTask& task, const Tensor& gradient, int64_t begin) {
  if (task.group.empty() || gradient.size() == 0) return absl::OkStatus();
  Communicator& group = *communicators_.at(task.group);
  Backend& backend = device_.communication();
  Stream& stream = device_.communication_stream();
  summed_bytes_ += gradient.size() * GetElementSize(gradient.dtype);
  const Ownership& ownership = device_.role().ownership;
  if (!ownership.sharded()) return group.AllReduceSum(backend, stream, gradient);
  const Cuts cuts = ComputeCuts(task, {begin, begin + gradient.size()});
  ATOLL_RETURN_IF_ERROR(group.ReduceScatterSum(backend, stream, gradient, cuts));
  if (ownership.shards == ownership.replicas) return absl::OkStatus();
  return group.AllGather(backend, stream, gradient, cuts, [&](int from, int to) {
    const int32_t a = task.replicas[from], b = task.replicas[to];
    return a >= 0 && b >= 0 && ownership.GetShardIndex(a) == ownership.GetShardIndex(b);
  });
}

absl::Status GradientSync::Do(const SyncTask& task) {
  if (task.what == SyncTask::What::kTable) return AllReduceTable(task);
  const Tensor gradient = device_.FindPlanned(task.layer, false)->state.grads();
  if (task.what == SyncTask::What::kLayer) return Sum(task, gradient);
  const int64_t table = device_.model().layers()[0]->layout().params[0].size;
  return Sum(task, gradient.Columns(table, gradient.size() - table), table);
}

absl::Status GradientSync::AllReduceTable(const SyncTask& task) {
  Backend& backend = device_.communication();
  Stream& stream = device_.communication_stream();
  HeldState* embedding = device_.FindPlanned(0, false);
  HeldState* copy = device_.FindPlanned(0, true);
  const int64_t size = device_.model().layers()[0]->layout().params[0].size;
  const Tensor gradient =
      embedding != nullptr ? embedding->state.grads().Columns(0, size) : copy->state.grads();
  const bool both = embedding != nullptr && copy != nullptr;
  if (both) backend.Run(stream, AddScaled{gradient, copy->state.grads(), gradient, 1.0f});
  ATOLL_RETURN_IF_ERROR(Sum(task, gradient));
  if (both && !device_.role().ownership.sharded()) {
    backend.Run(stream, Convert{.from = gradient, .to = copy->state.grads()});
  }
  return absl::OkStatus();
}

// Seen early: should a collective of this step fail, the last one's parameters are still good.
absl::Status GradientSync::EndSpread(bool waits) {
  const std::lock_guard lock(spread_mutex_);
  if (!spreading_) return spread_status_;
  Backend& backend = device_.communication();
  if (!waits && !backend.Passed(*gathered_.front())) return absl::OkStatus();
  spread_status_ =
      waits ? backend.Synchronize(device_.communication_stream()) : backend.TakeFailure();
  spreading_ = false;
  return spread_status_;
}

// Sees the end of the gathers before the communicators end for another plan: whose failure would
// count against them. Ends with them, or with the step's interruption.
void GradientSync::NoticeSpread() {
  constexpr auto kLookInterval = std::chrono::milliseconds(1);
  const auto ends = [&] {
    const std::lock_guard lock(mutex_);
    return stopped_ || !interrupt_.status().ok();
  };
  while (!device_.communication().Passed(*gathered_.front())) {
    if (ends()) return;
    std::this_thread::sleep_for(kLookInterval);
  }
  if (ends()) return;
  const absl::Status status = EndSpread(/*waits=*/false);
  if (!status.ok()) interrupt_.Raise(status);
}

template <typename Function>
void GradientSync::ForEachHeld(const SyncTask& task, const Function& function) const {
  if (HeldState* held = device_.FindPlanned(task.layer, false)) function(*held);
  if (task.what != SyncTask::What::kTable) return;
  if (HeldState* copy = device_.FindPlanned(0, true)) function(*copy);
}

absl::Status GradientSync::AllGatherTask(const SyncTask& task) {
  Backend& backend = device_.communication();
  Stream& stream = device_.communication_stream();
  HeldState* held = device_.FindPlanned(task.layer, false);
  HeldState* copy = device_.FindPlanned(0, true);
  const bool of_table = task.what == SyncTask::What::kTable;
  const bool cut = task.what != SyncTask::What::kLayer;
  const int64_t table = cut ? device_.model().layers()[0]->layout().params[0].size : 0;
  Tensor params = held != nullptr ? held->state.params() : copy->state.params();
  Range elements{0, params.size()};
  if (of_table) elements.end = table;
  if (task.what == SyncTask::What::kRest) elements.begin = table;
  params = params.Columns(elements.begin, elements.size());
  if (params.size() == 0) return absl::OkStatus();
  const Ownership& ownership = device_.role().ownership;
  ATOLL_RETURN_IF_ERROR(
      communicators_.at(task.group)
          ->AllGather(backend, stream, params, ComputeCuts(task, elements), [&](int from, int to) {
            const int32_t a = task.replicas[from];
            const int32_t b = task.replicas[to];
            if (a < 0) return false;
            return b < 0 || ownership.GetShardIndex(a) != ownership.GetShardIndex(b);
          }));
  if (of_table && held != nullptr && copy != nullptr) {
    backend.Run(stream, Convert{.from = params, .to = copy->state.params()});
  }
  return absl::OkStatus();
}

// The first layers first, as F reads them.
absl::Status GradientSync::Spread(bool waits) {
  const std::vector<SyncTask>& tasks = device_.role().syncs;
  Backend& backend = device_.communication();
  Stream& stream = device_.communication_stream();
  if (stepped_ == nullptr) {
    ATOLL_ASSIGN_OR_RETURN(stepped_, device_.compute().NewEvent());
  }
  while (gathered_.size() < tasks.size()) {
    ATOLL_ASSIGN_OR_RETURN(std::unique_ptr<Event> made, backend.NewEvent());
    gathered_.push_back(std::move(made));
  }
  {
    const std::lock_guard lock(spread_mutex_);
    spreading_ = !tasks.empty();
    spread_status_ = absl::OkStatus();
  }
  device_.compute().Record(device_.stream(), *stepped_);
  backend.Wait(stream, *stepped_);
  for (size_t i = tasks.size(); i-- > 0;) {
    const Instant start = SteadyNow();
    ATOLL_RETURN_IF_ERROR(AllGatherTask(tasks[i]));
    backend.Record(stream, *gathered_[i]);
    ForEachHeld(tasks[i], [&](HeldState& held) { awaited_.insert(&held); });
    if (!waits) continue;
    ATOLL_RETURN_IF_ERROR(backend.Synchronize(stream));
    spread_spans_.push_back(
        {{.kind = PlanOpKind::kSync, .layer = tasks[i].layer}, start, SteadyNow()});
  }
  if (!tasks.empty() && device_.runs_behind_host()) thread_.Add([this] { NoticeSpread(); });
  return absl::OkStatus();
}

void GradientSync::AwaitSpread(HeldState& held) {
  if (awaited_.erase(&held) == 0) return;
  for (size_t i = 0; i < gathered_.size(); ++i) {
    ForEachHeld(device_.role().syncs[i], [&](HeldState& other) {
      if (&other == &held) device_.compute().Wait(device_.stream(), *gathered_[i]);
    });
  }
  held.state.ParamsWritten(device_.stream());
}

// A tied head reads the embedding's table, or its copy.
void GradientSync::AwaitSpread(int32_t layer) {
  if (awaited_.empty()) return;
  if (HeldState* held = device_.FindPlanned(layer, false)) AwaitSpread(*held);
  if (layer + 1 < static_cast<int32_t>(device_.model().layers().size())) return;
  for (const bool table_only : {false, true}) {
    if (HeldState* table = device_.FindPlanned(0, table_only)) AwaitSpread(*table);
  }
}

void GradientSync::AwaitSpread() {
  while (!awaited_.empty()) AwaitSpread(**awaited_.begin());
}

}  // namespace atl::worker

#include "coordinator/loop.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "common/crash_mark.h"
#include "common/logging.h"
#include "common/protocol/mark_file.h"
#include "common/service_manager.h"
#include "common/wall_clock.h"

namespace atl {
namespace {

constexpr size_t kMaxTasks = 32768;
// Limits of what is stored together.
constexpr int kMaxGathered = 256;
constexpr size_t kMaxPendingWrites = 1024;

template <class T>
void Append(std::vector<T>&& from, std::vector<T>& to) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

// Dates writes of what is known since now.
std::vector<StoreWrite> Dated(std::vector<StoreWrite> writes) {
  for (StoreWrite& write : writes) {
    if (auto* link = std::get_if<LinkRecord>(&write.record)) link->unix_time_ms = UnixTimeMs();
    if (auto* device = std::get_if<DeviceRecord>(&write.record))
      device->unix_time_ms = UnixTimeMs();
  }
  return writes;
}

// `own`: the store's; empty at the first start, which takes `proposed` or draws one.
absl::Status ChooseCluster(const ClusterId& wanted, const ClusterId& proposed, ClusterId& own) {
  if (!wanted.empty() && !IsClusterId(wanted)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", wanted, "\" is not the id of a cluster, 16 of 0-9 and a-f"));
  }
  if (!wanted.empty() && !own.empty() && wanted != own) {
    return absl::InvalidArgumentError(
        absl::StrCat("the stored state is of cluster ", own, ", not ", wanted));
  }
  if (!own.empty()) return absl::OkStatus();
  own = !wanted.empty() ? wanted : !proposed.empty() ? proposed : NewClusterId();
  return absl::OkStatus();
}

void LogEvents(const std::vector<StoreWrite>& writes) {
  for (const StoreWrite& write : writes) {
    const auto* event = std::get_if<EventRecord>(&write.record);
    if (event == nullptr || write.erase) continue;
    const LogLevel level = event->severity == Severity::kError     ? LogLevel::kError
                           : event->severity == Severity::kWarning ? LogLevel::kWarning
                           : event->severity == Severity::kInfo    ? LogLevel::kInfo
                                                                   : LogLevel::kDebug;
    Log(level, event->job.empty() ? "cluster" : event->job, event->text);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorLoop>> CoordinatorLoop::Open(std::unique_ptr<Store> store,
                                                                       const std::string& state_dir,
                                                                       const ClusterId& lost,
                                                                       const ClusterId& authority,
                                                                       CoordinatorOptions options) {
  const std::string where = store->name();
  ATOLL_ASSIGN_OR_RETURN(const std::vector<StoreRecord> records, store->ReadAll());
  EpochRecord own;
  for (const StoreRecord& record : records) {
    if (const auto* last = std::get_if<EpochRecord>(&record)) own = *last;
  }
  ++own.epoch;
  // An empty store of a cluster that exists: its own is lost.
  if (own.cluster.empty() && !lost.empty()) own = AfterLoss(own, UnixTimeMs());
  ATOLL_RETURN_IF_ERROR(Annotate(
      ChooseCluster(lost, own.cluster.empty() ? authority : "", own.cluster), "--cluster"));
  if (!authority.empty() && authority != own.cluster) {
    return absl::InvalidArgumentError(absl::StrCat(
        state_dir, "/trust is the authority of cluster ", authority, ", and the state is of ",
        own.cluster, ": move that folder away, and run `atoll init --cluster ", own.cluster, "`"));
  }
  ATOLL_ASSIGN_OR_RETURN(const JobId crashed, WatchCrashes(state_dir));
  ATOLL_RETURN_IF_ERROR(store->Apply({{own}}, UnixTimeMs()));
  // `atoll init` makes the authority of this cluster.
  ATOLL_RETURN_IF_ERROR(WriteClusterMark(RealFiles(), state_dir, {own.cluster, own.epoch}));
  auto loop = std::unique_ptr<CoordinatorLoop>(
      new CoordinatorLoop(std::move(store), std::move(options), own));
  ATOLL_RETURN_IF_ERROR(Annotate(loop->core_.Recover(SteadyNow(), records, crashed),
                                 absl::StrCat(where, ": is damaged")));
  ATOLL_ASSIGN_OR_RETURN(const auto otlp, ReadOtlpSettings(std::getenv, "atoll-coordinator"));
  loop->observations_ = std::make_unique<Observations>(state_dir, records, otlp);
  for (const MemberView& member : loop->core_.Members(SteadyNow())) {
    if (!IsServer(member)) loop->planner_.Remember(member);
  }
  for (const StoreRecord& record : records) {
    loop->planner_.Remember(SteadyNow(), UnixTimeMs(), record);
  }
  // One that finds the queue full changes nothing: the store takes no writes any more.
  loop->store_->WatchOwnership([raw = loop.get()](const absl::Status& lost_lead) {
    raw->Post([raw, lost_lead](Instant) {
      if (raw->failure_.ok()) raw->failure_ = lost_lead;
      raw->queue_.Stop();
    });
  });
  LogInfo("store", where, ": ", records.size(), " records, cluster ", own.cluster, ", epoch ",
          own.epoch);
  return loop;
}

CoordinatorLoop::CoordinatorLoop(std::unique_ptr<Store> store, CoordinatorOptions options,
                                 const EpochRecord& own)
    : queue_(kMaxTasks),
      store_(std::move(store)),
      core_(std::move(options), own.cluster, own.epoch),
      traces_(own.epoch),
      // One that finds the queue full is requested again by the core.
      planner_([this](CoordinatorEvent event) {
        PostEvent([this, event = std::move(event)](Instant now) { Step(now, event); });
      }) {}

absl::Status CoordinatorLoop::Record(const std::string& folder) {
  ATOLL_ASSIGN_OR_RETURN(recorder_, EventRecorder::Open(&RealFiles(), folder));
  return absl::OkStatus();
}

void CoordinatorLoop::SendToWorker(const NodeId& worker, Incarnation incarnation,
                                   ToWorkerMessage message) {
  send_to_worker({worker, incarnation, core_.epoch(), std::move(message), core_.cluster()});
}

Instant CoordinatorLoop::AdvancePlanner(Instant now) {
  for (;;) {
    if (!failure_.ok()) return kNever;
    IslandPlanner::Work work = planner_.Advance(now);
    if (!work.persist.empty()) failure_ = store_->Apply(Dated(work.persist), UnixTimeMs());
    if (!failure_.ok()) {
      queue_.Stop();
      return kNever;
    }
    for (const ProfileRegistry::Message& m : work.send) {
      SendToWorker(m.worker, m.incarnation, m.message);
    }
    // The core's reaction may request a plan. No event is repeated, so this ends.
    for (const CoordinatorEvent& event : work.events) Step(now, event);
    if (work.events.empty()) return work.deadline;
    Commit();
  }
}

Instant CoordinatorLoop::AdvanceTraces(Instant now) {
  if (!failure_.ok()) return kNever;
  const TraceRequestTable::Work work =
      traces_.Advance(now, [&](const JobId& job) { return core_.Job(now, job); });
  for (const TraceRequestTable::Message& m : work.send)
    SendToWorker(m.worker, m.incarnation, m.message);
  return work.deadline;
}

absl::Status CoordinatorLoop::Run() {
  RunService(&queue_, [this](Instant now, std::optional<Queued> task) {
    wake_ = Turn(now, std::move(task));
    return wake_;
  });
  Commit();
  traces_.Close("the coordinator is ending");
  return failure_;
}

Instant CoordinatorLoop::Turn(Instant now, std::optional<Queued> task) {
  const auto posted_at = task ? std::optional(task->posted_at) : std::nullopt;
  if (const auto late = lateness_.Measure(now, wake_, posted_at)) Step(now, Stalled{*late});
  if (task) {
    ++run_;
    ++gathered_;
    if (!task->gathers) Commit();
    task->run(now);
    if (task->gathers && MayGather()) return now;
  } else if (core_deadline_ <= now || core_deadline_ == kNever) {
    Step(now, Tick{});
  }
  Commit();
  const Instant wake = between_tasks ? between_tasks(now, changed_) : kNever;
  changed_ = false;
  const Instant planner = AdvancePlanner(now);  // may step the core
  return std::min({core_deadline_, wake, planner, AdvanceTraces(now), observations_->Advance(now)});
}

bool CoordinatorLoop::MayGather() const {
  return queued() > 0 && gathered_ < kMaxGathered && pending_.persist.size() < kMaxPendingWrites;
}

void CoordinatorLoop::Step(Instant now, const CoordinatorEvent& event) {
  if (!failure_.ok()) return;
  if (recorder_ != nullptr) recorder_->BeforeStep(now, event, core_);
  CoordinatorActions actions = core_.Step(now, event);
  if (recorder_ != nullptr) recorder_->AfterStep(actions);
  observations_->OnStep(now, UnixTimeMs(), event, actions.persist);
  core_deadline_ = actions.next_deadline;
  if (const auto* from = std::get_if<FromWorker>(&event)) {
    planner_.OnWorkerMessage(now, *from);
    traces_.OnMessage(*from);
  }
  for (const GroupWorkers& query : actions.groups) planner_.Want(now, query);
  for (const MakePlan& query : actions.plans) planner_.Want(now, query);
  Append(std::move(actions.persist), pending_.persist);
  Append(std::move(actions.to_workers), pending_.to_workers);
  Append(std::move(actions.to_servers), pending_.to_servers);
  Append(std::move(actions.replies), pending_.replies);
}

void CoordinatorLoop::Commit() {
  gathered_ = 0;
  const CoordinatorActions actions = std::exchange(pending_, {});
  if (!failure_.ok()) return;
  if (!actions.persist.empty()) failure_ = store_->Apply(actions.persist, UnixTimeMs());
  if (!failure_.ok()) {
    // The core is ahead of the durable state: nothing of it may be sent, and only a restart helps.
    queue_.Stop();
    return;
  }
  LogEvents(actions.persist);
  changed_ = changed_ || !actions.persist.empty();
  for (const ToWorker& message : actions.to_workers) send_to_worker(message);
  for (const ToServer& message : actions.to_servers) send_to_server(message);
  for (const Reply& reply : actions.replies) {
    if (on_reply_ && reply.request_id == last_request_) on_reply_(reply);
  }
}

void CoordinatorLoop::CommitFor(const NodeId& member) {
  const bool any = std::any_of(pending_.to_workers.begin(), pending_.to_workers.end(),
                               [&](const ToWorker& m) { return m.worker == member; }) ||
                   std::any_of(pending_.to_servers.begin(), pending_.to_servers.end(),
                               [&](const ToServer& m) { return m.server == member; });
  if (any) Commit();
}

void CoordinatorLoop::Request(Instant now, const std::function<CoordinatorEvent(int64_t)>& make,
                              const std::function<void(const Reply&)>& on_reply) {
  on_reply_ = on_reply;
  Step(now, make(++last_request_));
  Commit();
  on_reply_ = nullptr;
}

}  // namespace atl

#include "worker/island/member/member.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/event_loop.h"
#include "common/model/adapters/frozen_place.h"
#include "common/model/targets.h"
#include "common/net/security.h"
#include "worker/core/leases.h"

namespace atl::worker {
namespace {

// A thread.
class ThreadLane final : public WorkLane {
 public:
  void Add(std::function<void()> work) override {
    ATOLL_CHECK(queue_.Add(std::move(work)), "more work than is waited for");
  }
  void AwaitIdle() override { queue_.Await(); }

 private:
  WorkQueue queue_;
};

// Waiting for members to accept a plan is interrupted this often, to look for an interruption.
constexpr Duration kMeetSlice = std::chrono::milliseconds(200);

// How long a trace waits for messages that its step has received, but whose receipts are missing.
constexpr Duration kArrivalTimeout = std::chrono::seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<GroupMember>> GroupMember::Create(GroupOptions options) {
  std::unique_ptr<GroupMember> member(new GroupMember(std::move(options)));
  ATOLL_ASSIGN_OR_RETURN(member->link_, PeerLink::Create(member->options_.link, member.get()));
  member->calls_.Use(member->link_.get());
  member->transport_.Use(member->link_.get());
  return member;
}

GroupMember::GroupMember(GroupOptions options)
    : options_(std::move(options)),
      state_(options_.link.name),
      calls_(&state_,
             {options_.call_timeout, options_.link.queued_bytes_max, options_.on_transfer_due}),
      transport_(options_.link.name, options_.transport_bytes_max,
                 [this](const NodeId& to, const SharedLinkCall& call) {
                   calls_.Notify(to, {.body = call});
                 }),
      blocks_(options_.link.name, &link_),
      saved_(&state_, options_.saves_folder),
      layers_(&state_, &calls_, &saved_),
      saves_(&state_, &calls_, &layers_, &saved_, options_.saves_bytes_max),
      outer_exchange_(&state_, &calls_, &layers_, &saves_) {}

GroupMember::~GroupMember() {
  saves_.Cancel();
  Interrupt("the worker ends");
  read_ahead_.Forget();
  saves_.Stop();
  transfers_.Stop();
  outer_exchange_.Stop();
  if (device_side_ != nullptr) device_side_->Close();
  const std::shared_ptr<const GroupJob> job = state_.job();  // until its engine has ended
  state_.Close().reset();
  device_side_.reset();
  transport_.Stop();
  // link_ is destroyed next, and not here: its thread may be about to answer a call through the
  // pointer.
}

std::unique_ptr<WorkLane> GroupMember::NewLane() { return std::make_unique<ThreadLane>(); }

Instant GroupMember::Now() const { return SteadyNow(); }

void GroupMember::StopLeading() {
  SetHooks({});
  saves_.StopSaving();
}

// ------------------------------------------------------------------------------------- job ----

absl::StatusOr<JobFacts> GroupMember::Open(const JobSpec& spec, std::function<bool()> cancelled) {
  Close();
  if (options_.check_job) ATOLL_RETURN_IF_ERROR(options_.check_job(spec));
  DataOptions data = options_.data;
  data.watch.cancelled = std::move(cancelled);
  ATOLL_ASSIGN_OR_RETURN(GroupJob job, GroupJob::Open(spec, options_.compute, data));
  ATOLL_ASSIGN_OR_RETURN(std::vector<LocalDevice> devices, options_.make_devices());
  const auto opened = std::make_shared<const GroupJob>(std::move(job));
  island_job_ = {opened->spec, opened->facts.layers, opened->undivided};
  for (const LayerLayout& layout : opened->layouts) {
    island_job_.frozen_bytes += PlaceFrozen(layout, sizeof(float)).bytes;
  }
  saved_.SetRemote(spec.checkpoint.remote);
  device_side_ = DeviceSide::Of(name(), devices, &transport_, &transport_.log(),
                                options_.engine.message_timeout);
  state_.Open(opened, std::make_shared<Engine>(name(), std::move(devices), options_.engine));
  return opened->facts;
}

void GroupMember::Close() {
  Interrupt("the job is closed");
  read_ahead_.Forget();
  outer_exchange_.EndWork();
  const std::lock_guard work(state_.engine_mutex());
  read_ahead_.Forget();                                      // what a step under way expected since
  const std::shared_ptr<const GroupJob> job = state_.job();  // until its engine has ended
  std::shared_ptr<Engine> engine = state_.Close();
  outer_exchange_.Clear();
  layers_.ForgetStamps();
  saves_.Cancel();
  saves_.DropCopies();
  state_.log().Change([](ReplayLog& log) { log.Clear(); });
  if (device_side_ != nullptr) device_side_->Close();
  engine.reset();
  device_side_.reset();
  communicators_.reset();
}

const IslandJob* GroupMember::island_job() const {
  return state_.job() == nullptr ? nullptr : &island_job_;
}

IslandMember GroupMember::Self() const {
  return {name(), options_.link.incarnation, endpoint(), ""};
}

int64_t GroupMember::NowUs() const {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

// Between steps: who counts works no engine.
absl::StatusOr<int64_t> GroupMember::CountMasked(const std::vector<PositionRange>& ranges) {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, state_.OpenJob());
  ATOLL_ASSIGN_OR_RETURN(const int64_t masked, job->data.CountMasked(ranges));
  const int64_t rows = Sequences(ranges), length = job->data.sequence_length();
  return rows * length - CountTargets(job->engine.model, rows, length, masked);
}

std::vector<double> GroupMember::GetReferences(const ReferenceCall& call) const {
  const std::shared_ptr<const GroupJob> job = state_.job();
  const bool known = job != nullptr && job->CheckReferences(call).ok();
  return known ? job->GetReferences(call) : std::vector<double>();
}

int GroupMember::devices() const {
  const std::shared_ptr<Engine> engine = state_.engine();
  return engine == nullptr ? 0 : engine->devices();
}

// ------------------------------------------------------------------------------------ plan ----

absl::Status GroupMember::Join(const PeerFence& fence, const IslandPlan& plan) {
  if (fence.plan == 0) {
    Leave();
    state_.Join(fence, plan);
    return absl::OkStatus();
  }
  const std::lock_guard meeting(meeting_mutex_);
  state_.Join(fence, plan);
  return link_->SetPeers(fence, plan.members);
}

absl::Status GroupMember::Meet(const std::vector<NodeId>& workers,
                               const std::atomic<bool>& interrupted) {
  const Instant deadline = SteadyNow() + options_.meet_timeout;
  for (;;) {
    if (interrupted) return absl::AbortedError("interrupted");
    const Instant now = SteadyNow();
    const absl::Status met = link_->AwaitPeers(std::min(deadline, now + kMeetSlice), workers);
    if (met.ok() || !absl::IsDeadlineExceeded(met) || now >= deadline) return met;
  }
}

absl::Status GroupMember::MeetToMeasure(const PeerFence& fence,
                                        const std::vector<IslandMember>& members) {
  const std::lock_guard meeting(meeting_mutex_);
  const MemberState::PeerSession now = state_.peer_session();
  if (now.fence.plan > 0 && now.plan->number > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", name(), " works in an island of ", now.fence.job));
  }
  return link_->SetPeers(fence, members);
}

void GroupMember::Leave() {
  const PeerFence fence = state_.Leave();
  if (!fence.job.empty()) (void)link_->SetPeers(fence, {});  // no peers: cannot be refused
}

void GroupMember::BeginEpoch(int64_t epoch) {
  saves_.Cancel();
  outer_exchange_.EndWork();
  state_.BeginEpoch(epoch);
  interrupted_ = state_.UntilInterrupted();
  transport_.BeginEpoch(epoch);
}

absl::StatusOr<std::vector<NcclId>> GroupMember::NewNcclIds() {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<Engine> engine, state_.OpenEngine());
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, state_.OpenJob());
  const std::shared_ptr<const IslandPlan> plan = state_.plan();
  std::vector<NcclId> ids;
  // Configure says what is wrong with a plan.
  if (device_side_ == nullptr || !engine->Check(job->engine, *plan).ok()) return ids;
  for (const std::string& group : device_side_->ListOwnGroups(*plan, job->engine.model)) {
    ATOLL_ASSIGN_OR_RETURN(std::string id, options_.nccl_functions.new_id());
    ids.push_back({group, std::move(id)});
  }
  return ids;
}

absl::Status GroupMember::Configure(const std::vector<NcclId>& ids,
                                    const std::atomic<bool>* cancelled) {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<Engine> engine, state_.OpenEngine());
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, state_.OpenJob());
  CommunicatorsOptions options;
  options.worker = name();
  options.timeout = StepTimeout();
  const auto [fence, joined] = state_.peer_session();
  const IslandPlan& plan = *joined;
  options.scope = absl::StrCat(fence.job, "/", fence.generation, "/", fence.plan, "/", epoch());
  ATOLL_RETURN_IF_ERROR(outer_exchange_.Do(PutBackCall()));
  blocks_.BeginScope(options.scope + "/");
  options.peer_blocks = &blocks_;
  for (const IslandMember& member : plan.members) options.sites[member.worker] = member.site;
  if (device_side_ != nullptr) {
    device_side_->SelectByNccl(plan, &options.nccl);
    for (const NcclId& id : ids) options.nccl.ids[id.group] = id.id;
    options.nccl.given_up = [this, epoch = epoch(), interrupted = interrupted_] {
      return state_.IsInterrupted(epoch) || interrupted();
    };
    options.nccl.reaches_other_workers =
        options_.link.allow_plaintext_beyond_loopback || IsLoopback(endpoint());
    options.nccl.join = options_.nccl_functions.join;
  }
  auto communicators = std::make_unique<Communicators>(std::move(options));
  const std::lock_guard work(state_.engine_mutex());
  // The rest of an interrupted step must not meet the new plan's order of messages.
  if (device_side_ != nullptr) device_side_->Close();
  transport_.SetPlan(plan);
  Transport* transport = &transport_;
  if (device_side_ != nullptr) {
    transport = device_side_->transport();
    ATOLL_RETURN_IF_ERROR(device_side_->Prepare(plan, job->engine));
  }
  const absl::Status status =
      engine->Configure(job->engine, plan, transport, communicators.get(), cancelled);
  if (status.ok()) older_.reset();
  if (!status.ok() && older_ == nullptr) older_ = std::move(communicators_);
  communicators_ = std::move(communicators);
  return status;
}

Duration GroupMember::StepTimeout() const {
  return StepLimit(*state_.plan(), options_.call_timeout);
}

// ------------------------------------------------------------------------------------ work ----

void GroupMember::Begin(int64_t number) { last_number_ = std::max<int64_t>(last_number_, number); }

absl::Status GroupMember::ReadRanges(const std::vector<PositionRange>& ranges, int64_t first_row,
                                     std::span<int32_t> tokens, const ReadRange& read) {
  const int64_t row = state_.job()->row();
  int64_t before = 0;  // rows of earlier ranges
  for (const PositionRange& range : ranges) {
    const int64_t begin = std::max<int64_t>(first_row - before, 0);
    before += range.size();
    if (begin >= range.size() || tokens.empty()) continue;
    const int64_t rows =
        std::min<int64_t>(range.size() - begin, static_cast<int64_t>(tokens.size()) / row);
    const std::span<int32_t> here = tokens.first(static_cast<size_t>(rows * row));
    ATOLL_RETURN_IF_ERROR(read(range.begin + begin, here));
    tokens = tokens.subspan(static_cast<size_t>(rows * row));
    first_row += rows;
  }
  return tokens.empty() ? absl::OkStatus()
                        : absl::InvalidArgumentError("the step has fewer sequences than that");
}

absl::StatusOr<GroupReply> GroupMember::DoCall(const StepCall& step) {
  traced_number_ = -1;
  const std::vector<PositionRange>& ranges = step.ranges;
  const Cancelled cancelled = state_.UntilInterrupted();
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, state_.OpenJob());
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<Engine> engine, state_.OpenEngine());
  const auto reader = [job](int64_t first, std::span<int32_t> tokens, const Cancelled& given_up) {
    return job->data.ReadTrain(first, tokens, given_up);
  };
  const auto read = [&](int64_t first_row, std::span<int32_t> tokens) {
    return ReadRanges(ranges, first_row, tokens, [&](int64_t first, std::span<int32_t> here) {
      // Images are read ahead where they are decoded.
      return job->engine.model.is_images()
                 ? job->data.ReadTrain(first, here, cancelled)
                 : read_ahead_.Read(step.number, first, first + Sequences(ranges), here, reader,
                                    cancelled);
    });
  };
  Begin(step.number);
  const std::lock_guard work(state_.engine_mutex());
  ATOLL_ASSIGN_OR_RETURN(const int64_t masked, job->data.CountMasked(ranges, cancelled));
  state_.BeginStep();
  state_.log().Begin(step);
  if (step.trace) transport_.log().Record(step.number);
  ATOLL_ASSIGN_OR_RETURN(newest_step_, engine->Step({.number = step.number,
                                                     .sequences = Sequences(ranges),
                                                     .learning_rate = step.learning_rate,
                                                     .trace = step.trace,
                                                     .masked_tokens = masked,
                                                     .norm_limit = step.norm_limit,
                                                     .references = step.references},
                                                    read));
  newest_loss_ = newest_step_.loss;
  if (step.trace) traced_number_ = step.number;
  const auto loss = newest_step_.skipped ? std::nullopt : std::optional(newest_loss_.nats);
  state_.log().Taken(step.number, engine->optimizer_steps(), newest_step_.skipped, loss);
  state_.RecordOutcome(job->digest, &newest_step_);
  GroupReply reply;
  reply.stage_links = newest_step_.stage_links;
  reply.plan_wanted = newest_step_.plan_wanted;
  for (const DeviceMemory& memory : newest_step_.memory) {
    reply.memory.push_back(
        {memory.device, memory.predicted_bytes, memory.peak_bytes, memory.limit_bytes});
  }
  return reply;
}

CommitState GroupMember::Committed() {
  const std::shared_ptr<Engine> engine = state_.engine();
  if (!state_.HasStepped()) return {};
  const std::lock_guard work(state_.engine_mutex());
  return engine == nullptr ? CommitState() : engine->Committed();
}

absl::Status GroupMember::TakeStep(const StepSums& step) {
  if (!IsSameStep(Committed().waits, step)) return absl::OkStatus();
  const std::shared_ptr<Engine> engine = state_.engine();
  const std::lock_guard work(state_.engine_mutex());
  ATOLL_RETURN_IF_ERROR(engine->TakeStep(step));
  state_.log().Taken(step.number, engine->optimizer_steps(), engine->has_skipped(), std::nullopt);
  return absl::OkStatus();
}

double GroupMember::GetUtilisation() const { return state_.utilisation(SteadyNow()); }

std::array<int64_t, kPeerEndpointsMax> GroupMember::EdgeBytesSent() const {
  std::array<int64_t, kPeerEndpointsMax> sent = {};
  for (const PeerCounters& peer : link_->counters()) {
    for (size_t edge = 0; edge < sent.size(); ++edge) sent[edge] += peer.edge_bytes_sent[edge];
  }
  return sent;
}

std::vector<RoundTrip> GroupMember::RoundTrips() const {
  const MemberState::PeerSession now = state_.peer_session();
  if (now.fence.plan == 0) return {};
  const std::vector<IslandMember>& members = now.plan->members;
  std::vector<RoundTrip> trips;
  for (const PeerCounters& seen : link_->counters()) {
    const bool member = std::any_of(members.begin(), members.end(),
                                    [&](const IslandMember& m) { return m.worker == seen.peer; });
    if (!member || seen.round_trip == Duration(0) || link_->IsLost(seen.peer)) continue;
    trips.push_back({seen.peer, Seconds(seen.round_trip)});
  }
  return trips;
}

std::vector<LinkFailure> GroupMember::ListUnreachable() const {
  const MemberState::PeerSession now = state_.peer_session();
  if (now.fence.plan == 0 || now.plan->number == 0) return {};
  std::vector<LinkFailure> failures;
  for (const auto& [worker, trouble] : link_->Unconnected(options_.unreachable_after)) {
    failures.push_back(
        {worker, absl::StrCat("no connection within ", Seconds(options_.unreachable_after), " s (",
                              trouble, ")")});
  }
  return failures;
}

// An error would end the island's work; without it the trace lacks these devices.
absl::StatusOr<GroupReply> GroupMember::DoCall(const TraceCall& call) {
  GroupReply reply;
  if (call.number != traced_number_) return reply;
  SetTrace(TraceOfMember(newest_step_, transport_.log().Take(SteadyNow() + kArrivalTimeout)),
           &reply);
  return reply;
}

absl::StatusOr<GroupReply> GroupMember::DoCall(const ReferenceCall& call) {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, state_.OpenJob());
  ATOLL_RETURN_IF_ERROR(job->CheckReferences(call));
  const Cancelled cancelled = state_.UntilInterrupted();
  const auto read = [&](int64_t first_row, std::span<int32_t> tokens) {
    return ReadRanges(call.ranges, first_row, tokens, [&](int64_t first, std::span<int32_t> here) {
      return call.validation ? job->data.ReadValidation(first, here, cancelled)
                             : job->data.ReadTrain(first, here, cancelled);
    });
  };
  Begin(call.number);
  ATOLL_ASSIGN_OR_RETURN(const std::vector<double> found, state_.OnEngine([&](Engine& engine) {
    return engine.FindReferences({.number = call.number, .sequences = Sequences(call.ranges)},
                                 read);
  }));
  // A worker whose devices have no part in the plan finds none.
  if (!found.empty()) job->SetReferences(call, found);
  return GroupReply();
}

absl::StatusOr<GroupReply> GroupMember::DoCall(const EvaluateCall& call) {
  const int64_t first = call.first, count = call.count;
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, state_.OpenJob());
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<Engine> engine, state_.OpenEngine());
  ATOLL_RETURN_IF_ERROR(job->CheckEvaluated(first, count));
  const TaskRows* const task = job->FindTask(first);
  const Cancelled cancelled = state_.UntilInterrupted();
  const auto read = [&](int64_t first_row, std::span<int32_t> tokens) {
    return job->ReadEvaluated(first + first_row, tokens, cancelled);
  };
  Begin(call.number);
  const std::lock_guard work(state_.engine_mutex());
  ATOLL_ASSIGN_OR_RETURN(const int64_t masked, job->CountMaskedEvaluated(first, count, cancelled));
  ATOLL_ASSIGN_OR_RETURN(newest_loss_,
                         engine->Evaluate({.number = call.number,
                                           .sequences = count,
                                           .masked_tokens = masked,
                                           .counts_hits = task != nullptr && task->needs_hits(),
                                           .references = call.references},
                                          read));
  return GroupReply();
}

absl::StatusOr<TaskScore> GroupMember::ScoreTask(size_t task,
                                                 const EvaluatePosition& evaluate) const {
  const std::shared_ptr<const GroupJob> job = state_.job();
  if (job == nullptr || task >= job->tasks.size()) {
    return absl::InvalidArgumentError("the job has fewer tasks");
  }
  const int64_t begin = job->GetTaskBegin(task);
  return job->tasks[task].Score([&](int64_t row) { return evaluate(begin + row); });
}

void GroupMember::InterruptWork(const std::string& reason) {
  if (const std::shared_ptr<Engine> engine = state_.engine()) engine->Interrupt(reason);
}

void GroupMember::Interrupt(const std::string& reason) {
  const absl::Status why = absl::AbortedError(reason);
  state_.Interrupt();
  InterruptWork(reason);
  calls_.Fail(why);
}

}  // namespace atl::worker

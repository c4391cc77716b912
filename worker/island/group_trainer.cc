#include "worker/island/group_trainer.h"

#include <algorithm>
#include <set>

#include "common/check.h"
#include "common/event_loop.h"
#include "common/logging.h"
#include "common/model/targets.h"
#include "common/model/tensor_layout.h"
#include "worker/core/leases.h"

namespace atl::worker {

GroupTrainer::~GroupTrainer() {
  member_->SetHooks({});
  member_->StopSaving();
}

std::string GroupTrainer::Name() const { return member_->options().device_name; }

absl::StatusOr<JobFacts> GroupTrainer::Prepare(const JobSpec& spec) {
  if (await_free_ != nullptr) ATOLL_RETURN_IF_ERROR(await_free_());
  Release();
  ATOLL_ASSIGN_OR_RETURN(const JobFacts facts, member_->Open(spec, Cancelled()));
  if (spec.layout.island != IslandExtent::kWorker) return facts;
  const absl::Status alone = ConfigureAlone();
  if (alone.ok()) return facts;
  const bool may_fit = absl::IsResourceExhausted(alone) && PlanMayNeedLess(spec);
  Release();
  if (!may_fit) return alone;
  // Without the layers that it has taken: whoever measures the devices needs the room.
  ATOLL_RETURN_IF_ERROR(member_->Open(spec, Cancelled()).status());
  lacks_ = std::string(alone.message());
  return facts;
}

bool GroupTrainer::PlanMayNeedLess(const JobSpec& spec) const {
  const InnerSpec& inner = spec.inner;
  return spec.layout.recompute != Recompute::kNone || member_->devices() > 1 ||
         (inner.micro_batch_sequences == 0 && inner.batch_sequences > 1);
}

void GroupTrainer::Release() {
  if (await_free_ != nullptr) (void)await_free_();  // Close interrupts what is still there
  member_->Close();
  tracer_.Answer(absl::AbortedError("the worker has let the job go"));
  alone_ = true;
  plan_ = IslandPlan();
  holdings_.clear();
  boundaries_.clear();
  memory_.clear();
  pending_.clear();
  configured_ = failed_ = step_tried_ = false;
  broken_.clear();
  known_steps_.reset();
  lacks_.clear();
  steps_ = 0;
  staged_ = false;
  ForgetSaving();
  saves_.clear();
  bad_saves_.clear();
  replay_.reset();
  resume_save_ = 0;
  staged_ = base_is_in_ = false;
  shards_.clear();
  outer_held_.clear();
  outer_expected_ = OuterTag();
}

std::vector<NodeId> GroupTrainer::Followers() const {
  std::vector<NodeId> followers;
  for (const IslandMember& member : plan_.members) {
    if (member.worker != member_->name()) followers.push_back(member.worker);
  }
  return followers;
}

// A job's memory is taken when it is opened, and what does not fit is known then.
absl::Status GroupTrainer::ConfigureAlone() {
  plan_ = PlanOfOne();
  alone_ = true;
  fence_ = {};
  staged_ = false;
  member_->JoinAlone(fence_, plan_);
  outer_expected_ = OuterTag();
  ATOLL_RETURN_IF_ERROR(SetUp(&holdings_));
  std::string lost;
  ATOLL_RETURN_IF_ERROR(MoveOuter(&lost));
  member_->DropSurplus();
  member_->CommitOuterLayout();
  configured_ = true;
  failed_ = false;
  return absl::OkStatus();
}

// Everything on the first device, the job's micro-batch (or the whole batch) at once, and nothing
// recomputed.
IslandPlan GroupTrainer::PlanOfOne() const {
  const GroupJob& job = *member_->job();
  const InnerSpec& inner = job.spec.inner;
  const int64_t rows =
      inner.micro_batch_sequences > 0 ? inner.micro_batch_sequences : inner.batch_sequences;
  const std::string device = absl::StrCat(member_->name(), "/0");
  IslandPlan plan;
  plan.number = 1;
  plan.members = {{member_->name(), member_->options().link.incarnation, member_->endpoint(), ""}};
  PlanReplica replica;
  replica.micro_batch_sequences = rows;
  replica.micro_batches = static_cast<int32_t>((inner.batch_sequences + rows - 1) / rows);
  replica.stages = {{0, static_cast<int32_t>(job.layouts.size()), {device}, {}}};
  plan.replicas = {replica};
  std::vector<PlanOp> ops;
  for (int32_t m = 0; m < replica.micro_batches; ++m) {
    ops.push_back({PlanOpKind::kForward, 0, m});
    ops.push_back({PlanOpKind::kInputGradient, 0, m});
    ops.push_back({PlanOpKind::kWeightGradient, 0, m});
  }
  plan.programs = {CompleteProgram(plan, device, ops)};
  return plan;
}

// -------------------------------------------------------------------------- calls to others ----

absl::StatusOr<GroupTrainer::Calls> GroupTrainer::CallAll(const v1::GroupFrame& frame) {
  Calls calls;
  for (const NodeId& follower : Followers()) {
    const absl::StatusOr<CallId> call = member_->Call(follower, frame);
    if (!call.ok()) {
      Fail();
      InterruptAll();
      (void)AwaitAll(calls, kEndTimeout);  // the first trouble is what counts
      return call.status();
    }
    calls.emplace_back(follower, *call);
  }
  return calls;
}

absl::Status GroupTrainer::AwaitAll(const Calls& calls, Duration timeout) {
  absl::Status first;
  for (const auto& [follower, call] : calls) {
    const auto reply = member_->Await(call, timeout);
    if (reply.ok()) {
      Hear(follower, *reply);
      continue;
    }
    if (first.ok() || absl::IsAborted(first)) first = reply.status();
    timeout = std::min(timeout, kEndTimeout);
  }
  return first;
}

// Only steps' replies say something about boundaries, of members that send any.
void GroupTrainer::Hear(const NodeId& from, const v1::GroupReply& reply) {
  if (!reply.memory().empty()) {
    std::vector<DeviceMemoryState>& memory = memory_[from];
    memory.clear();
    for (const v1::DeviceMemory& device : reply.memory()) {
      if (WorkerOfDevice(device.device()) == from) memory.push_back(FromWire(device));
    }
  }
  if (reply.boundaries().empty()) return;
  BoundariesSeen& seen = boundaries_[from];
  seen.boundaries.clear();
  for (const v1::Boundary& boundary : reply.boundaries()) {
    seen.boundaries.push_back(FromWire(boundary));
  }
  seen.plan_wanted = reply.plan_wanted();
}

void GroupTrainer::SayBoundaries() {
  if (on_boundaries_ == nullptr || alone_) return;
  BoundariesSeen all;
  all.plan_number = plan_.number;
  for (const auto& [member, seen] : boundaries_) {
    all.boundaries.insert(all.boundaries.end(), seen.boundaries.begin(), seen.boundaries.end());
    if (all.plan_wanted.empty()) all.plan_wanted = seen.plan_wanted;
  }
  // The job's log hears of this once a minute at most; here all of it can be had.
  for (const BoundaryState& now : all.boundaries) {
    const bool told =
        now.reason.empty() ||
        std::any_of(
            said_.boundaries.begin(), said_.boundaries.end(), [&](const BoundaryState& before) {
              return before.from == now.from && before.to == now.to && before.reason == now.reason;
            });
    if (!told) LogDebug("adapter", now.from, " > ", now.to, ": ", now.reason);
  }
  on_boundaries_(all);
  said_ = std::move(all);
}

void GroupTrainer::SayMemory() {
  MemorySeen all;
  for (const auto& [member, devices] : memory_) {
    all.devices.insert(all.devices.end(), devices.begin(), devices.end());
  }
  if (on_memory_ == nullptr || all.devices == memory_said_.devices) return;
  memory_said_ = all;
  on_memory_(all);
}

absl::Status GroupTrainer::Ready() {
  if (configured_) return absl::OkStatus();
  return absl::FailedPreconditionError("the island is not set up");
}

void GroupTrainer::Fail() {
  if (failed_) return;
  failed_ = true;
  configured_ = false;
  InterruptAll();
}

void GroupTrainer::InterruptAll() {
  constexpr char kReason[] = "the island is set up again";
  member_->InterruptWork(kReason);
  v1::GroupFrame frame;
  frame.mutable_interrupt()->set_reason(kReason);
  for (const NodeId& follower : Followers()) member_->Tell(follower, frame);
}

absl::Status GroupTrainer::Settle() {
  const absl::Status status = AwaitAll(std::exchange(pending_, {}), member_->StepTimeout());
  if (!status.ok()) Fail();
  return status;
}

void GroupTrainer::Interrupt(const std::string& reason) {
  interrupted_ = true;
  member_->Interrupt(reason);
}

// ------------------------------------------------------------------------------------ work ----

// The step before must have succeeded everywhere, which is heard while this one goes on: no
// follower's answer is waited for at the end of a step.
template <typename Work>
auto GroupTrainer::Together(const v1::GroupFrame& frame, const Work& work) -> decltype(work()) {
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_ASSIGN_OR_RETURN(Calls calls, CallAll(frame));
  auto done = work();
  if (!done.ok()) Fail();
  const absl::Status before = Settle();
  if (done.ok() && before.ok()) {
    pending_ = std::move(calls);
    return done;
  }
  const absl::Status others = AwaitAll(calls, kEndTimeout);
  if (!before.ok()) return before;
  // Who was merely interrupted does not know the cause.
  return absl::IsAborted(done.status()) && !others.ok() && !absl::IsAborted(others) ? others
                                                                                    : done.status();
}

absl::StatusOr<MeanLoss> GroupTrainer::Step(const std::vector<PositionRange>& ranges,
                                            double learning_rate) {
  const bool trace = tracer_.wanted();
  const Instant begun = SteadyNow();
  v1::GroupFrame frame;
  frame.mutable_step()->set_number(++number_);
  frame.mutable_step()->set_learning_rate(learning_rate);
  frame.mutable_step()->set_trace(trace);
  ToWire(ranges, frame.mutable_step());
  known_steps_ = steps_;
  step_tried_ = true;
  absl::StatusOr<StepOutcome> made =
      Together(frame, [&] { return member_->Step(number_, ranges, learning_rate, trace); });
  if (!made.ok()) {
    tracer_.Answer(Annotate(made.status(), "the island gave up a step"));
    return made.status();
  }
  StepOutcome& outcome = *made;
  step_tried_ = false;
  known_steps_ = ++steps_;
  if (trace) tracer_.Answer(CollectTrace(begun, Sequences(ranges), outcome));
  boundaries_[member_->name()] = {0, std::move(outcome.boundaries), outcome.plan_wanted};
  SayBoundaries();
  std::vector<DeviceMemoryState>& memory = memory_[member_->name()];
  memory.clear();
  for (const DeviceMemory& m : outcome.memory) {
    memory.push_back({m.device, m.predicted_bytes, m.peak_bytes, m.limit_bytes});
  }
  SayMemory();
  return MeanLoss{outcome.loss.mean(), outcome.loss.tokens};
}

absl::Status GroupTrainer::StepAgain(const LoggedStep& step) {
  v1::GroupFrame frame;
  frame.mutable_step()->set_number(++number_);
  frame.mutable_step()->set_learning_rate(step.learning_rate);
  ToWire(step.ranges, frame.mutable_step());
  return Together(frame,
                  [&] {
                    return member_->Step(number_, step.ranges, step.learning_rate, /*trace=*/false);
                  })
      .status();
}

absl::StatusOr<int64_t> GroupTrainer::CountMasked(const std::vector<PositionRange>& ranges) {
  const GroupJob& job = *member_->job();
  ATOLL_ASSIGN_OR_RETURN(const int64_t masked, job.data.CountMasked(ranges));
  const int64_t rows = Sequences(ranges), length = job.data.sequence_length();
  return rows * length - CountTargets(job.engine.model, rows, length, masked);
}

absl::StatusOr<MeanLoss> GroupTrainer::Validate(int64_t sequences, int set) {
  const GroupJob& job = *member_->job();
  const PositionRange places = job.data.ValidationPlaces(set, sequences);
  const int64_t batch = job.spec.inner.batch_sequences;
  LossSum sum;
  for (int64_t first = places.begin; first < places.end; first += batch) {
    const int64_t count = std::min(batch, places.end - first);
    v1::GroupFrame frame;
    frame.mutable_evaluate()->set_number(++number_);
    frame.mutable_evaluate()->set_first(first);
    frame.mutable_evaluate()->set_count(count);
    ATOLL_ASSIGN_OR_RETURN(const LossSum loss, Together(frame, [&] {
                             return member_->Evaluate(number_, first, count);
                           }));
    sum.nats += loss.nats;
    sum.tokens += loss.tokens;
    sum.hits += loss.hits;
  }
  return MeanLoss{sum.mean(), sum.tokens, sum.accuracy()};
}

}  // namespace atl::worker

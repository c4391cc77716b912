#include "worker/group/group_trainer.h"

#include <algorithm>
#include <set>

#include "common/check.h"
#include "common/event_loop.h"
#include "worker/core/leases.h"
#include "worker/model/tensor_layout.h"
#include "worker/model/weights.h"

namespace atl::worker {
namespace {

// How long followers have to say what became of a step that has failed here.
constexpr Duration kEndTimeout = std::chrono::seconds(5);
// Waiting for members to accept a plan is interrupted this often, to look for an interruption.
constexpr Duration kMeetSlice = std::chrono::milliseconds(200);

}  // namespace

GroupTrainer::~GroupTrainer() { member_->SetHooks({}); }

std::string GroupTrainer::Name() const { return member_->options().device_name; }

absl::StatusOr<JobFacts> GroupTrainer::Prepare(const JobSpec& spec) {
  if (await_free_ != nullptr) ATOLL_RETURN_IF_ERROR(await_free_());
  Release();
  ATOLL_ASSIGN_OR_RETURN(const JobFacts facts, member_->Open(spec));
  if (spec.layout.island != IslandExtent::kWorker) return facts;
  if (const absl::Status status = ConfigureAlone(); !status.ok()) {
    Release();
    return status;
  }
  return facts;
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
  unwritten_.clear();
  pending_.clear();
  configured_ = failed_ = moments_broken_ = step_tried_ = false;
  known_steps_.reset();
  steps_ = 0;
}

std::vector<NodeId> GroupTrainer::Followers() const {
  std::vector<NodeId> followers;
  for (const IslandMember& member : plan_.members) {
    if (member.worker != member_->name()) followers.push_back(member.worker);
  }
  return followers;
}

absl::Status GroupTrainer::ConfigureAlone() {
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
  plan_ = plan;
  alone_ = true;
  fence_ = {};
  member_->JoinAlone(plan);
  ATOLL_RETURN_IF_ERROR(SetUp(&holdings_));
  member_->DropSurplus();
  configured_ = true;
  failed_ = false;
  return absl::OkStatus();
}

// ------------------------------------------------------------------------------------ plan ----

absl::StatusOr<PlanTaken> GroupTrainer::Configure(const JobId& job, Generation generation,
                                                  const IslandPlan& plan, const NodeId& before,
                                                  Inheritance* inheritance) {
  if (member_->job() == nullptr) return absl::FailedPreconditionError("no job is open");
  if (await_free_ != nullptr) ATOLL_RETURN_IF_ERROR(await_free_());
  member_->DropKept();
  // The others may be at the end of the newest step. Whoever left them now would take away what
  // they still wait for.
  if (configured_ && !alone_) (void)Settle();
  Fail();
  if (on_settled_ != nullptr) on_settled_({generation, plan.number});
  if (plan.number == 0) {
    // What another plan left here does not count: who gives up a plan pulls.
    ATOLL_RETURN_IF_ERROR(ConfigureAlone());
    return PlanTaken{false, false, "the island has no plan any more"};
  }
  const PeerFence fence{job, generation, plan.number};
  if (fence != fence_) epoch_ = 0;
  if (fence.job != fence_.job || fence.generation != fence_.generation) {
    // Somebody else may have led meanwhile.
    known_steps_.reset();
    step_tried_ = false;
  }
  fence_ = fence;
  plan_ = plan;
  alone_ = false;
  boundaries_.clear();
  memory_.clear();
  member_->SetHooks({.call_failed = [this](const NodeId&, const std::string& error) {
    member_->InterruptWork(error);
  }});
  ATOLL_RETURN_IF_ERROR(member_->Join(fence, plan));
  Holdings holdings;
  ATOLL_RETURN_IF_ERROR(SetUp(&holdings));
  if (!before.empty()) ATOLL_RETURN_IF_ERROR(Inherit(before, inheritance));
  return MoveState(holdings);
}

void GroupTrainer::Keep(Inheritance kept) {
  if (configured_ && !alone_) (void)Settle();  // what it says of the newest step is in step_tried_
  tracer_.Answer(absl::AbortedError("another worker leads the island now"));
  GroupMember::Kept all;
  ToWire(kept.leadership, all.known.mutable_leadership());
  all.known.set_base_set(kept.base_set);
  all.known.set_captured(kept.captured);
  all.known.set_known_steps(known_steps_.value_or(-1));
  all.known.set_step_tried(step_tried_);
  all.known.set_state_broken(moments_broken_ || !unwritten_.empty());
  all.known.set_encoded(kept.captured && IsQuantized(kept.delta->encoding));
  if (kept.base_set) all.base = std::move(kept.base);
  if (kept.base_set) all.residual = std::move(kept.residual);
  if (kept.captured) all.delta = std::move(kept.delta);
  member_->Keep(std::move(all));
}

absl::Status GroupTrainer::Inherit(const NodeId& before, Inheritance* inheritance) {
  v1::GroupFrame frame;
  frame.mutable_take_over();
  ATOLL_ASSIGN_OR_RETURN(const CallId call, member_->Call(before, frame));
  ATOLL_ASSIGN_OR_RETURN(const v1::GroupReply reply,
                         member_->Await(call, member_->options().call_timeout));
  if (!reply.has_inheritance()) {
    return absl::InternalError(absl::StrCat(before, " does not say what it knows"));
  }
  const v1::Inheritance& known = reply.inheritance();
  inheritance->leadership = FromWire(known.leadership());
  inheritance->base_set = known.base_set();
  inheritance->captured = known.captured();
  const auto layers = static_cast<int32_t>(member_->job()->layouts.size());
  for (int32_t layer = 0; layer < layers; ++layer) {
    ShardParts parts;
    if (known.base_set()) parts.base = (*inheritance->base)[static_cast<size_t>(layer)];
    if (known.captured()) parts.delta = inheritance->delta->values[static_cast<size_t>(layer)];
    if (known.base_set() && inheritance->residual != nullptr) {
      parts.residual = (*inheritance->residual)[static_cast<size_t>(layer)];
    }
    if (WantedOf(parts) == 0) break;
    ATOLL_RETURN_IF_ERROR(member_->GetShard(before, LayerShard{layer, 0, {1}}, parts));
  }
  if (known.encoded()) {
    std::vector<float> packed = Packed(*inheritance->delta);  // for its size
    ATOLL_RETURN_IF_ERROR(member_->GetShard(before, LayerShard{0, 0, {1}}, {.encoded = packed}));
    ATOLL_RETURN_IF_ERROR(Unpack(packed, inheritance->delta.get()));
  } else {
    inheritance->delta->encoding = Encoding::kFloat32;
  }
  known_steps_.reset();
  if (known.known_steps() >= 0) known_steps_ = known.known_steps();
  step_tried_ = known.step_tried();
  moments_broken_ = known.state_broken();
  return absl::OkStatus();
}

// All members' devices under the plan; what each holds then.
absl::Status GroupTrainer::SetUp(Holdings* holdings) {
  const std::vector<NodeId> followers = Followers();
  const Instant deadline = SteadyNow() + member_->options().meet_timeout;
  while (!followers.empty()) {
    if (interrupted_) return absl::AbortedError("interrupted");
    const Instant now = SteadyNow();
    const absl::Status met =
        member_->link().AwaitPeers(std::min(deadline, now + kMeetSlice), followers);
    if (met.ok()) break;
    if (!absl::IsDeadlineExceeded(met) || now >= deadline) return met;
  }
  v1::GroupFrame frame;
  frame.mutable_configure();
  member_->BeginEpoch(++epoch_);
  ATOLL_ASSIGN_OR_RETURN(const Calls calls, CallAll(frame));
  const absl::Status own = member_->Configure(&interrupted_);
  if (!own.ok()) InterruptAll();  // the others must not wait for us
  number_ = std::max(number_, member_->last_number());
  (*holdings)[member_->name()] = member_->Held();
  absl::Status status = own;
  for (const auto& [follower, call] : calls) {
    const auto reply = member_->Await(call, member_->StepTimeout());
    if (!reply.ok()) {
      if (status.ok()) InterruptAll();
      if (status.ok() || absl::IsAborted(status)) status = reply.status();
      continue;
    }
    number_ = std::max<int64_t>(number_, reply->last_number());
    for (const v1::HeldShard& held : reply->held()) {
      (*holdings)[follower].push_back(FromWire(held));
    }
  }
  return status;
}

absl::StatusOr<PlanTaken> GroupTrainer::MoveState(const Holdings& holdings) {
  std::vector<int64_t> steps;
  if (known_steps_) {
    if (step_tried_) steps.push_back(*known_steps_ + 1);
    steps.push_back(*known_steps_);
  }
  LayerMoves moves = PlanMoves(holdings, steps);
  if (moments_broken_ && moves.kept) {
    moves = LayerMoves();
    moves.reason = "the optimizer's moments were being written";
  }
  Calls calls;
  int64_t bytes = 0;  // that move to all
  for (const NodeId& follower : Followers()) {
    v1::GroupFrame frame;
    frame.mutable_fetch()->set_optimizer_step(moves.optimizer_step);
    for (const ShardMove& move : moves.moves[follower]) {
      v1::FetchCall::Item* item = frame.mutable_fetch()->add_items();
      ToWire(move.shard, item->mutable_shard());
      for (const ShardSource& source : move.sources) {
        v1::FetchCall::Source* from = item->add_sources();
        ToWire(source.shard, from->mutable_shard());
        from->set_from(source.from);
        ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, member_->job()->LayoutOf(source.shard));
        bytes += BytesOf(layout.size, kAllParts);
      }
    }
    ATOLL_ASSIGN_OR_RETURN(const CallId call, member_->Call(follower, std::move(frame)));
    calls.emplace_back(follower, call);
  }
  absl::Status status = member_->Fetch(moves.moves[member_->name()], moves.optimizer_step);
  // Each member gives up by itself when nothing comes any more.
  const absl::Status others = AwaitAll(calls, member_->options().move_timeout + MoveLimit(bytes));
  ATOLL_RETURN_IF_ERROR(status.ok() || absl::IsAborted(status) ? others : status);
  ATOLL_RETURN_IF_ERROR(status);

  PlanTaken taken;
  taken.kept = moves.kept;
  taken.step_taken = moves.kept && step_tried_ && moves.optimizer_step == *known_steps_ + 1;
  taken.reason = moves.reason;
  steps_ = moves.optimizer_step;
  known_steps_ = steps_;
  step_tried_ = moments_broken_ = false;
  v1::GroupFrame drop;
  drop.mutable_drop_surplus();
  ATOLL_ASSIGN_OR_RETURN(const Calls drops, CallAll(drop));
  member_->DropSurplus();
  ATOLL_RETURN_IF_ERROR(AwaitAll(drops, member_->options().call_timeout));
  holdings_ = holdings;
  for (auto& [worker, held] : holdings_) {
    std::erase_if(held, [](const HeldLayer& layer) { return layer.surplus; });
  }
  configured_ = true;
  failed_ = false;
  if (!moves.kept) unwritten_.clear();
  ATOLL_RETURN_IF_ERROR(WriteUnwritten());
  return taken;
}

absl::Status GroupTrainer::WriteUnwritten() {
  while (!unwritten_.empty()) {
    const auto it = unwritten_.begin();
    ATOLL_RETURN_IF_ERROR(SetParts(it->first, {it->second, {}, {}}));
    unwritten_.erase(it);
  }
  return absl::OkStatus();
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
  on_boundaries_(all);
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
  if (failed_ || !alone_ || member_->job() == nullptr) {
    return absl::FailedPreconditionError("the island is not set up");
  }
  return ConfigureAlone();
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

absl::StatusOr<MeanLoss> GroupTrainer::Validate(int64_t sequences) {
  const GroupJob& job = *member_->job();
  const int64_t total = std::min(sequences, job.data.validation_sequences());
  const int64_t batch = job.spec.inner.batch_sequences;
  LossSum sum;
  for (int64_t first = 0; first < total; first += batch) {
    const int64_t count = std::min(batch, total - first);
    v1::GroupFrame frame;
    frame.mutable_evaluate()->set_number(++number_);
    frame.mutable_evaluate()->set_first(first);
    frame.mutable_evaluate()->set_count(count);
    ATOLL_ASSIGN_OR_RETURN(const LossSum loss, Together(frame, [&] {
                             return member_->Evaluate(number_, first, count);
                           }));
    sum.nats += loss.nats;
    sum.tokens += loss.tokens;
  }
  return MeanLoss{sum.mean(), sum.tokens};
}

absl::Status GroupTrainer::InitialWeights() {
  const GroupJob& job = *member_->job();
  const ModelSpec& spec = job.spec.model;
  if (spec.initial_weights_path.empty()) {
    std::vector<float> values;
    for (size_t l = 0; l < job.layouts.size(); ++l) {
      values.resize(static_cast<size_t>(job.layouts[l].size));
      InitLayer(job.layouts[l], job.engine.model.layers, spec.seed, values);
      ATOLL_RETURN_IF_ERROR(SetParameters(static_cast<int>(l), values));
    }
    return absl::OkStatus();
  }
  std::vector<std::vector<float>> values;
  std::vector<std::span<float>> spans;
  for (const LayerLayout& layout : job.layouts) values.emplace_back(layout.size);
  for (std::vector<float>& layer : values) spans.emplace_back(layer);
  ATOLL_RETURN_IF_ERROR(Annotate(ReadWeights(spec.initial_weights_path, job.layouts, spans),
                                 "model.initial_weights_path"));
  for (size_t l = 0; l < values.size(); ++l) {
    ATOLL_RETURN_IF_ERROR(SetParameters(static_cast<int>(l), values[l]));
  }
  return absl::OkStatus();
}

}  // namespace atl::worker

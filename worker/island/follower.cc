#include "worker/island/follower.h"

#include <utility>

#include "common/check.h"
#include "worker/island/save_wire.h"

namespace atl::worker {
namespace {

std::vector<ShardMove> MovesOf(const v1::FetchCall& fetch) {
  std::vector<ShardMove> moves;
  for (const v1::FetchCall::Item& item : fetch.items()) {
    ShardMove& move = moves.emplace_back();
    move.shard = FromWire(item.shard());
    for (const v1::FetchCall::Source& source : item.sources()) {
      move.sources.push_back({FromWire(source.shard()),
                              source.from(),
                              source.parts(),
                              {source.begin(), source.end()},
                              source.save()});
    }
  }
  return moves;
}

}  // namespace

Follower::Follower(GroupMember* member, OnState on_state)
    : member_(member), on_state_(std::move(on_state)), thread_([this] { Run(); }) {}

Follower::~Follower() {
  Unfollow("the worker ends");
  Add(End{true});
  thread_.join();
}

void Follower::Follow(const PeerFence& fence, const IslandPlan& plan, bool at_boundary) {
  int64_t order;
  {
    const std::lock_guard lock(mutex_);
    order = ++orders_;
    if (!at_boundary) {
      std::erase_if(tasks_, [](const Task& task) { return !std::holds_alternative<End>(task); });
      oldest_ = order;
    }
    tasks_.push_back(Order{fence, plan});
    following_ = true;
    changed_.notify_all();
  }
  GroupMember::Hooks hooks;
  hooks.serve = [this, order](const NodeId& from, v1::GroupFrame frame) {
    // What is under way belongs to an attempt that the leader has given up.
    const bool begins = frame.has_settle() && !frame.settle().has_take();
    if (begins || frame.has_configure()) member_->Interrupt("the island is set up again");
    Add(Called{from, std::move(frame), order});
  };
  hooks.peer_lost = [this](const NodeId&, const std::string&) { Add(Meet{}); };
  member_->SetHooks(std::move(hooks));
  if (!at_boundary) member_->Interrupt(absl::StrCat("plan ", plan.number, " is there"));
}

void Follower::Unfollow(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(following_, false)) return;
    oldest_ = ++orders_;
    tasks_.clear();
    tasks_.push_back(End{});
    changed_.notify_all();
  }
  member_->SetHooks({});
  member_->Interrupt(reason);
}

absl::Status Follower::AwaitFree(Duration timeout) {
  std::unique_lock lock(mutex_);
  const bool free =
      changed_.wait_for(lock, timeout, [this] { return following_ || (idle_ && tasks_.empty()); });
  if (free) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "its devices still work for a leader that it has left, after ", Seconds(timeout), " s"));
}

void Follower::Add(Task task) {
  const std::lock_guard lock(mutex_);
  // A leader waits for its calls: only one that breaks the rules gets here.
  if (tasks_.size() >= kTasksMax) return;
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

void Follower::Run() {
  for (;;) {
    std::unique_lock lock(mutex_);
    idle_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !tasks_.empty(); });
    idle_ = false;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    if (Order* order = std::get_if<Order>(&task)) Do(*order);
    if (Called* called = std::get_if<Called>(&task)) Do(*called);
    if (Meet* meet = std::get_if<Meet>(&task)) Do(*meet);
    if (const End* end = std::get_if<End>(&task)) {
      if (end->stop) return;
      member_->Leave();
      order_ = Order();
      plan_number_ = 0;
    }
  }
}

void Follower::Do(Order& order) {
  order_ = std::move(order);
  plan_number_ = 0;
  const absl::Status joined = member_->Join(order_.fence, order_.plan);
  const NodeId& leader = order_.plan.members.front().worker;
  Say(joined.ok() ? absl::StrCat("waiting for ", leader, " to set up plan ", order_.plan.number)
                  : absl::StrCat("cannot join plan ", order_.plan.number, ": ", joined.message()));
}

// Only what is lost is met again; see PeerLink::SetPeers.
void Follower::Do(Meet&) {
  if (!order_.plan.members.empty()) (void)member_->Join(order_.fence, order_.plan);
}

void Follower::Do(Called& called) {
  bool replaced;  // the order that it came under
  {
    const std::lock_guard lock(mutex_);
    replaced = called.order < oldest_;
  }
  if (replaced) {  // a leader that is not told would wait for as long as a step may take
    v1::GroupReply reply;
    ToWire(absl::AbortedError("its order has been replaced"), &reply);
    member_->Reply(called.from, called.frame.call(), std::move(reply));
    return;
  }
  if (called.frame.epoch() < member_->epoch()) return;  // its caller has given it up
  member_->Reply(called.from, called.frame.call(), Serve(called.from, called.frame));
}

v1::GroupReply Follower::Serve(const NodeId& from, const v1::GroupFrame& frame) {
  v1::GroupReply reply;
  absl::Status status;
  if (order_.plan.members.empty() || from != order_.plan.members.front().worker) {
    status = absl::PermissionDeniedError(absl::StrCat(from, " does not lead this island"));
  } else if (frame.has_settle()) {
    member_->BeginEpoch(frame.epoch());
    if (frame.settle().has_take()) status = member_->TakeStep(FromWire(frame.settle().take()));
    const CommitState state = member_->Committed();
    ToWire(state.taken, reply.mutable_taken());
    ToWire(state.waits, reply.mutable_waits());
  } else if (frame.has_configure()) {
    member_->BeginEpoch(frame.epoch());
    Say(absl::StrCat("setting up plan ", order_.plan.number));
    status = member_->Configure();
    for (const HeldLayer& held : member_->Held()) ToWire(held, reply.add_held());
    for (const HeldSave& save : member_->Saves()) ToWire(save, reply.add_saves());
    ToWire(member_->OuterHeld(), reply.mutable_outer());
    reply.set_last_number(member_->last_number());
    plan_number_ = status.ok() ? order_.plan.number : 0;
    Say(status.ok()
            ? absl::StrCat("following ", from, " in plan ", order_.plan.number)
            : absl::StrCat("cannot set up plan ", order_.plan.number, ": ", status.message()));
  } else if (frame.epoch() != member_->epoch()) {
    status = absl::FailedPreconditionError("the plan is not set up");
  } else {
    status = Work(from, frame, &reply);
  }
  ToWire(status, &reply);
  return reply;
}

absl::Status Follower::Step(const v1::StepCall& step, v1::GroupReply* reply) {
  ATOLL_ASSIGN_OR_RETURN(StepOutcome outcome, member_->Step(step.number(), RangesOf(step),
                                                            step.learning_rate(), step.trace()));
  for (const BoundaryState& boundary : outcome.boundaries) {
    ToWire(boundary, reply->add_boundaries());
  }
  reply->set_plan_wanted(outcome.plan_wanted);
  for (const DeviceMemory& memory : outcome.memory) ToWire(memory, reply->add_memory());
  if (!step.trace()) return absl::OkStatus();
  traced_number_ = step.number();
  traced_ = std::move(outcome);
  return absl::OkStatus();
}

absl::Status Follower::Work(const NodeId& from, const v1::GroupFrame& frame,
                            v1::GroupReply* reply) {
  switch (frame.body_case()) {
    case v1::GroupFrame::kFetch:
      return member_->Fetch(MovesOf(frame.fetch()), frame.fetch().optimizer_step(),
                            frame.fetch().save());
    case v1::GroupFrame::kDropSurplus:
      member_->DropSurplus();
      member_->CommitOuterLayout();
      return absl::OkStatus();
    case v1::GroupFrame::kStep:
      return Step(frame.step(), reply);
    case v1::GroupFrame::kTrace:
      // An error would end the island's work; whoever asks misses the devices.
      if (frame.trace().number() == traced_number_) ToWire(member_->TraceOf(traced_), reply);
      return absl::OkStatus();
    case v1::GroupFrame::kTakeOver: {
      const auto kept = member_->kept();
      if (!kept || kept->leadership().generation() != order_.fence.generation) {
        return absl::NotFoundError("it has not led this island in this generation");
      }
      *reply->mutable_inheritance() = *kept;
      return absl::OkStatus();
    }
    case v1::GroupFrame::kEvaluate:
      return member_
          ->Evaluate(frame.evaluate().number(), frame.evaluate().first(), frame.evaluate().count())
          .status();
    case v1::GroupFrame::kOuter:
      return WorkOnOuter(frame.outer());
    case v1::GroupFrame::kSnapshot: {
      ATOLL_ASSIGN_OR_RETURN(const bool taken, member_->TakeSnapshot(frame.snapshot().moments()));
      reply->set_copies_taken(taken);
      return absl::OkStatus();
    }
    case v1::GroupFrame::kAddition: {
      if (frame.addition().add()) return member_->Add();
      ATOLL_ASSIGN_OR_RETURN(const bool taken, member_->PrepareAddition());
      reply->set_copies_taken(taken);
      return absl::OkStatus();
    }
    case v1::GroupFrame::kSave: {
      KeeperTask task = KeeperTaskOf(frame.save());
      const Tier tier = task.tier;
      return member_->Save(std::move(task), [member = member_, from, tier](
                                                int64_t save, const absl::Status& status) {
        v1::GroupFrame done;
        *done.mutable_save_done() = SaveDoneOf(save, tier, status);
        member->Tell(from, std::move(done));
      });
    }
    case v1::GroupFrame::kSetSteps:
      return member_->SetOptimizerSteps(frame.set_steps().optimizer_steps());
    default:
      return absl::InvalidArgumentError("not a call");
  }
}

absl::Status Follower::WorkOnOuter(const v1::OuterCall& call) {
  if (call.what() == v1::OuterCall::LAYOUT) return member_->SetOuterLayout(OrderFrom(call));
  const std::shared_ptr<OuterState> outer = member_->outer();
  if (outer == nullptr) return absl::FailedPreconditionError("the plan is not set up");
  switch (call.what()) {
    case v1::OuterCall::CAPTURE:
      return member_->ReadForDelta(/*of_snapshot=*/false);
    case v1::OuterCall::APPLY:
      return member_->ApplyOuter(static_cast<OuterKind>(call.kind()),
                                 static_cast<OuterTarget>(call.target()));
    case v1::OuterCall::FINISH:
      return member_->FinishOuter(call.tag().base(), call.keep_residual());
    case v1::OuterCall::PUT_BASE_IN:
      return member_->PutBaseIn();
    case v1::OuterCall::PUT_BACK:
      return member_->PutBack();
    case v1::OuterCall::INITIAL:
      return member_->MakeInitialWeights();
    case v1::OuterCall::TABLES:
      return member_->FetchTables();
    default:
      return absl::InvalidArgumentError("not a call");
  }
}

void Follower::Say(const std::string& doing) {
  if (doing == doing_) return;
  doing_ = doing;
  on_state_(plan_number_, doing_);
}

}  // namespace atl::worker

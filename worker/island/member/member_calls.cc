// GroupMember: what a call requests of a member, of the leader's own part or of a follower.

#include <utility>

#include "worker/island/member/member.h"
#include "worker/island/messages/save_wire.h"

namespace atl::worker {
namespace {

std::vector<ShardTransfer> ParseFetchCall(const v1::FetchCall& fetch) {
  std::vector<ShardTransfer> transfers;
  for (const v1::FetchCall::Item& item : fetch.items()) {
    ShardTransfer& move = transfers.emplace_back();
    move.shard = FromWire(item.shard());
    for (const v1::FetchCall::Source& source : item.sources()) {
      move.sources.push_back({FromWire(source.shard()),
                              source.from(),
                              source.parts(),
                              {source.begin(), source.end()},
                              source.save()});
    }
  }
  return transfers;
}

StampTable::Stamps StampsFromWire(const v1::GroupFrame& frame) {
  StampTable::Stamps stamps;
  if (frame.has_parameters_since()) stamps.parameters = FromWire(frame.parameters_since());
  if (frame.has_moments_since()) stamps.moments = FromWire(frame.moments_since());
  return stamps;
}

}  // namespace

// A change is named before it begins: a member that breaks off in it has a state that is neither.
absl::StatusOr<v1::GroupReply> GroupMember::Do(const v1::GroupFrame& frame,
                                               const std::atomic<bool>* interrupted) {
  const bool during_steps =
      frame.has_step() || frame.has_trace() || (frame.has_outer() && frame.outer().during_steps());
  if (!during_steps) outer_exchange_.EndWork();
  const StampTable::Stamps stamps = StampsFromWire(frame);
  if (!frame.has_fetch() && (stamps.parameters || stamps.moments)) layers_.Stamp(stamps);
  v1::GroupReply reply;
  ATOLL_RETURN_IF_ERROR(DoCall(frame, interrupted, &reply));
  return reply;
}

absl::Status GroupMember::DoCall(const v1::GroupFrame& frame, const std::atomic<bool>* interrupted,
                                 v1::GroupReply* reply) {
  switch (frame.body_case()) {
    case v1::GroupFrame::kDrain: {
      const v1::DrainCall& drain = frame.drain();
      if (drain.has_take()) ATOLL_RETURN_IF_ERROR(TakeStep(FromWire(drain.take())));
      const CommitState state = Committed();
      ToWire(state.taken, reply->mutable_taken());
      ToWire(state.waits, reply->mutable_waits());
      return absl::OkStatus();
    }
    case v1::GroupFrame::kConfigure:
      ATOLL_RETURN_IF_ERROR(Configure(interrupted));
      for (const HeldLayer& held : layers_.Held()) ToWire(held, reply->add_held());
      for (const HeldSave& save : saves_.Here()) ToWire(save, reply->add_saves());
      ToWire(outer_exchange_.Held(), reply->mutable_outer());
      reply->set_last_number(last_number());
      return absl::OkStatus();
    case v1::GroupFrame::kFetch:
      return layers_.Fetch(ParseFetchCall(frame.fetch()), frame.fetch().optimizer_step(),
                           frame.fetch().save(), StampsFromWire(frame));
    case v1::GroupFrame::kDropSurplus:
      layers_.DropSurplus();
      outer_exchange_.CommitLayout();
      return absl::OkStatus();
    case v1::GroupFrame::kStep:
      return DoStep(frame.step(), reply);
    case v1::GroupFrame::kTrace:
      // An error would end the island's work; without it the trace lacks these devices.
      if (frame.trace().number() == traced_number_) ToWire(ReadTrace(newest_step_), reply);
      return absl::OkStatus();
    case v1::GroupFrame::kTakeOver:
      return TakeOver(reply);
    case v1::GroupFrame::kEvaluate: {
      const v1::EvaluateCall& evaluate = frame.evaluate();
      ATOLL_ASSIGN_OR_RETURN(newest_loss_,
                             Evaluate(evaluate.number(), evaluate.first(), evaluate.count()));
      return absl::OkStatus();
    }
    case v1::GroupFrame::kOuter:
      return outer_exchange_.Do(frame.outer());
    case v1::GroupFrame::kSnapshot: {
      ATOLL_ASSIGN_OR_RETURN(const bool taken, layers_.TakeSnapshot());
      reply->set_copies_taken(taken);
      return absl::OkStatus();
    }
    case v1::GroupFrame::kAddition: {
      if (frame.addition().add()) {
        return layers_.Add();
      }
      ATOLL_ASSIGN_OR_RETURN(const bool taken, layers_.PrepareAddition());
      reply->set_copies_taken(taken);
      return absl::OkStatus();
    }
    case v1::GroupFrame::kSave:
      return DoSave(frame.save());
    case v1::GroupFrame::kSetSteps:
      return layers_.SetOptimizerSteps(frame.set_steps().optimizer_steps());
    default:
      return absl::InvalidArgumentError("not a call");
  }
}

absl::Status GroupMember::DoStep(const v1::StepCall& step, v1::GroupReply* reply) {
  traced_number_ = -1;
  ATOLL_ASSIGN_OR_RETURN(newest_step_, Step(step.number(), RangesFromStepCall(step),
                                            step.learning_rate(), step.trace()));
  newest_loss_ = newest_step_.loss;
  if (step.trace()) traced_number_ = step.number();
  for (const StageLinkState& stage_link : newest_step_.stage_links) {
    ToWire(stage_link, reply->add_stage_links());
  }
  reply->set_plan_wanted(newest_step_.plan_wanted);
  for (const DeviceMemory& memory : newest_step_.memory) ToWire(memory, reply->add_memory());
  return absl::OkStatus();
}

absl::Status GroupMember::DoSave(const v1::SaveCall& call) {
  const std::shared_ptr<const IslandPlan> plan = state_.plan();
  if (plan->members.empty()) return absl::FailedPreconditionError("it is in no island");
  SaveTask task = ParseSaveCall(call);
  const Tier tier = task.tier;
  return saves_.Save(std::move(task), outer(),
                     [this, leader = plan->members.front().worker, tier](
                         int64_t save, const absl::Status& status) {
                       v1::GroupFrame done;
                       *done.mutable_save_done() = MakeSaveDone(save, tier, status);
                       Notify(leader, std::move(done));
                     });
}

absl::Status GroupMember::TakeOver(v1::GroupReply* reply) const {
  const std::optional<v1::Handover> kept = state_.kept();
  if (!kept || kept->leadership().generation() != state_.fence().generation) {
    return absl::NotFoundError("it has not led this island in this generation");
  }
  *reply->mutable_handover() = *kept;
  return absl::OkStatus();
}

}  // namespace atl::worker

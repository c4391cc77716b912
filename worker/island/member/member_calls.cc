// GroupMember: what a call requests of a member, of the leader's own part or of a follower.

#include "worker/island/member/member.h"

namespace atl::worker {

bool GroupMember::IsOfStep(const GroupFrame& frame) {
  return BodyIf<StepCall>(frame) != nullptr || BodyIf<TraceCall>(frame) != nullptr ||
         BodyIf<ReferenceCall>(frame) != nullptr;
}

bool GroupMember::IsBesideSteps(const GroupFrame& frame) {
  const ApplyCall* apply = BodyIf<ApplyCall>(frame);
  return BodyIf<CaptureDelta>(frame) != nullptr || (apply != nullptr && apply->during_steps);
}

// A change is named before it begins: a member that breaks off in it has a state that is neither.
absl::StatusOr<GroupReply> GroupMember::Do(const GroupFrame& frame,
                                           const std::atomic<bool>* interrupted) {
  if (!IsOfStep(frame) && !IsBesideSteps(frame)) outer_exchange_.EndWork();
  const StampTable::Stamps stamps{frame.parameters_since, frame.moments_since};
  if (const FetchCall* fetch = BodyIf<FetchCall>(frame)) {
    ATOLL_RETURN_IF_ERROR(
        layers_.Fetch(fetch->transfers, fetch->optimizer_step, fetch->save, stamps));
    return GroupReply();
  }
  if (stamps.parameters || stamps.moments) layers_.Stamp(stamps);
  if (const ConfigureCall* call = BodyIf<ConfigureCall>(frame)) {
    return DoConfigure(*call, interrupted);
  }
  return std::visit(
      [&]<class Call>(const Call& call) -> absl::StatusOr<GroupReply> {
        if constexpr (requires { this->DoCall(call); }) {
          return DoCall(call);
        } else if constexpr (requires { this->outer_exchange_.Do(call); }) {
          ATOLL_RETURN_IF_ERROR(outer_exchange_.Do(call));
          return GroupReply();
        } else {
          return absl::InvalidArgumentError("not a call");
        }
      },
      frame.body);
}

absl::StatusOr<GroupReply> GroupMember::DoConfigure(const ConfigureCall& call,
                                                    const std::atomic<bool>* interrupted) {
  ATOLL_RETURN_IF_ERROR(Configure(call.nccl_ids, interrupted));
  GroupReply reply;
  reply.held = layers_.Held();
  reply.saves = saved_.Here();
  reply.outer = outer_exchange_.Held();
  reply.last_number = last_number();
  return reply;
}

absl::StatusOr<GroupReply> GroupMember::DoCall(const DrainCall& call) {
  GroupReply reply;
  if (call.take) {
    ATOLL_RETURN_IF_ERROR(TakeStep(*call.take));
  } else {
    ATOLL_ASSIGN_OR_RETURN(reply.nccl_ids, NewNcclIds());
  }
  reply.commit = Committed();
  return reply;
}

absl::StatusOr<GroupReply> GroupMember::DoCall(const DropSurplusCall&) {
  layers_.DropSurplus();
  outer_exchange_.CommitLayout();
  return GroupReply();
}

absl::StatusOr<GroupReply> GroupMember::DoCall(const TakeOverCall&) {
  GroupReply reply;
  reply.handover = state_.kept();
  if (!reply.handover || reply.handover->leadership.generation != state_.fence().generation) {
    return absl::NotFoundError("it has not led this island in this generation");
  }
  return reply;
}

absl::StatusOr<GroupReply> GroupMember::DoCall(const SnapshotCall&) {
  GroupReply reply;
  ATOLL_ASSIGN_OR_RETURN(reply.copies_taken,
                         state_.OnEngine([](Engine& engine) { return engine.TakeSnapshot(); }));
  return reply;
}

absl::StatusOr<GroupReply> GroupMember::DoCall(const AdditionCall& call) {
  GroupReply reply;
  if (call.add) {
    state_.log().Change([](ReplayLog& log) { log.Changed(); });
    ATOLL_RETURN_IF_ERROR(state_.OnEngine([](Engine& engine) { return engine.Add(); }));
  } else {
    ATOLL_ASSIGN_OR_RETURN(reply.copies_taken, state_.OnEngine([](Engine& engine) {
      return engine.PrepareAddition();
    }));
  }
  return reply;
}

absl::StatusOr<GroupReply> GroupMember::DoCall(const CaptureDelta& call) {
  ATOLL_RETURN_IF_ERROR(outer_exchange_.Do(call));
  GroupReply reply;
  if (call.digests) reply.digests = outer_exchange_.digests();
  return reply;
}

absl::StatusOr<GroupReply> GroupMember::DoCall(const SaveCall& call) {
  const std::shared_ptr<const IslandPlan> plan = state_.plan();
  if (plan->members.empty()) return absl::FailedPreconditionError("it is in no island");
  ATOLL_RETURN_IF_ERROR(saves_.Save(
      SaveTask{call}, outer(),
      [this, leader = plan->members.front().worker, tier = call.tier](int64_t save,
                                                                      const absl::Status& status) {
        Notify(leader, {.body = SaveDone{save, status.ok(), std::string(status.message()), tier}});
      }));
  return GroupReply();
}

absl::StatusOr<GroupReply> GroupMember::DoCall(const SetStepsCall& call) {
  ATOLL_RETURN_IF_ERROR(layers_.SetOptimizerSteps(call.optimizer_steps));
  return GroupReply();
}

}  // namespace atl::worker

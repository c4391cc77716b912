// Copies of layers beside steps, on all members; and the layers of a worker alone.

#include <algorithm>
#include <set>

#include "common/model/tensor_layout.h"
#include "worker/island/group_trainer.h"

namespace atl::worker {
namespace {

constexpr char kMomentsBroken[] = "the optimizer's moments were being written";

std::span<float> Mutable(std::span<const float> values) {
  return {const_cast<float*>(values.data()), values.size()};  // ShardParts serves both directions
}

LayerShard WholeLayer(int layer) { return {layer, 0, {1}}; }

}  // namespace

// ------------------------------------------------------------------------- of a worker alone ----

absl::Status GroupTrainer::ReadyAlone() {
  ATOLL_RETURN_IF_ERROR(Ready());
  if (alone_) return absl::OkStatus();
  return absl::FailedPreconditionError("the island's layers belong to its members");
}

absl::Status GroupTrainer::GetParts(int layer, const ShardParts& out) {
  ATOLL_RETURN_IF_ERROR(ReadyAlone());
  const Range all{0, member_->job()->layouts[static_cast<size_t>(layer)].size};
  return member_->GetShard(member_->name(), WholeLayer(layer), all, out);
}

absl::Status GroupTrainer::SetParts(int layer, const ShardParts& values) {
  ATOLL_RETURN_IF_ERROR(ReadyAlone());
  const absl::Status status = member_->SetShard(WholeLayer(layer), values);
  if (!status.ok()) {
    change_failed_ = true;
    Fail();
  }
  return status;
}

absl::Status GroupTrainer::GetParameters(int layer, std::span<float> out) {
  return GetParts(layer, {out, {}, {}});
}

absl::Status GroupTrainer::GetMoments(int layer, std::span<float> first, std::span<float> second) {
  return GetParts(layer, {{}, first, second});
}

absl::Status GroupTrainer::SetParameters(int layer, std::span<const float> values) {
  return SetParts(layer, {Mutable(values), {}, {}});
}

absl::Status GroupTrainer::SetMoments(int layer, std::span<const float> first,
                                      std::span<const float> second) {
  const absl::Status status = SetParts(layer, {{}, Mutable(first), Mutable(second)});
  if (!status.ok()) broken_ = kMomentsBroken;
  return status;
}

// ----------------------------------------------------------------------------- of all members ----

absl::Status GroupTrainer::SetOptimizerSteps(int64_t steps) {
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_RETURN_IF_ERROR(Settle());
  v1::GroupFrame frame;
  frame.mutable_set_steps()->set_optimizer_steps(steps);
  broken_ = kMomentsBroken;
  change_failed_ = true;
  ATOLL_ASSIGN_OR_RETURN(const Calls calls, CallAll(frame));
  change_failed_ = false;
  const absl::Status own = member_->SetOptimizerSteps(steps);
  const absl::Status others = AwaitAll(calls, member_->options().call_timeout);
  if (!own.ok() || !others.ok()) {
    change_failed_ = true;
    Fail();
    return own.ok() ? others : own;
  }
  broken_.clear();
  steps_ = steps;
  known_steps_ = steps;
  return absl::OkStatus();
}

absl::StatusOr<std::set<NodeId>> GroupTrainer::TakeCopies(
    const v1::GroupFrame& frame, const std::function<absl::StatusOr<bool>()>& own) {
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_RETURN_IF_ERROR(Settle());
  staged_ = false;  // there is one piece of memory for all copies
  ATOLL_ASSIGN_OR_RETURN(const Calls calls, CallAll(frame));
  std::set<NodeId> taken;
  const absl::StatusOr<bool> here = own();
  absl::Status status = here.status();
  if (here.ok() && *here) taken.insert(member_->name());
  for (const auto& [follower, call] : calls) {
    const auto reply = member_->Await(call, member_->options().call_timeout);
    if (status.ok()) status = reply.status();
    if (reply.ok() && reply->copies_taken()) taken.insert(follower);
  }
  if (status.ok()) return taken;
  Fail();
  return status;
}

absl::StatusOr<bool> GroupTrainer::AddStaged() {
  if (!staged_.exchange(false)) return false;
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_RETURN_IF_ERROR(Settle());
  v1::GroupFrame frame;
  frame.mutable_addition()->set_add(true);
  ATOLL_ASSIGN_OR_RETURN(const Calls calls, CallAll(frame));
  absl::Status added = member_->Add();
  const absl::Status others = AwaitAll(calls, member_->options().call_timeout);
  if (added.ok()) added = others;
  if (added.ok()) return true;
  change_failed_ = true;
  Fail();
  return added;
}

}  // namespace atl::worker

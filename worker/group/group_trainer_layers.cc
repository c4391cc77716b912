// Layers of an island, gathered from and dealt to the devices that hold them.

#include <algorithm>
#include <set>

#include "common/check.h"
#include "worker/group/group_trainer.h"
#include "worker/model/tensor_layout.h"

namespace atl::worker {
namespace {

std::span<float> Mutable(std::span<const float> values) {
  return {const_cast<float*>(values.data()), values.size()};  // ShardParts serves both directions
}

}  // namespace

absl::Status GroupTrainer::GetParameters(int layer, std::span<float> out) {
  return GetParts(layer, {out, {}, {}});
}

absl::Status GroupTrainer::GetMoments(int layer, std::span<float> first, std::span<float> second) {
  return GetParts(layer, {{}, first, second});
}

absl::Status GroupTrainer::SetParameters(int layer, std::span<const float> values) {
  absl::Status status = absl::FailedPreconditionError("the island is not set up");
  const bool failed_before = failed_;
  if (!failed_) status = SetParts(layer, {Mutable(values), {}, {}});
  if (status.ok() || (!failed_ && !failed_before)) return status;
  unwritten_[layer].assign(values.begin(), values.end());
  return failed_before ? absl::OkStatus() : status;
}

absl::Status GroupTrainer::SetMoments(int layer, std::span<const float> first,
                                      std::span<const float> second) {
  const absl::Status status = SetParts(layer, {{}, Mutable(first), Mutable(second)});
  if (!status.ok()) moments_broken_ = true;
  return status;
}

absl::Status GroupTrainer::SetOptimizerSteps(int64_t steps) {
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_RETURN_IF_ERROR(Settle());
  v1::GroupFrame frame;
  frame.mutable_set_steps()->set_optimizer_steps(steps);
  moments_broken_ = true;
  ATOLL_ASSIGN_OR_RETURN(const Calls calls, CallAll(frame));
  const absl::Status own = member_->SetOptimizerSteps(steps);
  const absl::Status others = AwaitAll(calls, member_->options().call_timeout);
  if (!own.ok() || !others.ok()) {
    Fail();
    return own.ok() ? others : own;
  }
  moments_broken_ = false;
  steps_ = steps;
  known_steps_ = steps;
  return absl::OkStatus();
}

GroupTrainer::Holders GroupTrainer::HoldersOf(int layer) const {
  Holders ranks;
  for (const auto& [worker, held] : holdings_) {
    for (const HeldLayer& here : held) {
      if (here.shard.layer != layer || here.table_only) continue;
      const auto it = ranks.find(here.shard.rank);
      if (it == ranks.end() || worker == member_->name()) {
        ranks[here.shard.rank] = {here.shard, worker};
      }
    }
  }
  ATOLL_CHECK(!ranks.empty(), "layer ", layer, " is nowhere");
  return ranks;
}

absl::Status GroupTrainer::Gather(int layer, const Holders& holders, const GetShard& get,
                                  const ShardParts& out) const {
  const GroupJob& job = *member_->job();
  if (holders.size() == 1) {
    const auto& [shard, from] = holders.begin()->second;
    return get(from, shard, out);
  }
  const PartMap whole = PartsOf(out);
  for (const auto& [rank, holder] : holders) {
    ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, job.LayoutOf(holder.first));
    OwnedParts cut(layout.size, WantedOf(out));
    ATOLL_RETURN_IF_ERROR(get(holder.second, holder.first, cut.parts()));
    for (const auto& [part, from] : PartsOf(cut.parts())) {
      JoinLayer(job.layouts[static_cast<size_t>(layer)], layout, from, whole.at(part));
    }
  }
  return absl::OkStatus();
}

absl::Status GroupTrainer::GetNow(int layer, const Holders& holders, const ShardParts& out) {
  const auto get = [this](const NodeId& from, const LayerShard& shard, const ShardParts& to) {
    const absl::Status status = member_->GetShard(from, shard, to);
    if (!status.ok() && from != member_->name()) Fail();
    return status;
  };
  return Gather(layer, holders, get, out);
}

absl::Status GroupTrainer::GetParts(int layer, const ShardParts& out) {
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_RETURN_IF_ERROR(Settle());
  return GetNow(layer, HoldersOf(layer), out);
}

// Who has one.
absl::StatusOr<std::set<NodeId>> GroupTrainer::TakeSnapshots() {
  v1::GroupFrame frame;
  frame.mutable_snapshot();
  ATOLL_ASSIGN_OR_RETURN(const Calls calls, CallAll(frame));
  std::set<NodeId> taken;
  const absl::StatusOr<bool> own = member_->TakeSnapshot();
  absl::Status status = own.status();
  if (own.ok() && *own) taken.insert(member_->name());
  for (const auto& [follower, call] : calls) {
    const auto reply = member_->Await(call, member_->options().call_timeout);
    if (status.ok()) status = reply.status();
    if (reply.ok() && reply->snapshot_taken()) taken.insert(follower);
  }
  if (status.ok()) return taken;
  Fail();
  return status;
}

absl::StatusOr<Trainer::Completion> GroupTrainer::CopyParameters(LayerBuffers* out) {
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_RETURN_IF_ERROR(Settle());
  ATOLL_ASSIGN_OR_RETURN(const std::set<NodeId> taken, TakeSnapshots());
  std::vector<std::pair<int, Holders>> later;
  for (int layer = 0; layer < static_cast<int>(out->size()); ++layer) {
    Holders holders = HoldersOf(layer);
    const bool beside = std::all_of(holders.begin(), holders.end(), [&](const auto& holder) {
      return taken.count(holder.second.second) > 0;
    });
    if (beside) {
      later.emplace_back(layer, std::move(holders));
    } else {
      ATOLL_RETURN_IF_ERROR(GetNow(layer, holders, {(*out)[static_cast<size_t>(layer)], {}, {}}));
    }
  }
  // Nothing of the trainer's own is touched here but what stays as long as the plan.
  return [this, out, later = std::move(later)](const std::atomic<bool>& cancelled) -> absl::Status {
    const auto get = [this](const NodeId& from, const LayerShard& shard, const ShardParts& to) {
      return member_->GetSnapshot(from, shard, to.parameters);
    };
    for (const auto& [layer, holders] : later) {
      if (cancelled) return absl::AbortedError("interrupted");
      ATOLL_RETURN_IF_ERROR(
          Gather(layer, holders, get, {(*out)[static_cast<size_t>(layer)], {}, {}}));
    }
    return absl::OkStatus();
  };
}

absl::Status GroupTrainer::SetParts(int layer, const ShardParts& values) {
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_RETURN_IF_ERROR(Settle());
  std::map<int32_t, std::pair<LayerShard, std::vector<NodeId>>> ranks;
  for (const auto& [worker, held] : holdings_) {
    for (const HeldLayer& here : held) {
      if (here.shard.layer != layer) continue;
      auto& [shard, holders] = ranks[here.shard.rank];
      shard = here.shard;
      if (holders.empty() || holders.back() != worker) holders.push_back(worker);
    }
  }
  ATOLL_CHECK(!ranks.empty(), "layer ", layer, " is nowhere");
  const GroupJob& job = *member_->job();
  for (const auto& [rank, held] : ranks) {
    if (ranks.size() == 1) return SetPartsOf(held.first, held.second, values);
    ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, job.LayoutOf(held.first));
    OwnedParts cut(layout.size, WantedOf(values));
    for (const auto& [part, to] : PartsOf(cut.parts())) {
      CutLayer(job.layouts[static_cast<size_t>(layer)], layout, PartsOf(values).at(part), to);
    }
    ATOLL_RETURN_IF_ERROR(SetPartsOf(held.first, held.second, cut.parts()));
  }
  return absl::OkStatus();
}

// All holders at a time.
absl::Status GroupTrainer::SetPartsOf(const LayerShard& shard, const std::vector<NodeId>& holders,
                                      const ShardParts& values) {
  v1::GroupFrame frame;
  ToWire(shard, frame.mutable_set_layer()->mutable_shard());
  frame.mutable_set_layer()->set_parts(WantedOf(values));
  absl::Status status;
  Calls calls;
  std::shared_ptr<const OwnedParts> copy;  // the link reads it after we have returned
  for (const NodeId& holder : holders) {
    if (holder == member_->name()) continue;
    if (copy == nullptr) copy = OwnedParts::CopyOf(values);
    const absl::StatusOr<CallId> call = member_->Call(holder, frame);
    status = call.status();
    if (!status.ok()) break;
    calls.emplace_back(holder, *call);
    status = member_->SendParts(holder, *call, /*of_reply=*/false, copy);
    if (!status.ok()) break;
  }
  if (status.ok() && std::find(holders.begin(), holders.end(), member_->name()) != holders.end()) {
    status = member_->SetShard(shard, values);
  }
  if (!status.ok()) Fail();
  const PartMap sent = PartsOf(values);
  const int64_t bytes =
      BytesOf(std::ssize(sent.begin()->second), WantedOf(values)) * std::ssize(calls);
  const absl::Status others = AwaitAll(calls, member_->options().call_timeout + MoveLimit(bytes));
  if (status.ok()) status = others;
  if (!status.ok()) Fail();
  return status;
}

}  // namespace atl::worker

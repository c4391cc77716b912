// Layers of an island, gathered from and dealt to the devices that hold them.

#include <algorithm>
#include <set>

#include "common/check.h"
#include "common/model/tensor_layout.h"
#include "worker/group/group_trainer.h"

namespace atl::worker {
namespace {

constexpr char kMomentsBroken[] = "the optimizer's moments were being written";

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
  change_failed_ = true;
  unwritten_[layer].assign(values.begin(), values.end());
  return failed_before ? absl::OkStatus() : status;
}

absl::Status GroupTrainer::SetMoments(int layer, std::span<const float> first,
                                      std::span<const float> second) {
  const absl::Status status = SetParts(layer, {{}, Mutable(first), Mutable(second)});
  if (!status.ok()) broken_ = kMomentsBroken, change_failed_ = true;
  return status;
}

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

GroupTrainer::Sources GroupTrainer::SourcesOfLayer(int layer, int32_t parts) const {
  Sources ranks;
  for (const auto& [worker, held] : holdings_) {
    for (const HeldLayer& here : held) {
      if (here.shard.layer != layer || here.table_only || ranks.contains(here.shard.rank)) continue;
      ranks[here.shard.rank] = SourcesOf(holdings_, here.shard, parts, member_->name());
    }
  }
  ATOLL_CHECK(!ranks.empty(), "layer ", layer, " is nowhere");
  return ranks;
}

absl::Status GroupTrainer::Gather(int layer, const Sources& sources, const GetShard& get,
                                  const ShardParts& out) const {
  const GroupJob& job = *member_->job();
  const auto get_all = [&](const std::vector<ShardSource>& of_rank, const ShardParts& to) {
    for (const ShardSource& source : of_rank) {
      ATOLL_RETURN_IF_ERROR(get(source, SliceOf(to, source.parts, source.elements)));
    }
    return absl::OkStatus();
  };
  if (sources.size() == 1) return get_all(sources.begin()->second, out);
  const PartMap whole = PartsOf(out);
  for (const auto& [rank, of_rank] : sources) {
    ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, job.LayoutOf(of_rank.front().shard));
    OwnedParts cut(layout.size, WantedOf(out));
    ATOLL_RETURN_IF_ERROR(get_all(of_rank, cut.parts()));
    for (const auto& [part, from] : PartsOf(cut.parts())) {
      JoinLayer(job.layouts[static_cast<size_t>(layer)], layout, from, whole.at(part));
    }
  }
  return absl::OkStatus();
}

absl::Status GroupTrainer::GetNow(int layer, const Sources& sources, const ShardParts& out) {
  const auto get = [this](const ShardSource& source, const ShardParts& to) {
    const absl::Status status = member_->GetShard(source.from, source.shard, source.elements, to);
    if (!status.ok() && source.from != member_->name()) Fail();
    return status;
  };
  return Gather(layer, sources, get, out);
}

absl::Status GroupTrainer::GetParts(int layer, const ShardParts& out) {
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_RETURN_IF_ERROR(Settle());
  return GetNow(layer, SourcesOfLayer(layer, WantedOf(out)), out);
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

absl::StatusOr<Trainer::Completion> GroupTrainer::CopyState(const StateBuffers& out) {
  const bool moments = out.first_moments != nullptr;
  v1::GroupFrame frame;
  frame.mutable_snapshot()->set_moments(moments);
  ATOLL_ASSIGN_OR_RETURN(const std::set<NodeId> taken,
                         TakeCopies(frame, [&] { return member_->TakeSnapshot(moments); }));
  // Memory is taken when it is filled: that takes its time, too.
  const auto place = [this, out](int layer) {
    const auto at = static_cast<size_t>(layer);
    const auto sized = [&](LayerBuffers* buffers) -> std::span<float> {
      if (buffers == nullptr) return {};
      (*buffers)[at].resize(static_cast<size_t>(member_->job()->layouts[at].size));
      return (*buffers)[at];
    };
    return ShardParts{sized(out.parameters), sized(out.first_moments), sized(out.second_moments)};
  };
  std::vector<std::pair<int, Sources>> later;
  for (int layer = 0; layer < static_cast<int>(out.parameters->size()); ++layer) {
    Sources sources = SourcesOfLayer(layer, moments ? kAllParts : kParametersPart);
    const bool beside = std::all_of(sources.begin(), sources.end(), [&](const auto& rank) {
      return std::all_of(rank.second.begin(), rank.second.end(),
                         [&](const ShardSource& source) { return taken.contains(source.from); });
    });
    if (beside) {
      later.emplace_back(layer, std::move(sources));
    } else {
      ATOLL_RETURN_IF_ERROR(GetNow(layer, sources, place(layer)));
    }
  }
  // Nothing of the trainer's own is touched here but what stays as long as the plan.
  return [this, place, later = std::move(later)](const std::atomic<bool>& cancelled) {
    const auto get = [this](const ShardSource& source, const ShardParts& to) {
      return member_->GetSnapshot(source.from, source.shard, source.elements, to);
    };
    absl::Status status;
    for (const auto& [layer, sources] : later) {
      if (status.ok() && cancelled) status = absl::AbortedError("interrupted");
      if (status.ok()) status = Gather(layer, sources, get, place(layer));
    }
    return status;
  };
}

GroupTrainer::AllHolders GroupTrainer::AllHoldersOf(int layer) const {
  AllHolders ranks;
  for (const auto& [worker, held] : holdings_) {
    for (const HeldLayer& here : held) {
      if (here.shard.layer != layer) continue;
      auto& [shard, holders] = ranks[here.shard.rank];
      shard = here.shard;
      if (holders.empty() || holders.back() != worker) holders.push_back(worker);
    }
  }
  ATOLL_CHECK(!ranks.empty(), "layer ", layer, " is nowhere");
  return ranks;
}

absl::Status GroupTrainer::Deal(int layer, const AllHolders& holders, const ShardParts& values,
                                const SetShard& set) const {
  const GroupJob& job = *member_->job();
  for (const auto& [rank, held] : holders) {
    if (holders.size() == 1) return set(held.first, held.second, values);
    ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, job.LayoutOf(held.first));
    OwnedParts cut(layout.size, WantedOf(values));
    for (const auto& [part, to] : PartsOf(cut.parts())) {
      CutLayer(job.layouts[static_cast<size_t>(layer)], layout, PartsOf(values).at(part), to);
    }
    ATOLL_RETURN_IF_ERROR(set(held.first, held.second, cut.parts()));
  }
  return absl::OkStatus();
}

absl::Status GroupTrainer::SetParts(int layer, const ShardParts& values) {
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_RETURN_IF_ERROR(Settle());
  return Deal(layer, AllHoldersOf(layer), values,
              [this](const LayerShard& shard, const std::vector<NodeId>& holders,
                     const ShardParts& parts) { return SetPartsOf(shard, holders, parts); });
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

absl::Status GroupTrainer::SetPartsOf(const LayerShard& shard, const std::vector<NodeId>& holders,
                                      const ShardParts& values) {
  const absl::Status status = SetOn(shard, holders, values);
  if (!status.ok()) Fail();
  return status;
}

// All holders at a time. Touches nothing of the trainer's own, for additions.
absl::Status GroupTrainer::SetOn(const LayerShard& shard, const std::vector<NodeId>& holders,
                                 const ShardParts& values) const {
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
  const PartMap sent = PartsOf(values);
  const int64_t bytes =
      BytesOf(std::ssize(sent.begin()->second), WantedOf(values)) * std::ssize(calls);
  Duration timeout = member_->options().call_timeout + MoveLimit(bytes);
  for (const auto& [holder, call] : calls) {
    if (!status.ok()) timeout = std::min(timeout, kEndTimeout);
    const absl::Status done = member_->Await(call, timeout).status();
    if (status.ok()) status = done;
  }
  return status;
}

}  // namespace atl::worker

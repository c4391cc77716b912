// A worker's pushes and pulls: each owner's own part, between it and the servers, as
// worker/island/member/transfer_relay.h has it.

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/net/tensor/tensor_types.h"
#include "common/protocol/fragments.h"
#include "kernels/add_delta.h"
#include "kernels/codecs/moments.h"
#include "kernels/host_ops.h"
#include "tests/sim/nodes.h"

namespace atl::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kTransferTimeout = std::chrono::seconds(6);

ps::SharedBytes Encode(std::span<const float> values, Encoding encoding, ThreadPool& pool) {
  if (encoding == Encoding::kFloat32) {
    auto copy = std::make_shared<std::vector<float>>(values.begin(), values.end());
    return {copy, std::as_bytes(std::span(*copy))};
  }
  auto narrow = std::make_shared<std::vector<Bfloat16>>(values.size());
  ToBfloat16(values, *narrow, pool);
  return {narrow, std::as_bytes(std::span(*narrow))};
}

// Selects as worker/outer/transfers.h does: a layer that has had one turn since comes as its step.
int32_t SelectPullSlot(const StartPull& pull, const ShardPart& part, const WorkerNode* owner) {
  const std::shared_ptr<worker::OuterState> outer = owner->member()->outer();
  if (outer == nullptr || !IsQuantized(pull.encoding) || outer->tag().base == kNoVersion) {
    return kPullServed;
  }
  const int64_t turns = CountTurnsSince(outer->tag().base, pull.version, part,
                                        Fragments{pull.fragments, pull.expert_fragments});
  return turns == 1 ? kPullStep : kPullServed;
}

// The whole shard, of which the owner's part counts.
std::vector<float> AddStep(const worker::OuterState& outer, const ShardPart& part,
                           const DeltaView& step, ThreadPool& pool) {
  std::vector<float> values(static_cast<size_t>(part.elements));
  const ElementRange in = part.part();
  const auto own =
      std::span(values).subspan(static_cast<size_t>(in.begin), static_cast<size_t>(in.size()));
  const absl::Status read =
      outer.Read(OuterKind::kBase, part.layer, {part.begin + in.begin, part.begin + in.end}, own);
  ATOLL_CHECK(read.ok(), read.message());
  AddDelta(step, values, values, pool);
  return values;
}

std::pair<std::vector<float>, std::vector<float>> DecodeMoments(const std::vector<float>& words,
                                                                int64_t elements) {
  std::vector<float> first(static_cast<size_t>(elements)), second = first;
  DecodeRatios(Encoding::kMomentsAlone, std::as_bytes(std::span(words)), first, second);
  FirstFromRatios(first, second);
  return {std::move(first), std::move(second)};
}

}  // namespace

// Who keeps which part of these shards, as the leader knows it.
std::map<NodeId, std::vector<ShardPart>> WorkerNode::GroupPartsByOwner(
    const std::vector<ShardPart>& shards) const {
  std::map<NodeId, std::vector<ShardPart>> owned;
  const std::shared_ptr<worker::OuterState> outer = member_->outer();
  if (outer == nullptr) return owned;
  for (const ShardPart& shard : shards) {
    for (const OuterRange& part : outer->layout()) {
      if (part.layer != shard.layer) continue;
      const int64_t begin = std::clamp<int64_t>(part.range.begin - shard.begin, 0, shard.elements);
      const int64_t end = std::clamp<int64_t>(part.range.end - shard.begin, 0, shard.elements);
      if (end <= begin) continue;
      const bool whole = end - begin == shard.elements;
      ShardPart& own = owned[part.holders.front()].emplace_back(shard);
      own.part_begin = whole ? 0 : begin;
      own.part_elements = whole ? 0 : end - begin;
    }
  }
  return owned;
}

// ------------------------------------------------------------------------------------- pulls ----

void WorkerNode::Do(const StartPull& action) {
  const int64_t transfer = next_transfer_++;
  transfers_.insert(transfer);
  pull_ = Pull{action.pull};
  const auto shares = GroupPartsByOwner(action.shards);
  for (const auto& [owner, parts] : shares) {
    pull_.missing += parts.size() * (action.moments ? 2 : 1);
  }
  const auto fails = [this, transfer, pull = action.pull](const char* why) {
    EndPull(transfer, PullFailed{pull, PullFailure::kError, kNoVersion, why});
  };
  if (pull_.missing == 0)
    return AfterInRun(milliseconds(1), [fails] { fails("no plan is set up"); });
  for (const auto& [owner, parts] : shares) {
    for (const ShardPart& part : parts) {
      PullPart(action, owner, part, transfer,
               SelectPullSlot(action, part, world_.FindWorker(owner)));
      if (action.moments) PullPart(action, owner, part, transfer, kPullMoments);
    }
  }
  AfterInRun(kTransferTimeout, [fails] { fails("timed out"); });
}

void WorkerNode::EndPull(int64_t transfer, worker::Event event) {
  if (transfers_.erase(transfer) == 0) return;
  const auto* done = std::get_if<PullDone>(&event);
  if (done == nullptr) return Deliver(event);
  leader_->Stage(*done);
}

void WorkerNode::PullPart(const StartPull& action, const NodeId& owner, const ShardPart& part,
                          int64_t transfer, int32_t slot) {
  WorkerNode* const node = world_.FindWorker(owner);
  const int64_t pull = action.pull;
  const bool step = slot == kPullStep;
  // Runs here when all of it is at the owner. One answer counts, however many arrive.
  const auto once = std::make_shared<bool>(false);
  const auto arrived = [this, part, transfer, pull, once, step, slot, encoding = action.encoding,
                        before = node->member()->outer(),
                        member = node->member()](const std::vector<float>& received) {
    if (!transfers_.contains(transfer) || std::exchange(*once, true)) return;
    const std::shared_ptr<worker::OuterState> outer = member->outer();
    const ElementRange in = part.part();
    const std::vector<float> values =
        step ? AddStep(*before, part, {received.data(), encoding, part.elements}, world_.pool)
             : received;
    pull_.steps += step;
    const auto write = [&](OuterKind kind, std::span<const float> of_shard) {
      return outer->Write(kind, part.layer, {part.begin + in.begin, part.begin + in.end},
                          of_shard.subspan(in.begin, in.size()));
    };
    absl::Status written = absl::UnavailableError("it has ended");
    if (outer != nullptr && !member->dead() && slot == kPullMoments) {
      const auto [first, second] = DecodeMoments(values, part.elements);
      written = write(OuterKind::kPulledFirst, first);
      if (written.ok()) written = write(OuterKind::kPulledSecond, second);
    } else if (outer != nullptr && !member->dead()) {
      written = write(OuterKind::kPulled, values);
    }
    if (!written.ok()) {
      return EndPull(transfer, PullFailed{pull, PullFailure::kError, kNoVersion,
                                          std::string(written.message())});
    }
    if (--pull_.missing == 0) EndPull(transfer, PullDone{pull, part.elements * 4});
  };
  const auto refused = [this, transfer, pull, once, step, action, owner,
                        part](const ps::RefusePull& refusal) {
    if (!transfers_.contains(transfer) || std::exchange(*once, true)) return;
    if (step && refusal.refusal == PullRefusal::kUnknown) {
      return PullPart(action, owner, part, transfer, kPullServed);
    }
    const auto failure = refusal.refusal == PullRefusal::kNotYet       ? PullFailure::kNotYet
                         : refusal.refusal == PullRefusal::kSuperseded ? PullFailure::kSuperseded
                                                                       : PullFailure::kError;
    EndPull(transfer, PullFailed{pull, failure, refusal.current, refusal.reason});
  };
  const auto answer = [this, owner, part, arrived, refused, slot, job = action.job, at = run()](
                          const ps::ReplyPull* reply, const ps::RefusePull* refusal) {
    const auto alive_then = [this, at](Timeline::Action action) {
      return [this, at, action] {
        if (alive() && run() == at) action();
      };
    };
    if (reply != nullptr) {
      if (slot == kPullServed) {
        world_.checker.Of(job).Served(part.server, reply->version, part, reply->values);
      }
      std::vector<float> values(reply->values.begin(), reply->values.end());
      world_.network.Send(part.server, owner, alive_then([arrived, values] { arrived(values); }));
    } else {
      world_.network.Send(part.server, owner,
                          alive_then([refused, copy = *refusal] { refused(copy); }));
    }
  };
  const ps::PullArrived pull_event{action.job, action.version, part.shard, 0, 0, 0, slot};
  world_.network.Send(owner, part.server, [this, part, pull_event, answer] {
    if (ServerNode* server = world_.FindServer(part.server)) server->Pull(pull_event, answer);
  });
}

// ------------------------------------------------------------------------------------ pushes ----

void WorkerNode::Do(const PushShards& action) {
  if (!IsFill(action.contribution.base_version)) {
    for (const ShardPart& part : action.shards) {
      PushPart(action, part.sender.empty() ? name() : part.sender, part);
    }
    return;
  }
  for (const auto& [owner, parts] : GroupPartsByOwner(action.shards)) {
    for (const ShardPart& part : parts) PushPart(action, owner, part);
  }
}

// Fills in what the sender has of it; false: nothing.
bool WorkerNode::Fill(ps::PushArrived& event, const PushShards& action, const NodeId& sender,
                      const ShardPart& part) const {
  const WorkerNode* const node = world_.FindWorker(sender);
  if (node == nullptr || !node->alive() || node->member()->outer() == nullptr ||
      (sender != name() && (!world_.network.IsReachable(name(), sender) ||
                            node->member()->fence() != member_->fence()))) {
    return false;
  }
  const std::shared_ptr<worker::OuterState> outer = node->member()->outer();
  const Version base = action.contribution.base_version;
  const bool here = IsFill(base) ? outer->tag().base == FillBase(base)
                                 : outer->tag().captured == action.contribution;
  if (!here) return false;
  const ElementRange in = part.part();
  if (IsQuantized(action.encoding) && !IsFill(base)) {
    const auto encoded = outer->delta()->encoded.find(part.shard);
    if (encoded == outer->delta()->encoded.end()) return false;
    auto bytes = std::make_shared<std::vector<std::byte>>(
        encoded->second.begin() + EncodedBytes(action.encoding, in.begin),
        encoded->second.begin() + EncodedBytes(action.encoding, in.end));
    event.payload = {bytes, *bytes};
    return true;
  }
  std::vector<float> values(static_cast<size_t>(in.size()));
  const absl::Status read =
      outer->Read(IsFill(base) ? OuterKind::kBase : OuterKind::kDelta, part.layer,
                  {part.begin + in.begin, part.begin + in.end}, values);
  event.payload = Encode(values, action.encoding, world_.pool);
  return read.ok();
}

void WorkerNode::PushPart(const PushShards& action, const NodeId& sender, const ShardPart& part) {
  const int64_t transfer = next_transfer_++;
  transfers_.insert(transfer);
  const PushId id = worker::MakePushId(action, part);
  const auto finish = [this, transfer, id](ShardPushStatus status, std::string reason) {
    if (transfers_.erase(transfer) > 0) Deliver(PushShardDone{id, status, reason, 4});
  };
  // Through the member that has pushed it.
  const auto answer = [this, part, finish, sender, at = run()](PushStatus status,
                                                               std::string reason) {
    const auto mapped =
        status == PushStatus::kRefused ? ShardPushStatus::kRefused : ShardPushStatus::kStaged;
    const auto finish_if_alive = [this, at, finish, mapped, reason] {
      if (alive() && run() == at) finish(mapped, reason);
    };
    world_.network.Send(part.server, sender, [this, sender, finish_if_alive] {
      if (sender == name()) return finish_if_alive();
      world_.network.Send(sender, name(), finish_if_alive);
    });
  };
  ps::PushArrived event;
  event.id = id;
  event.encoding = action.encoding;
  event.elements = part.part().size();
  if (!Fill(event, action, sender, part)) {
    return AfterInRun(milliseconds(1), [finish, sender] {
      finish(ShardPushStatus::kFailed, absl::StrCat("it is not at ", sender));
    });
  }
  const auto deliver = [this, part, event, answer] {
    if (ServerNode* node = world_.FindServer(part.server)) node->Push(event, answer);
  };
  if (world_.faulty() && world_.rng.Chance(world_.options.ghost)) {
    world_.timeline.After(world_.UpTo(seconds(30)), deliver);
  }
  world_.network.Send(sender, part.server, deliver);
  AfterInRun(kTransferTimeout, [finish] { finish(ShardPushStatus::kFailed, "timed out"); });
}

void WorkerNode::Do(const worker::CancelTransfers&) {
  transfers_.clear();
  leader_->CancelStaging();
}

}  // namespace atl::sim

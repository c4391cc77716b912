#include "worker/island/member/transfer_relay.h"

#include <algorithm>

namespace atl::worker {
namespace {

constexpr size_t kPartsInMessage = 2048;  // each with its server's address and key

}  // namespace

TransferRelay::TransferRelay(GroupMember* member, TensorClient* client,
                             std::function<void(Event)> post)
    : member_(member),
      post_(std::move(post)),
      own_(client, [this](Event event) { OnOwn(std::move(event)); }),
      served_(client, [this](Event event) { OnServed(std::move(event)); }) {
  member_->SetOnTransfer([this](const NodeId& from, GroupMember::TransferFrame frame) {
    std::visit([&](auto& body) { On(from, std::move(body)); }, frame);
  });
}

TransferRelay::~TransferRelay() {
  member_->SetOnTransfer(nullptr);
  serving_.Stop();
  own_.CancelAll();
  served_.CancelAll();
}

// ------------------------------------------------------------------------------- the leader's ----

std::map<NodeId, PushShards> TransferRelay::SplitByOwner(const PushShards& order) const {
  std::map<NodeId, PushShards> shares;
  const auto get_share = [&](const NodeId& sender) -> std::vector<ShardPart>& {
    return shares.try_emplace(sender, PushShards{order.job, order.contribution, order.encoding, {}})
        .first->second.shards;
  };
  if (IsFill(order.contribution.base_version)) {
    for (auto& [owner, parts] : GroupPartsByOwner(order.shards))
      get_share(owner) = std::move(parts);
    return shares;
  }
  for (const ShardPart& part : order.shards) {
    get_share(part.sender.empty() ? member_->name() : part.sender).push_back(part);
  }
  return shares;
}

bool TransferRelay::StartPush(const PushShards& share, Transfers& transfers) const {
  const std::shared_ptr<OuterState> outer = member_->outer_exchange().state();
  if (outer == nullptr) return false;
  const Version base = share.contribution.base_version;
  if (IsFill(base)) {
    if (outer->tag().base != FillBase(base)) return false;
    transfers.PushBase(share, outer->parts(), outer->base());
    return true;
  }
  if (outer->tag().captured != share.contribution) return false;
  transfers.Push(share, outer->parts(), outer->delta());
  return true;
}

void TransferRelay::Push(const PushShards& order) {
  for (const auto& [sender, share] : SplitByOwner(order)) {
    if (sender == member_->name()) {
      if (StartPush(share, own_)) continue;
      for (const ShardPart& part : share.shards) {
        post_(
            PushShardDone{MakePushId(share, part), ShardPushStatus::kFailed, "it is not here", 0});
      }
      continue;
    }
    for (size_t begin = 0; begin < share.shards.size(); begin += kPartsInMessage) {
      PushShards message{share.job, share.contribution, share.encoding, {}};
      const size_t end = std::min(share.shards.size(), begin + kPartsInMessage);
      message.shards.assign(share.shards.begin() + static_cast<std::ptrdiff_t>(begin),
                            share.shards.begin() + static_cast<std::ptrdiff_t>(end));
      {
        const std::lock_guard lock(mutex_);
        for (const ShardPart& part : message.shards) {
          pushes_[sender][MakePushId(message, part)] = true;
        }
      }
      member_->calls().Notify(sender, {.body = message});
      if (member_->link().IsLost(sender)) OnLost(sender);
    }
  }
}

std::map<NodeId, std::vector<ShardPart>> TransferRelay::GroupPartsByOwner(
    const std::vector<ShardPart>& shards) const {
  std::map<NodeId, std::vector<ShardPart>> shares;
  const std::shared_ptr<OuterState> outer = member_->outer_exchange().state();
  if (outer == nullptr) return shares;
  std::map<int32_t, std::vector<const OuterRange*>> parts;
  for (const OuterRange& part : outer->layout()) parts[part.layer].push_back(&part);
  for (const ShardPart& shard : shards) {
    for (const OuterRange* part : parts[shard.layer]) {
      const int64_t begin = std::clamp<int64_t>(part->range.begin - shard.begin, 0, shard.elements);
      const int64_t end = std::clamp<int64_t>(part->range.end - shard.begin, 0, shard.elements);
      if (end <= begin) continue;
      const bool whole = end - begin == shard.elements;
      ShardPart& own = shares[part->holders.front()].emplace_back(shard);
      own.part_begin = whole ? 0 : begin;
      own.part_elements = whole ? 0 : end - begin;
    }
  }
  return shares;
}

// Each begins where the members before it end.
std::map<NodeId, StartPull> TransferRelay::SplitByOwner(const StartPull& order) const {
  std::map<NodeId, StartPull> shares;
  auto owned = GroupPartsByOwner(order.shards);
  size_t index = 0;
  for (auto& [worker, parts] : owned) {
    const size_t first = parts.size() * index++ / owned.size();
    std::rotate(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(first), parts.end());
    StartPull& share = shares[worker] = order;
    share.shards = std::move(parts);
  }
  return shares;
}

void TransferRelay::Pull(const StartPull& order) {
  SendCancel();
  own_.CancelAll();
  const std::map<NodeId, StartPull> shares = SplitByOwner(order);
  if (shares.empty()) {
    return post_(PullFailed{order.pull, PullFailure::kError, kNoVersion, "no plan is set up"});
  }
  std::vector<std::pair<Batch, StartPull>> batches;
  for (const auto& [worker, share] : shares) {
    for (size_t begin = 0; begin < share.shards.size(); begin += kPartsInMessage) {
      StartPull message = share;
      const size_t end = std::min(share.shards.size(), begin + kPartsInMessage);
      message.shards.assign(share.shards.begin() + static_cast<std::ptrdiff_t>(begin),
                            share.shards.begin() + static_cast<std::ptrdiff_t>(end));
      message.batch = static_cast<int32_t>(begin);
      batches.push_back({{worker, message.batch}, std::move(message)});
      if (worker != member_->name()) continue;
      batches.back().second.shards = share.shards;  // own ones need no message
      break;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    pull_ = order.pull;
    pulling_ = true;
    pulled_bytes_ = 0;
    batches_.clear();
    for (const auto& [batch, message] : batches) batches_.insert(batch);
  }
  const std::shared_ptr<OuterState> outer = member_->outer_exchange().state();
  for (const auto& [batch, message] : batches) {
    if (batch.first == member_->name()) {
      own_.Pull(message, outer->parts(), outer->pulled(), outer->base(), outer->tag().base,
                outer->pulled_moments());
      continue;
    }
    member_->calls().Notify(batch.first, {.body = message});
    if (member_->link().IsLost(batch.first)) OnLost(batch.first);
  }
}

void TransferRelay::SendCancel() {
  std::set<NodeId> others;
  {
    const std::lock_guard lock(mutex_);
    for (const Batch& batch : batches_) others.insert(batch.first);
    for (const auto& [sender, pushes] : pushes_) others.insert(sender);
    pulling_ = false;
    batches_.clear();
    pushes_.clear();
  }
  others.erase(member_->name());
  for (const NodeId& other : others) {
    member_->calls().Notify(other, {.body = CancelTransfersCall()});
  }
}

void TransferRelay::CancelAll() {
  SendCancel();
  own_.CancelAll();
}

void TransferRelay::OnOwn(Event event) {
  const auto* done = std::get_if<PullDone>(&event);
  const auto* failed = std::get_if<PullFailed>(&event);
  if (done == nullptr && failed == nullptr) return post_(std::move(event));
  const int64_t pull = done != nullptr ? done->pull : failed->pull;
  BatchEnds({member_->name(), 0}, pull, std::move(event));
}

void TransferRelay::BatchEnds(const Batch& batch, int64_t pull, Event event) {
  {
    const std::lock_guard lock(mutex_);
    if (!pulling_ || pull != pull_ || batches_.erase(batch) == 0) return;
    if (const auto* done = std::get_if<PullDone>(&event)) {
      pulled_bytes_ += done->bytes;
      if (!batches_.empty()) return;
      event = PullDone{pull, pulled_bytes_};
    }
    pulling_ = false;  // what others still do ends with the next pull
  }
  post_(std::move(event));
}

void TransferRelay::OnLost(const NodeId& peer) {
  std::vector<Event> events;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, unused] : pushes_[peer]) {
      events.push_back(PushShardDone{id, ShardPushStatus::kFailed,
                                     absl::StrCat("shard ", id.shard, ": ", peer, " is lost"), 0});
    }
    pushes_.erase(peer);
    const bool waits = std::any_of(batches_.begin(), batches_.end(),
                                   [&](const Batch& batch) { return batch.first == peer; });
    if (pulling_ && waits) {
      pulling_ = false;
      events.push_back(PullFailed{pull_, PullFailure::kError, kNoVersion,
                                  absl::StrCat(peer, ", which pulls a part, is lost")});
    }
  }
  for (Event& event : events) post_(std::move(event));
}

// ------------------------------------------------------------------- on the link's thread ----

void TransferRelay::On(const NodeId& from, const PushShardDone& done) {
  {
    const std::lock_guard lock(mutex_);
    const auto sender = pushes_.find(from);
    if (sender == pushes_.end() || sender->second.erase(done.push) == 0) return;
  }
  post_(done);
}

void TransferRelay::On(const NodeId& from, const PullDone& done) {
  BatchEnds({from, done.batch}, done.pull, done);
}

void TransferRelay::On(const NodeId& from, PullFailed failed) {
  failed.reason = absl::StrCat(from, ": ", failed.reason);
  BatchEnds({from, failed.batch}, failed.pull, failed);
}

void TransferRelay::On(const NodeId& from, PushShards call) {
  serving_.Add([this, from, call = std::move(call)] {
    if (Leads(from)) Serve(call);
  });
}

void TransferRelay::On(const NodeId& from, StartPull call) {
  serving_.Add([this, from, call = std::move(call)] {
    if (Leads(from)) Serve(from, call);
  });
}

void TransferRelay::On(const NodeId& from, const CancelTransfersCall&) {
  serving_.Add([this, from] {
    if (!Leads(from)) return;
    served_.CancelAll();
    const std::lock_guard lock(mutex_);
    pulls_served_.clear();
  });
}

// ----------------------------------------------------------------------------- a follower's ----

bool TransferRelay::Leads(const NodeId& worker) const {
  const IslandPlan plan = member_->plan();
  return !plan.members.empty() && plan.members.front().worker == worker;
}

void TransferRelay::Serve(const PushShards& push) {
  if (StartPush(push, served_)) return;
  for (const ShardPart& part : push.shards) {
    OnServed(PushShardDone{MakePushId(push, part), ShardPushStatus::kFailed, "it is not here", 0});
  }
}

void TransferRelay::Serve(const NodeId& leader, StartPull pull) {
  {
    const std::lock_guard lock(mutex_);
    pulls_served_[next_served_] = {leader, pull.pull, pull.batch};
    pull.pull = next_served_++;
  }
  const std::shared_ptr<OuterState> outer = member_->outer_exchange().state();
  if (outer == nullptr) {
    return OnServed(PullFailed{pull.pull, PullFailure::kError, kNoVersion, "no plan is set up"});
  }
  served_.Pull(pull, outer->parts(), outer->pulled(), outer->base(), outer->tag().base,
               outer->pulled_moments());
}

void TransferRelay::OnServed(Event event) {
  if (const auto* done = std::get_if<PushShardDone>(&event)) {
    const IslandPlan plan = member_->plan();
    if (plan.members.empty()) return;
    return member_->calls().Notify(plan.members.front().worker, {.body = *done});
  }
  const auto answer = [this](auto ended) {
    Served served;
    {
      const std::lock_guard lock(mutex_);
      const auto found = pulls_served_.find(ended.pull);
      if (found == pulls_served_.end()) return;
      served = found->second;
      pulls_served_.erase(found);
    }
    ended.pull = served.pull;
    ended.batch = served.batch;
    member_->calls().Notify(served.leader, {.body = std::move(ended)});
  };
  if (const auto* done = std::get_if<PullDone>(&event)) return answer(*done);
  answer(std::get<PullFailed>(std::move(event)));
}

}  // namespace atl::worker

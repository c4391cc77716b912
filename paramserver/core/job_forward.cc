// Pushes of shards that another server holds too: they are pushed there as soon as they are durable
// here, again and again until that server has them or the contribution is decided. The other server
// takes them as it takes an island's, and says to the coordinator itself what it has staged.

#include <algorithm>
#include <utility>

#include "paramserver/core/job_driver.h"

namespace atl::ps {

// A destination that is new or has restarted may lack everything that was forwarded before.
void JobDriver::SetForwards(const AssignShards& message, Turn& turn) {
  std::map<ShardId, ForwardTo> forwards;
  for (const ForwardTo& to : message.forwards) {
    if (state_->HasShard(to.shard)) forwards[to.shard] = to;
  }
  const auto before = std::exchange(forwards_, std::move(forwards));
  std::erase_if(to_forward_, [&](const PushId& push) { return !forwards_.contains(push.shard); });
  if (forwards_ == before) return;
  std::set<PushId> pending;
  for (const auto& [sequence, push] : pending_) pending.insert(push.id);
  for (const PushId& push : state_->Staged()) {
    const auto to = forwards_.find(push.shard);
    if (to == forwards_.end() || pending.contains(push)) continue;
    const auto old = before.find(push.shard);
    if (old == before.end() || old->second != to->second) to_forward_.insert(push);
  }
  forward_retry_.at = kNever;
  ForwardStaged(turn);
}

void JobDriver::ForwardStaged(Turn& turn) {
  if (forward_retry_.Waits(turn.now)) return;
  const auto& transfers = server_->transfers;
  auto running =
      static_cast<size_t>(std::count_if(transfers.begin(), transfers.end(), [&](const auto& entry) {
        const Copying* copying = std::get_if<Copying>(&entry.second.what);
        if (copying == nullptr || entry.second.job != id()) return false;
        const auto to = forwards_.find(copying->id.shard);
        return to != forwards_.end() && to->second == copying->to;
      }));
  while (running < kForwardsAtOnce && !to_forward_.empty()) {
    auto next = to_forward_.upper_bound(forwarded_last_);
    if (next == to_forward_.end()) next = to_forward_.begin();
    const PushId push_id = forwarded_last_ = to_forward_.extract(next).value();
    std::optional<JobState::StagedPush> push = state_->FindPush(push_id);
    const auto to = forwards_.find(push_id.shard);
    if (!push || to == forwards_.end()) continue;  // decided, dropped or moved meanwhile
    ++running;
    turn.actions.forwards.push_back(
        {server_->Begin({push_id.job, Copying{push_id, to->second}}), push_id, push->encoding,
         push->elements, std::move(push->payload), to->second.endpoint, to->second.public_key});
  }
}

void JobDriver::OnTransferred(const Copying& copying, const PushForwarded& event, Turn& turn) {
  const auto to = forwards_.find(copying.id.shard);
  if (to != forwards_.end() && to->second == copying.to) {
    if (event.status.ok()) {
      forward_retry_.trouble.clear();
    } else {
      to_forward_.insert(copying.id);
      const std::string why(event.status.message());
      if (forward_retry_.Fail(turn.now, why)) {
        turn.Note(id(), absl::StrCat("a push cannot be copied to ", copying.to.endpoint,
                                     " and is retried: ", why));
      }
    }
  }
  ForwardStaged(turn);
}

}  // namespace atl::ps

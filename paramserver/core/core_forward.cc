// Pushes of shards that another server holds too: they are pushed there as soon as they are durable
// here, again and again until that server has them or the contribution is decided. The other server
// takes them as it takes an island's, and says to the coordinator itself what it has staged.

#include <algorithm>
#include <utility>

#include "paramserver/core/core.h"
#include "paramserver/core/turn.h"

namespace atl::ps {

// A destination that is new or has restarted may lack everything that was forwarded before.
void ServerCore::SetForwards(const AssignShards& message, Job& job, Turn& turn) {
  std::map<ShardId, ForwardTo> forwards;
  for (const ForwardTo& to : message.forwards) {
    if (job.state->HasShard(to.shard)) forwards[to.shard] = to;
  }
  const auto before = std::exchange(job.forwards, std::move(forwards));
  std::erase_if(job.to_forward, [&](const PushId& id) { return !job.forwards.contains(id.shard); });
  if (job.forwards == before) return;
  std::set<PushId> pending;
  for (const auto& [sequence, push] : job.pending) pending.insert(push.id);
  for (const PushId& id : job.state->Staged()) {
    const auto to = job.forwards.find(id.shard);
    if (to == job.forwards.end() || pending.contains(id)) continue;
    const auto old = before.find(id.shard);
    if (old == before.end() || old->second != to->second) job.to_forward.insert(id);
  }
  job.next_forward = kNever;
  ForwardStaged(job, turn);
}

void ServerCore::ForwardStaged(Job& job, Turn& turn) {
  if (job.next_forward != kNever && turn.now < job.next_forward) return;
  job.next_forward = kNever;
  auto running = static_cast<size_t>(
      std::count_if(forwarding_.begin(), forwarding_.end(), [&](const auto& entry) {
        const auto to = job.forwards.find(entry.second.id.shard);
        return entry.second.id.job == job.state->job() && to != job.forwards.end() &&
               to->second == entry.second.to;
      }));
  while (running < kForwardsAtOnce && !job.to_forward.empty()) {
    auto next = job.to_forward.upper_bound(job.forwarded_last);
    if (next == job.to_forward.end()) next = job.to_forward.begin();
    const PushId id = job.forwarded_last = job.to_forward.extract(next).value();
    std::optional<JobState::StagedPush> push = job.state->FindPush(id);
    const auto to = job.forwards.find(id.shard);
    if (!push || to == job.forwards.end()) continue;  // decided, dropped or moved meanwhile
    const Token token = next_transfer_++;
    forwarding_[token] = {id, to->second};
    ++running;
    turn.actions.forwards.push_back({token, id, push->encoding, push->elements,
                                     std::move(push->payload), to->second.endpoint,
                                     to->second.public_key});
  }
}

void ServerCore::On(const PushForwarded& event, Turn& turn) {
  if (auto part = contributed_.extract(event.token)) {
    return OnContributed(part.mapped(), event.status, turn);
  }
  const auto found = forwarding_.find(event.token);
  if (found == forwarding_.end()) return;
  const Forwarding forward = std::move(forwarding_.extract(found).mapped());
  Job* job = Usable(forward.id.job);
  if (job == nullptr) return;
  const auto to = job->forwards.find(forward.id.shard);
  if (to != job->forwards.end() && to->second == forward.to) {
    if (event.status.ok()) {
      job->forward_trouble.clear();
    } else {
      job->to_forward.insert(forward.id);
      job->next_forward = turn.now + kRetryInterval;
      const std::string why(event.status.message());
      if (std::exchange(job->forward_trouble, why) != why) {
        turn.actions.notes.push_back(absl::StrCat("job ", forward.id.job,
                                                  ": a push cannot be copied to ",
                                                  forward.to.endpoint, " and is retried: ", why));
      }
    }
  }
  ForwardStaged(*job, turn);
}

}  // namespace atl::ps

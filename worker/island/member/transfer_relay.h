// Pushes and pulls of an island: every member moves what it owns over its own uplink. The leader's
// relay sends the others their share over the peer link and gets the results; a follower's carries
// it out. A worker alone moves all by itself.
//
// Threads: Push, Pull and CancelAll are for the event loop's thread; `post` runs on any, and must
// not wait for the event loop's.

#ifndef ATOLL_WORKER_ISLAND_MEMBER_TRANSFER_RELAY_H_
#define ATOLL_WORKER_ISLAND_MEMBER_TRANSFER_RELAY_H_

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "worker/core/actions.h"
#include "worker/island/member/member.h"
#include "worker/outer/transfers.h"
#include "worker/work_queue.h"

namespace atl::worker {

class TransferRelay {
 public:
  // Both outlive it.
  TransferRelay(GroupMember* member, TensorClient* client, std::function<void(Event)> post);
  ~TransferRelay();

  // One PushShardDone for each part.
  void Push(const PushShards& order);
  // All shards, in this order, begun by each member at another one: PullDone or PullFailed. What an
  // earlier pull still does ends first.
  void Pull(const StartPull& order);
  // Nothing that was going on posts anything or touches this worker's buffers any more; the other
  // members end what they do soon.
  void CancelAll();

  int64_t started() const { return own_.started() + served_.started(); }
  int64_t running() const { return own_.running() + served_.running(); }

 private:
  using Batch = std::pair<NodeId, int32_t>;  // a member's part of a pull, in several messages
  struct Served {
    NodeId leader;
    int64_t pull = 0;
    int32_t batch = 0;
  };

  // On the link's thread.
  void On(const NodeId& from, PushShards call);
  void On(const NodeId& from, StartPull call);
  void On(const NodeId& from, const CancelTransfersCall& call);
  void On(const NodeId& from, const PushShardDone& done);
  void On(const NodeId& from, const PullDone& done);
  void On(const NodeId& from, PullFailed failed);
  void On(const NodeId& from, const GroupMember::Lost&) { OnLost(from); }
  // On serving_'s.
  bool Leads(const NodeId& worker) const;
  void Serve(const PushShards& push);
  void Serve(const NodeId& leader, StartPull pull);
  void OnOwn(Event event);
  void OnServed(Event event);
  void OnLost(const NodeId& peer);
  void BatchEnds(const Batch& batch, int64_t pull, Event event);
  // Groups the parts of these shards by the member that owns them, in the shards' order.
  std::map<NodeId, std::vector<ShardPart>> GroupPartsByOwner(
      const std::vector<ShardPart>& shards) const;
  std::map<NodeId, PushShards> SplitByOwner(const PushShards& order) const;
  std::map<NodeId, StartPull> SplitByOwner(const StartPull& order) const;
  // False: what is to be pushed is not here.
  bool StartPush(const PushShards& share, Transfers& transfers) const;
  void SendCancel();

  GroupMember* const member_;
  const std::function<void(Event)> post_;
  std::mutex mutex_;  // guards all below
  int64_t pull_ = 0;  // the newest
  bool pulling_ = false;
  int64_t pulled_bytes_ = 0;
  std::set<Batch> batches_;                          // of it, that have not ended
  std::map<NodeId, std::map<PushId, bool>> pushes_;  // given to other members
  std::map<int64_t, Served> pulls_served_;           // by their numbers here
  int64_t next_served_ = 1;
  Transfers own_, served_;
  WorkQueue serving_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_TRANSFER_RELAY_H_

// Calls of a member to others: what it sends them, the replies that it awaits, and the elements of
// layers that come and go in answer to calls.
//
// Threads: all of it is for any thread but Use; what is documented as the link's must not be
// delayed, and does not wait. Awaits and FetchLayer block; Fail ends them, with that error.

#ifndef ATOLL_WORKER_ISLAND_MEMBER_GROUP_CALLS_H_
#define ATOLL_WORKER_ISLAND_MEMBER_GROUP_CALLS_H_

#include <functional>
#include <memory>
#include <string>

#include "common/net/peer/peer_link.h"
#include "worker/island/member/calls.h"
#include "worker/island/member/member_state.h"

namespace atl::worker {

// Another member requests elements of a layer: chunks that belong to its call, and then a reply.
struct LayerRequest {
  NodeId from;
  CallId call = 0;
  GetLayerCall what;
};

struct GroupCallsOptions {
  Duration timeout{};            // of calls; of layers: of the next chunk
  int64_t queued_bytes_max = 0;  // PeerLinkOptions'
  // A chunk that was sent has arrived; from the link's thread. May be null.
  std::function<void()> on_arrival;
};

class GroupCalls : public Calls {
 public:
  // `state` outlives it.
  GroupCalls(MemberState* state, GroupCallsOptions options)
      : state_(state), options_(std::move(options)) {}
  // Sets the link, before all else. It exists for as long as anything is sent.
  void Use(PeerLink* link) { link_ = link; }

  // ---- To other members; never waits. ----
  // Sends a frame's body; the reply is awaited with Await. An error: the call is not under way.
  absl::StatusOr<CallId> Call(const NodeId& to, GroupFrame frame);
  // No reply; lost with the peer.
  void Notify(const NodeId& to, GroupFrame frame);
  void Reply(const NodeId& to, CallId call, GroupReply reply);
  // Sends parts in chunks. Of what is larger than an eighth of the link's queue the first leave,
  // and each that arrives lets others follow. An error: none does. Later failures show at the
  // receiver, as missing chunks.
  absl::Status SendParts(const LayerRequest& request,
                         const std::shared_ptr<const OwnedParts>& parts);

  // ---- What comes of them. ----
  // Elements of another member's shard, of its devices' or as `of` says. What is behind `out` must
  // last until it has returned. NOT_FOUND: it has none.
  absl::Status FetchLayer(const NodeId& from, const LayerShard& shard, Range elements,
                          GetLayerCall of, const ShardParts& out);

  // ---- On the link's thread. ----
  void OnReply(const NodeId& from, GroupFrame frame);
  void OnClockCall(const NodeId& from, CallId call, const ClockCall& clock);

 private:
  absl::Status Send(const NodeId& to, const GroupFrame& frame);

  MemberState* const state_;
  const GroupCallsOptions options_;
  PeerLink* link_ = nullptr;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_GROUP_CALLS_H_

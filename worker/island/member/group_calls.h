// Calls of a member to others: what it sends them, the replies that it awaits, and the elements of
// layers that come and go in answer to calls.
//
// Threads: all of it is for any thread but Use; what is documented as the link's must not be
// delayed, and does not wait. Awaits and FetchLayer block; Fail ends them, with that error.

#ifndef ATOLL_WORKER_ISLAND_MEMBER_GROUP_CALLS_H_
#define ATOLL_WORKER_ISLAND_MEMBER_GROUP_CALLS_H_

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/net/peer/peer_link.h"
#include "common/status.h"
#include "common/time.h"
#include "worker/island/member/member_state.h"
#include "worker/island/messages/wire.h"
#include "worker/state/parts.h"

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

// Every call that was begun ends with one Await; one whose answer has chunks, and that was replied
// to, with one AwaitChunks or Drop after that. Times are SteadyNow's.
class GroupCalls {
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
  // `what`: "get layer 3", for errors. Chunks go to these parts until the call ends.
  CallId Begin(const NodeId& to, std::string what, PartMap parts = {});
  // The reply, if its status is OK. Errors name the callee: DEADLINE_EXCEEDED, UNAVAILABLE (lost),
  // ABORTED (Fail), or what the callee says.
  absl::StatusOr<GroupReply> Await(CallId id, Duration timeout);
  // DEADLINE_EXCEEDED: no chunk came for as long as `patience`, or not all by `last`.
  absl::Status AwaitChunks(CallId id, Duration patience, Instant last);
  void Drop(CallId id);
  void Fail(const absl::Status& why);  // all that wait
  // Elements of another member's shard, of its devices' or as `of` says. What is behind `out` must
  // last until it has returned. NOT_FOUND: it has none.
  absl::Status FetchLayer(const NodeId& from, const LayerShard& shard, Range elements,
                          GetLayerCall of, const ShardParts& out);

  // ---- On the link's thread. A reply or chunk for which no call waits (any more), or of an
  // earlier attempt, is dropped. ----
  void OnReply(const NodeId& from, GroupFrame frame);
  absl::Status AdmitChunk(absl::string_view header, int64_t payload_bytes);
  void OnChunk(Instant now, const PeerDelivery& delivery);
  void OnPeerLost(const NodeId& peer, const std::string& reason);
  void OnClockCall(const NodeId& from, CallId call, const ClockCall& clock);

 private:
  struct Waiting {
    NodeId to;
    std::string what;
    Instant since{};
    std::optional<absl::StatusOr<GroupReply>> result;
    PartMap parts;
    std::map<int32_t, int64_t> next;  // element expected of each part
    int64_t elements = 0;             // in all
    int64_t missing = 0;              // of them
    Instant grown_at{};               // by the newest chunk
    absl::Status chunks;              // why no more of them count

    void Fail(const absl::Status& why);
  };
  static void Put(Waiting& waiting, const ChunkHeader& header, const PeerDelivery& delivery);
  void Fail(CallId id, const absl::Status& why);
  absl::Status Send(const NodeId& to, const GroupFrame& frame);

  MemberState* const state_;
  const GroupCallsOptions options_;
  PeerLink* link_ = nullptr;

  std::mutex mutex_;
  std::condition_variable changed_;
  CallId next_ = 1;                  // guarded by mutex_
  std::map<CallId, Waiting> calls_;  // guarded by mutex_
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_GROUP_CALLS_H_

// Calls that wait for their replies, and for the chunks of layer state that belong to them.

#ifndef ATOLL_WORKER_ISLAND_MEMBER_CALLS_H_
#define ATOLL_WORKER_ISLAND_MEMBER_CALLS_H_

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "common/net/peer/peer_link.h"
#include "common/status.h"
#include "common/time.h"
#include "proto/group.plain.h"
#include "worker/island/messages/wire.h"
#include "worker/state/parts.h"

namespace atl::worker {

// Thread-safe. Every call that was begun ends with one Await; one whose answer has chunks, and that
// was replied to, with one AwaitChunks or Drop after that. Times are SteadyNow's.
class Calls {
 public:
  // `what`: "get layer 3", for errors. Chunks go to these parts until the call ends.
  CallId Begin(const NodeId& to, std::string what, PartMap parts = {});
  // The reply, if its status is OK. Errors name the callee: DEADLINE_EXCEEDED, UNAVAILABLE (lost),
  // ABORTED (Fail), or what the callee says.
  absl::StatusOr<GroupReply> Await(CallId id, Duration timeout);
  // DEADLINE_EXCEEDED: no chunk came for as long as `patience`, or not all by `last`.
  absl::Status AwaitChunks(CallId id, Duration patience, Instant last);
  void Drop(CallId id);

  // A reply or chunk for which no call waits (any more) is dropped.
  void OnReply(const NodeId& from, CallId id, GroupReply reply);
  absl::Status AdmitChunk(absl::string_view header, int64_t payload_bytes);
  void OnChunk(Instant now, const PeerDelivery& delivery);
  void OnPeerLost(const NodeId& peer, const std::string& reason);
  void Fail(const absl::Status& why);  // all that wait
  // Drops chunks of earlier attempts, and takes no more of them.
  void BeginEpoch(int64_t epoch);

 protected:
  void Fail(CallId id, const absl::Status& why);

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

  std::mutex mutex_;
  std::condition_variable changed_;
  CallId next_ = 1;  // all guarded by mutex_
  int64_t epoch_ = 0;
  std::map<CallId, Waiting> calls_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_CALLS_H_

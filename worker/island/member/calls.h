// Calls that wait for their replies, and chunks of layer state that wait for their destination.

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

// Thread-safe. Every call that was begun ends with one Await.
class Calls {
 public:
  CallId Begin(const NodeId& to, std::string what);  // "get layer 3": for errors
  // The reply, if its status is OK. Errors name the callee: DEADLINE_EXCEEDED, UNAVAILABLE (lost),
  // ABORTED (Fail), or what the callee says.
  absl::StatusOr<GroupReply> Await(CallId id, Instant deadline);

  // A reply for which no call waits (any more) is dropped.
  void OnReply(const NodeId& from, CallId id, GroupReply reply);
  void OnPeerLost(const NodeId& peer, const std::string& reason);
  void Fail(CallId id, const absl::Status& why);
  void Fail(const absl::Status& why);  // all that wait

 private:
  struct Waiting {
    NodeId to;
    std::string what;
    Instant since{};
    std::optional<absl::StatusOr<GroupReply>> result;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  CallId next_ = 1;                  // guarded by mutex_
  std::map<CallId, Waiting> calls_;  // guarded by mutex_
};

// Puts the chunks that answer a call into their destination, which is registered before the call is
// sent; chunks of a call that has ended are dropped. Thread-safe. Times are SteadyNow's.
class StateInbox {
 public:
  struct Key {
    NodeId from;
    CallId call = 0;
    auto operator<=>(const Key&) const = default;
  };
  // Chunks of `key` go here until Await has returned. `what` they are, for errors.
  void Expect(const Key& key, PartMap parts, std::string what);
  // DEADLINE_EXCEEDED: nothing came for as long as `patience`, or not all by `last`.
  absl::Status Await(const Key& key, Duration patience, Instant last);
  void Drop(const Key& key);  // instead of Await

  absl::Status Admit(const NodeId& from, absl::string_view header, int64_t payload_bytes);
  void OnChunk(Instant now, PeerDelivery delivery);
  void OnPeerLost(const NodeId& peer, const std::string& reason);
  void Fail(const absl::Status& why);
  // Drops chunks of earlier attempts, and takes no more of them.
  void BeginEpoch(int64_t epoch);

 private:
  struct Incoming {
    PartMap parts;
    std::string what;
    std::map<int32_t, int64_t> next;  // element expected of each part
    int64_t elements = 0;             // in all
    int64_t missing = 0;              // of them
    Instant grown_at{};               // by the newest chunk
    absl::Status status;
  };
  struct Chunk {
    ChunkHeader header;
    PeerDelivery delivery;
    Instant at;
  };
  static void Put(Incoming& incoming, const Chunk& chunk);

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t epoch_ = 0;  // all guarded by mutex_
  std::map<Key, Incoming> incoming_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_CALLS_H_

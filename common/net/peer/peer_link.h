// Point-to-point (P2P) messages between the workers of an island: commands, activations and
// gradients, layer state, blocks of collectives.
//
// Every worker has one link: an endpoint that it binds, and connections to each other member of the
// island's plan, one for commands and one or more for bytes in bulk, as many as bandwidth and
// latency turn out to need (path_connections.h), so that a command never stands behind a tensor.
// Messages of one channel from one worker to another arrive in the order in which they were sent,
// whole and checked, or not at all; nothing is sent twice. The bytes on the wire are in
// proto/frame.proto.
//
// Edges. A worker may bind up to 4 endpoints, each in another network. Between two workers there
// are as many edges as the one with more endpoints has: edge i connects their i-th endpoints, or
// the last where there are fewer. Edge 0 carries commands. Bytes in bulk go over all edges: each
// takes the next chunk as soon as it has room for it. An edge after the first that cannot be
// connected is not used until it can; one that is lost in use loses the peer.
//
// Fencing. SetPeers sets the plan and its members. A message is delivered only when
// both ends are at the same job, generation and plan, sent by the incarnation that the plan names.
// A peer with an older plan is refused; one with a newer plan waits until we follow.
//
// A peer is LOST at once when its connection breaks, when it answers no ping (a heartbeat, every
// 0.5 s) for 6 s, or when it breaks the protocol (a wrong checksum, bytes that were not granted).
// It stays lost until the next SetPeers: its user aborts the common work and starts again.
//
// Backpressure. Memory is bounded whatever a peer does: the receiver grants every sender so many
// bytes of each channel, counted from the description's arrival until PeerDelivery dies; the
// handler admits a message before memory is taken for it. A sender's queue is bounded in messages
// and bytes.

#ifndef ATOLL_COMMON_NET_PEER_PEER_LINK_H_
#define ATOLL_COMMON_NET_PEER_PEER_LINK_H_

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/net/payload.h"
#include "common/net/peer/peer_fence.h"
#include "common/net/security.h"
#include "common/protocol/island_plan.h"
#include "common/status.h"
#include "common/time.h"

namespace atl {

// Each is a queue of its own with a credit of its own. Where several wait, tensors go before state,
// and both before collectives: an awaited activation is never behind a layer's gradients.
enum class PeerChannel : uint8_t { kCommand = 0, kTensor = 1, kState = 2, kCollective = 3 };
inline constexpr int kPeerChannels = 4;
inline constexpr size_t kPeerHeaderBytesMax = 512;

// How long a message took: in our queue, and from its first byte's departure to its last one's
// arrival (half of the quickest round trip is taken off the time of the receipt).
struct PeerTiming {
  Duration queued{0};
  Duration travelled{0};
};

// A message to send.
struct PeerMessage {
  PeerChannel channel = PeerChannel::kCommand;
  std::string header;                  // at most kPeerHeaderBytesMax
  std::span<const std::byte> payload;  // unchanged for as long as `owner` is kept here
  std::shared_ptr<const void> owner;
  // XXH3 of the payload, where its maker knows it anyway. Used without keys, if it is one chunk.
  std::optional<uint64_t> checksum = std::nullopt;

  // Optional, each called once, on the network thread. `left`: the last byte has been handed to
  // the kernel, whose buffer is kept short: the moment at which the next sender of a shared link
  // may start. `arrived`: the other end has it, or refused it.
  std::function<void(absl::Status)> left;
  std::function<void(absl::Status, PeerTiming)> arrived;
};

// A message that has arrived. It counts against the sender's credit until it is destroyed.
struct PeerDelivery {
  PeerFence fence;  // under which it came
  NodeId from;
  PeerChannel channel = PeerChannel::kCommand;
  std::string header;
  Payload payload;
  // The XXH3 that the payload must have: on kCollective the receiver checks it while it adds up.
  // Absent where it has been checked.
  std::optional<uint64_t> checksum = std::nullopt;
  std::shared_ptr<const void> credit;
};

// All calls come on the link's network thread, which must not wait, and none of a fence after
// the SetPeers that replaced it has returned.
class PeerHandler {
 public:
  virtual ~PeerHandler() = default;

  // Decides whether to take a message of which only this much has come. A refused one is dropped,
  // no memory is taken for it, and its sender's `arrived` gets the reason.
  virtual absl::Status Admit(const NodeId& from, PeerChannel channel, absl::string_view header,
                             int64_t payload_bytes) = 0;
  virtual void OnMessage(PeerDelivery delivery) = 0;
  // At most once for each peer and SetPeers.
  virtual void OnPeerLost(const NodeId& peer, const std::string& reason) = 0;
};

struct PeerLinkOptions {
  NodeId name;
  Incarnation incarnation = 0;
  std::string endpoint = "tcp://127.0.0.1:*";    // port "*": any that is free
  std::vector<std::string> more_endpoints = {};  // in further networks; kPeerEndpointsMax in all
  KeyPair keys;  // with keys, only members whose keys the plan names get in
  bool allow_plaintext_beyond_loopback = false;
  int io_threads = 1;
  int connections = 1;  // for bytes in bulk, from the start; at least one an edge, 4 at most
  int64_t chunk_bytes = int64_t{1} << 20;  // of several edges: kStripeBytes at most

  // Granted to every peer, by channel, in payload bytes plus kPeerMessageCost a message. A message
  // that does not fit alone is refused at Send. All-reduces of several groups wait for each other's
  // layers here, so their window is no queue's but larger than what one worker may have to add up.
  std::array<int64_t, kPeerChannels> window_bytes = {int64_t{8} << 20, int64_t{1} << 30,
                                                     int64_t{256} << 20, int64_t{16} << 30};
  Duration silence_max = std::chrono::seconds(6);  // of its network thread; then it is lost
  // Others' that have said hello. With more, those that wait for a plan are refused, oldest first.
  int connections_max = 4096;
  // Waiting to be sent to one peer.
  int64_t queued_bytes_max = int64_t{4} << 30;
  int queued_messages_max = 16384;
};
inline constexpr int64_t kPeerMessageCost = 1024;
inline constexpr int64_t kStripeBytes = int64_t{256} << 10;

// Counters of a peer since the link was made. All grow only, but for the round trip.
struct PeerCounters {
  NodeId peer;
  int64_t messages_sent = 0;
  int64_t payload_bytes_sent = 0;
  int64_t messages_received = 0;
  int64_t payload_bytes_received = 0;
  int64_t messages_refused = 0;  // that it sent and our handler did not admit
  int64_t frames_refused = 0;    // that it sent and that break the protocol, or are of another plan
  int64_t times_lost = 0;
  std::array<int64_t, kPeerEndpointsMax> edge_bytes_sent = {};  // payload_bytes_sent, by edge
  std::array<int64_t, kPeerEndpointsMax> edge_bytes_received = {};
  Duration round_trip{0};  // quickest of the last pings; 0: not known yet
};

// A connection of its own to another worker, to time bytes that are dropped. One thread at a time;
// the link that made it outlives it.
class PeerSampler {
 public:
  virtual ~PeerSampler() = default;
  // Seconds until the other end has said that so many bytes have come. PERMISSION_DENIED: it does
  // not take them, from us or yet.
  virtual absl::StatusOr<double> Time(int64_t bytes, Duration timeout) = 0;
};

class PeerLink {
 public:
  // Binds and starts. `handler` outlives the link.
  static absl::StatusOr<std::unique_ptr<PeerLink>> Create(PeerLinkOptions options,
                                                          PeerHandler* handler);
  // Whatever waits fails with Cancelled; no call of the handler's runs after this.
  virtual ~PeerLink() = default;
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  virtual const NodeId& name() const = 0;
  // The endpoint bound, with its real port.
  virtual const std::string& endpoint() const = 0;
  virtual const std::vector<std::string>& more_endpoints() const = 0;
  virtual int EdgesTo(const IslandMember& member) const = 0;
  // Returns whether payloads travel with checksums: without keys, where nothing else protects them.
  virtual bool has_checksums() const = 0;

  // From now on messages are sent under `fence` to these members (ourselves among them or not).
  // What is queued under another fence fails with Aborted; what has half arrived is dropped.
  // Connections to members that stay are kept. With the fence and the members that are in force
  // already, it only meets lost peers again. An error changes nothing and names the member.
  // Thread-safe, but not for callbacks: it waits for the network thread.
  virtual absl::Status SetPeers(const PeerFence& fence,
                                const std::vector<IslandMember>& members) = 0;

  // Waits until every peer, or each of these, has accepted us under the present fence. The error
  // names those that have not and why. Thread-safe, but not for callbacks.
  virtual absl::Status AwaitPeers(Instant deadline, const std::vector<NodeId>& peers = {}) = 0;

  // Queues a message; never waits. What can be refused at once is returned, and then no callback
  // comes: a message that is too big (InvalidArgument), a full queue (ResourceExhausted), a peer
  // that is not one or is lost (Unavailable, with the reason). Thread-safe, callbacks too.
  virtual absl::Status Send(const NodeId& to, PeerMessage message) = 0;

  // Returns whether the peer is lost under the present fence. Thread-safe.
  virtual bool IsLost(const NodeId& peer) const = 0;
  // Peers to which no connection could be made for at least so long, though it was tried all the
  // time, and why. One that is connected and does not follow to our plan is none. Thread-safe.
  virtual std::vector<std::pair<NodeId, std::string>> Unconnected(Duration at_least) const = 0;
  // Checks whether members answer at all, whatever our peers and plan are: opens a connection of
  // its own to each, all at once, until the other end has greeted or refused an unknown peer, by
  // its key if it has one. Some hundred bytes; nothing else notices. Returns those that have not
  // answered within `limit`, and why. Thread-safe, but not for callbacks.
  virtual std::vector<std::pair<NodeId, std::string>> Probe(
      const std::vector<IslandMember>& members, Duration limit) const = 0;
  // Takes samples of these for so long, whatever our peers and plan are;
  // replaces those before. Thread-safe, but not for callbacks.
  virtual void SetTemporaryPeers(const std::vector<IslandMember>& temporary_peers,
                                 Duration for_so_long) = 0;
  // Connects over an edge within `limit`, whatever our peers are. Thread-safe, but not for
  // callbacks.
  virtual absl::StatusOr<std::unique_ptr<PeerSampler>> Sample(const IslandMember& member, int edge,
                                                              Duration limit) const = 0;
  // Counts the peer as lost, for a reason that the caller knows; the peer is notified.
  virtual void Lose(const NodeId& peer, const std::string& reason) = 0;

  // Drops what is queued on the channel, for all peers, and not begun; it fails with Aborted.
  virtual void DropQueued(PeerChannel channel) = 0;

  virtual std::vector<PeerCounters> counters() const = 0;  // thread-safe
  // Frames of strangers and broken frames that belong to no peer.
  virtual int64_t frames_refused() const = 0;

 protected:
  PeerLink() = default;

 private:
  class Impl;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_PEER_PEER_LINK_H_

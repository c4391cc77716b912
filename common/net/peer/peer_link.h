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
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/net/chunks.h"
#include "common/net/link_end.h"
#include "common/net/path_connections.h"
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
  // Seconds until the other end has said that so many bytes have come. PERMISSION_DENIED: it does
  // not take them, from us or yet.
  absl::StatusOr<double> Time(int64_t bytes, Duration timeout);

 private:
  friend class PeerLink;
  PeerSampler(const PeerLinkOptions& options, const IslandMember& to,
              std::unique_ptr<LinkClient> link);
  absl::Status Await(short events, Instant deadline);
  absl::Status Send(int64_t chunk, bool last, Instant deadline);
  absl::Status Answered(Instant deadline);

  const int64_t chunk_bytes_;
  const NodeId to_;
  const std::shared_ptr<std::vector<std::byte>> bytes_;  // libzmq holds them, too
  v1::PeerSample sample_;
  uint64_t number_ = 0;
  const std::unique_ptr<LinkClient> link_;
};

// Lane 0 carries commands over edge 0, the others carry the other channels over the edges in turn:
// one each, and more where the path needs them (path_connections.h). Lane 1 has what is one for all
// of these: credit, and the numbers of messages.
inline constexpr int kLanes = kPeerLanesMax;
static_assert(kLanes == 1 + kPeerEndpointsMax);
inline constexpr int SelectLane(int channel) { return channel == 0 ? 0 : 1; }
inline constexpr bool Carries(int lane, int channel) { return (lane == 0) == (channel == 0); }
inline constexpr int EdgeFromLane(int lane, int edges) {
  return lane == 0 ? 0 : (lane - 1) % edges;
}

int CountEdges(const PeerLinkOptions& options, const IslandMember& member);
// The member's endpoint of this edge.
const std::string& GetEdgeEndpoint(const IslandMember& member, int edge);
// Returns the address to connect to: with our own address of the edge, in libzmq's form, after the
// first edge.
std::string GetEdgeAddress(const PeerLinkOptions& options, const IslandMember& member, int edge);

class PeerLink : private LinkEnd {
 public:
  // Binds and starts. `handler` outlives the link.
  static absl::StatusOr<std::unique_ptr<PeerLink>> Create(PeerLinkOptions options,
                                                          PeerHandler* handler);
  // Whatever waits fails with Cancelled; no call of the handler's runs after this.
  ~PeerLink();

  using LinkEnd::ListUnreached;
  using LinkEnd::UseOwnRelay;

  const NodeId& name() const { return options_.name; }
  // The endpoint bound, with its real port.
  const std::string& endpoint() const { return endpoint_; }
  const std::vector<std::string>& more_endpoints() const { return more_endpoints_; }
  int EdgesTo(const IslandMember& member) const { return CountEdges(options_, member); }
  // Returns whether payloads travel with checksums: without keys, where nothing else protects them.
  bool has_checksums() const { return options_.keys.empty(); }

  // From now on messages are sent under `fence` to these members (ourselves among them or not).
  // What is queued under another fence fails with Aborted; what has half arrived is dropped.
  // Connections to members that stay are kept. With the fence and the members that are in force
  // already, it only meets lost peers again. An error changes nothing and names the member.
  // Thread-safe, but not for callbacks: it waits for the network thread.
  absl::Status SetPeers(const PeerFence& fence, const std::vector<IslandMember>& members);

  // Waits until every peer, or each of these, has accepted us under the present fence. The error
  // names those that have not and why. Thread-safe, but not for callbacks.
  absl::Status AwaitPeers(Instant deadline, const std::vector<NodeId>& peers = {});

  // Queues a message; never waits. What can be refused at once is returned, and then no callback
  // comes: a message that is too big (InvalidArgument), a full queue (ResourceExhausted), a peer
  // that is not one or is lost (Unavailable, with the reason). Thread-safe, callbacks too.
  absl::Status Send(const NodeId& to, PeerMessage message);

  // Returns whether the peer is lost under the present fence. Thread-safe.
  bool IsLost(const NodeId& peer) const;
  // Peers to which no connection could be made for at least so long, though it was tried all the
  // time, and why. One that is connected and does not follow to our plan is none. Thread-safe.
  std::vector<std::pair<NodeId, std::string>> Unconnected(Duration at_least) const;
  // Checks whether members answer at all, whatever our peers and plan are: opens a connection of
  // its own to each, all at once, until the other end has greeted or refused an unknown peer, by
  // its key if it has one. Some hundred bytes; nothing else notices. Returns those that have not
  // answered within `limit`, and why. Thread-safe, but not for callbacks.
  std::vector<std::pair<NodeId, std::string>> Probe(const std::vector<IslandMember>& members,
                                                    Duration limit) const;
  // Takes samples of these for so long, whatever our peers and plan are;
  // replaces those before. Thread-safe, but not for callbacks.
  void SetTemporaryPeers(const std::vector<IslandMember>& temporary_peers, Duration for_so_long);
  // Connects over an edge within `limit`, whatever our peers are. Thread-safe, but not for
  // callbacks.
  absl::StatusOr<std::unique_ptr<PeerSampler>> Sample(const IslandMember& member, int edge,
                                                      Duration limit) const;
  // Counts the peer as lost, for a reason that the caller knows; the peer is notified.
  void Lose(const NodeId& peer, const std::string& reason);

  // Others reach this end through these relays from now on, too. Thread-safe.
  void AcceptThrough(std::vector<LinkWay> relays) {
    tasks_->Post([this, relays = std::move(relays)] { link_->AcceptThrough(relays); });
  }
  // The relay, "host:port", through which connections to the member were made last; empty: none, or
  // there are no connections. Thread-safe.
  std::string FindRelay(const IslandMember& member) const;

  // Drops what is queued on the channel, for all peers, and not begun; it fails with Aborted.
  void DropQueued(PeerChannel channel);

  std::vector<PeerCounters> counters() const;  // thread-safe
  // Frames of strangers and broken frames that belong to no peer.
  int64_t frames_refused() const;

 private:
  PeerLink(PeerLinkOptions options, PeerHandler* handler)
      : LinkEnd(kIdleBytesMax, kUnsentBytesMax), options_(std::move(options)), handler_(handler) {}
  absl::Status Start();

  static constexpr char kNotFollowed[] = "it has not followed to our plan yet";
  static constexpr char kNoConnection[] = "no connection yet";
  static constexpr int64_t kIdleBytesMax = int64_t{256} << 20;
  static constexpr int64_t kUnsentBytesMax = int64_t{64} << 20;

  // Posts a task when it dies, on whatever thread.
  class AtEnd {
   public:
    AtEnd(std::shared_ptr<TaskQueue> tasks, std::function<void()> task)
        : tasks_(std::move(tasks)), task_(std::move(task)) {}
    ~AtEnd() { tasks_->Post(std::move(task_)); }
    AtEnd(const AtEnd&) = delete;
    AtEnd& operator=(const AtEnd&) = delete;

   private:
    const std::shared_ptr<TaskQueue> tasks_;
    std::function<void()> task_;
  };

  // ---- What is sent: our lanes to a peer. ----
  struct Outgoing {
    PeerMessage message;
    uint64_t round = 0;   // of SetPeers calls, in which it was sent
    uint64_t number = 0;  // on lane 0 or 1; 0: not begun
    int64_t sequence = 0;
    unsigned opened = 0;  // a bit for each lane
    bool wants_arrival = false;
    std::optional<OutgoingTensor> tensor;
    Instant queued;
    int64_t cost() const { return static_cast<int64_t>(message.payload.size()) + kPeerMessageCost; }
  };
  struct Lane : LinkConnection {
    int descriptor = -1;     // of its connection, which libzmq may have closed already
    bool hello_due = false;  // to be said when it is up
    bool welcomed = false;   // under the present fence
    uint64_t next_number = 1;
    uint64_t hello_number = 0;  // of the last one
    bool trouble_logged = false;
  };
  struct Arrival {
    std::function<void(absl::Status, PeerTiming)> arrived;
    Instant queued, begun;
  };
  struct Ping {
    uint64_t number = 0;
    Instant sent;
    Duration excused{0};  // meanwhile, in which we ourselves did not read
  };
  struct Peer {
    IslandMember member;
    int edges = 1;
    std::array<std::unique_ptr<Lane>, kLanes> lanes;            // none where there is no edge
    PathConnections path{ConnectionWindowBytes(), kLanes - 1};  // of lanes after the first
    int64_t chunk_bytes = 0;
    std::array<std::deque<Outgoing>, kPeerChannels> queues;
    std::array<int64_t, kPeerChannels> limit = {}, spent = {}, begun = {};
    std::map<std::pair<int, uint64_t>, Arrival> arrivals;  // by lane, 0 or 1, and number
    bool lost = false;
    uint64_t session = 0;      // grows with every fence and loss
    std::optional<Ping> ping;  // not answered yet
    Instant next_ping;
    std::deque<Duration> round_trips;

    bool welcomed() const { return lanes[0] && lanes[0]->welcomed && lanes[1]->welcomed; }
  };

  // ---- What is received: others' lanes to us. ----
  struct Incoming {
    int channel = 0;
    int64_t sequence = 0;
    uint64_t number = 0;
    unsigned opened = 0;  // a bit for each lane
    bool complete = false;
    std::string header;
    int64_t bytes = 0;
    bool wants_arrival = false;
    bool dropped = false;  // not admitted: its chunks are counted and discarded
    int64_t dropped_bytes = 0;
    bool stays = false;  // one chunk, which is delivered where it lies
    Payload payload;
    std::optional<uint64_t> checksum;  // still to be checked
    std::optional<IncomingTensor> tensor;
  };
  struct Route {
    std::string id;             // given by ROUTER
    uint64_t said = 0;          // when: of two hellos the later has the larger one
    uint64_t hello_number = 0;  // its answers and refusals repeat it
    v1::PeerHello hello;
    std::string key;  // that the connection proved
    bool welcomed = false;

    // Fields that lane 0 has, and lane 1 for all others.
    uint64_t session = 0;
    uint64_t last_number = 0;
    std::map<uint64_t, Incoming> incoming;  // by number, until it is delivered
    std::array<std::map<int64_t, uint64_t>, kPeerChannels> numbers;  // of these, by sequence
    std::array<int64_t, kPeerChannels> delivered = {};               // messages
    std::array<int64_t, kPeerChannels> granted = {}, received = {}, returned = {};

    std::string first_bulk;  // lanes after 1: the id of lane 1
  };

  // A worker that is a peer, or was one, as other threads see it.
  struct Entry {
    bool is_peer = false;
    bool lost = false;
    bool welcomed = false;
    std::string trouble = kNoConnection;
    std::optional<Instant> unconnected_since;
    int queued_messages = 0;
    int64_t queued_bytes = 0;
    PeerCounters counters;
  };

  // loop
  void AddTo(std::vector<Socket*>* sockets) override;
  Instant NextDue() const override;
  bool Turn() override;
  void ExcuseSilence();
  void Adopt(const PeerFence& fence, const std::vector<IslandMember>& members);
  void OpenDoor();  // for peers and samplers
  void StartPeer(Peer& peer);
  absl::Status Check(const PeerFence& fence, const std::vector<IslandMember>& members) const;
  absl::Status AddLanes(Peer& peer, int last);      // up to this one
  void Reset(Peer& peer, const absl::Status& why);  // ends all that is under way with it
  void OnPeerLost(const NodeId& name, std::string why);
  void Note(const Peer& peer, const std::string& trouble);
  void NoteConnection(const NodeId& name, bool connected);
  bool ReceiveSome();
  void Count(const NodeId& peer, int64_t PeerCounters::*counter);
  void CountStranger(int64_t frames = 1);
  Peer* Find(const NodeId& name);

  // lanes
  void Queue(const NodeId& to, Outgoing outgoing);
  bool WatchLane(Peer& peer, int lane);  // whether something has come
  void OnLaneEvent(Peer& peer, int lane, ConnectionEvent event, int descriptor);
  void NoteTrouble(Peer& peer, int lane, std::string trouble);
  bool PumpPeer(Peer& peer);  // whether there is more to send at once
  void SayHello(Peer& peer, int lane);
  bool SendNext(Peer& peer, int lane);
  void Begin(Peer& peer, int channel);
  bool IsBestLane(const Peer& peer, int lane, int channel) const;
  bool Open(Peer& peer, int lane, int channel);
  bool SendChunk(Peer& peer, int lane, Outgoing& outgoing);
  void Finish(Peer& peer, int channel);
  void Ping(Peer& peer);
  void OnLaneFrame(Peer& peer, int lane, LinkFrame& in);
  void OnWelcome(Peer& peer, int lane, const v1::PeerWelcome& welcome);
  void OnArrival(Peer& peer, int lane, uint64_t number, const v1::PeerArrival& arrival);
  void OnPong(Peer& peer, uint64_t number);
  void Fail(const NodeId& to, Outgoing outgoing, const absl::Status& why);
  void Unqueue(const NodeId& to, const Outgoing& outgoing);

  // routes
  void OnRouteFrame(LinkFrame& in);
  void OnHello(const std::string& id, const v1::Frame& frame, std::string key);
  bool MakeRoom();  // for another route
  void OnSample(const std::string& id, const v1::Frame& frame, const std::string& key);
  void Consider(Route& route);  // the hello that it said
  void ConsiderAll();           // that have not been welcomed
  void Welcome(Route& route);
  void Refuse(const Route& route, v1::PeerRefusal::Code code, const std::string& why);
  void Break(Route& route, const std::string& why);
  // Returns lane 1 of the session of a lane after 1; null: none is welcomed.
  Route* FirstBulk(Route& route);
  absl::Status OnMessageFrame(Route& route, LinkFrame& in);
  absl::Status OnOpen(Route& first, const Route& route, uint64_t number, const v1::PeerOpen& open);
  absl::Status CheckOpen(const Route& first, uint64_t number, const v1::PeerOpen& open) const;
  void Take(Route& first, uint64_t number, const v1::PeerOpen& open);
  absl::Status OnChunk(Route& first, const Route& route, LinkFrame& in);
  absl::Status Accept(Incoming& incoming, LinkFrame& in);
  void DeliverReady(Route& first, int channel);
  void Deliver(Route& first, Incoming incoming);
  void Arrived(Route& route, const Incoming& incoming, const std::string& refusal);
  void ReturnCredit(const std::string& id, uint64_t session, int channel, int64_t cost);

  const PeerLinkOptions options_;
  PeerHandler* const handler_;
  std::string endpoint_;
  std::vector<std::string> more_endpoints_;
  std::unique_ptr<LinkServer> link_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t round_ = 0;                 // of SetPeers calls; guarded by mutex_
  std::map<NodeId, Entry> directory_;  // guarded by mutex_
  int64_t frames_refused_ = 0;         // guarded by mutex_

  // The network thread's own.
  Instant last_turn_{};
  std::optional<PeerFence> fence_;
  std::vector<IslandMember> members_;
  std::vector<IslandMember> temporary_peers_;
  Instant temporary_peers_until_{};
  std::map<NodeId, std::unique_ptr<Peer>> peers_;
  std::map<std::string, Route> routes_;
  uint64_t next_session_ = 1;  // of what grows only: sessions and hellos
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_PEER_PEER_LINK_H_

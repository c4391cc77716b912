// The network thread of a PeerLink; see peer_link.h. Private to common/net.

#ifndef ATOLL_COMMON_NET_PEER_PEER_LINK_IMPL_H_
#define ATOLL_COMMON_NET_PEER_PEER_LINK_IMPL_H_

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "common/net/chunks.h"
#include "common/net/link_socket.h"
#include "common/net/path_connections.h"
#include "common/net/peer/peer_link.h"

namespace atl {

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

class PeerLink::Impl final : public PeerLink {
 public:
  Impl(PeerLinkOptions options, PeerHandler* handler)
      : options_(std::move(options)),
        handler_(handler),
        pool_(BufferPool::Create(kIdleBytesMax)),
        tasks_(std::make_shared<TaskQueue>()) {}
  ~Impl() override;

  absl::Status Start();
  const NodeId& name() const override { return options_.name; }
  const std::string& endpoint() const override { return endpoint_; }
  const std::vector<std::string>& more_endpoints() const override { return more_endpoints_; }
  int EdgesTo(const IslandMember& member) const override { return CountEdges(options_, member); }
  bool has_checksums() const override { return options_.keys.empty(); }

  absl::Status SetPeers(const PeerFence& fence, const std::vector<IslandMember>& members) override;
  absl::Status AwaitPeers(Instant deadline, const std::vector<NodeId>& peers) override;
  absl::Status Send(const NodeId& to, PeerMessage message) override;
  bool IsLost(const NodeId& peer) const override;
  std::vector<std::pair<NodeId, std::string>> Unconnected(Duration at_least) const override;
  std::vector<std::pair<NodeId, std::string>> Probe(const std::vector<IslandMember>& members,
                                                    Duration limit) const override;
  void SetTemporaryPeers(const std::vector<IslandMember>& temporary_peers,
                         Duration for_so_long) override;
  absl::StatusOr<std::unique_ptr<PeerSampler>> Sample(const IslandMember& member, int edge,
                                                      Duration limit) const override;
  void Lose(const NodeId& peer, const std::string& reason) override;
  void DropQueued(PeerChannel channel) override;
  std::vector<PeerCounters> counters() const override;
  int64_t frames_refused() const override;

 private:
  static constexpr char kNotFollowed[] = "it has not followed to our plan yet";
  static constexpr int64_t kIdleBytesMax = int64_t{256} << 20;

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
  struct Lane {
    std::unique_ptr<LinkClient> link;
    std::shared_ptr<SendAccount> account;
    int descriptor = -1;     // of its connection, which libzmq may have closed already
    bool hello_due = false;  // to be said when it is up
    bool welcomed = false;   // under the present fence
    uint64_t next_number = 1;
    uint64_t hello_number = 0;  // of the last one
    std::string trouble = "no connection yet";
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

  // State that Send and AwaitPeers read. Guarded by mutex_.
  struct Entry {
    bool lost = false;
    bool welcomed = false;
    std::string trouble;
    std::optional<Instant> unconnected_since;
    int queued_messages = 0;
    int64_t queued_bytes = 0;
  };

  // loop
  void Run();
  void ExcuseSilence(Duration turn);
  int WaitMs() const;
  void Adopt(const PeerFence& fence, const std::vector<IslandMember>& members);
  void MeetAgain();  // the peers that are lost
  void OpenDoor();   // for peers and samplers
  void StartPeer(Peer& peer);
  absl::Status Check(const PeerFence& fence, const std::vector<IslandMember>& members) const;
  absl::Status Connect(Peer& peer);
  absl::StatusOr<std::unique_ptr<Lane>> Connect(const Peer& peer, int lane);
  void AddLanes(Peer& peer);                        // where more are wanted
  void Reset(Peer& peer, const absl::Status& why);  // ends all that is under way with it
  void OnPeerLost(const NodeId& name, std::string why);
  void Note(const Peer& peer, const std::string& trouble);
  void NoteConnection(const NodeId& name, bool connected);
  bool ReceiveSome();
  void Count(const NodeId& peer, int64_t PeerCounters::*counter, int64_t amount = 1);
  void CountSent(const NodeId& peer, int edge, int64_t bytes);
  void CountReceived(const NodeId& peer, int edge, int64_t bytes);
  void CountStranger(int64_t frames = 1);
  Peer* Find(const NodeId& name);

  // lanes
  void Queue(const NodeId& to, Outgoing outgoing);
  bool WatchLane(Peer& peer, int lane);  // whether something has come
  void OnLaneDown(Peer& peer, int lane, ConnectionEvent event);
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
  void OnLaneFrame(const NodeId& name, int lane, LinkFrame& in);
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
  absl::Status OnOpen(Route& first, const Route& route, uint64_t number, v1::PeerOpen& open);
  absl::Status CheckOpen(const Route& first, uint64_t number, const v1::PeerOpen& open) const;
  void Take(Route& first, uint64_t number, const v1::PeerOpen& open);
  absl::Status OnChunk(Route& first, const Route& route, LinkFrame& in);
  absl::Status Accept(Incoming& incoming, LinkFrame& in);
  void DeliverReady(Route& first, int channel);
  void Deliver(Route& first, Incoming incoming);
  void Arrived(Route& route, const Incoming& incoming, const std::string& refusal);
  void ReturnCredit(const std::string& id, uint64_t session, int channel, int64_t cost);
  SendOutcome Answer(const std::string& id, const v1::Frame& frame);

  const PeerLinkOptions options_;
  PeerHandler* const handler_;
  const std::shared_ptr<BufferPool> pool_;
  const std::shared_ptr<SendAccount::Total> unsent_bytes_ = std::make_shared<SendAccount::Total>(0);
  const std::shared_ptr<TaskQueue> tasks_;  // also held by deliveries that outlive us
  std::string endpoint_;
  std::vector<std::string> more_endpoints_;
  std::unique_ptr<ZmqContext> context_;
  std::unique_ptr<LinkServer> link_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t round_ = 0;                       // of SetPeers calls; guarded by mutex_
  std::map<NodeId, Entry> directory_;        // guarded by mutex_
  std::map<NodeId, PeerCounters> counters_;  // guarded by mutex_
  int64_t frames_refused_ = 0;               // guarded by mutex_

  // The network thread's own.
  bool stopping_ = false;
  Instant now_;
  std::optional<PeerFence> fence_;
  std::vector<IslandMember> members_;
  std::vector<IslandMember> temporary_peers_;
  Instant temporary_peers_until_{};
  std::map<NodeId, std::unique_ptr<Peer>> peers_;
  std::map<std::string, Route> routes_;
  uint64_t next_session_ = 1;  // of what grows only: sessions and hellos
  std::thread thread_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_PEER_PEER_LINK_IMPL_H_

// The network thread of a PeerLink; see peer_link.h. Private to common/net.

#ifndef ATOLL_COMMON_NET_PEER_LINK_IMPL_H_
#define ATOLL_COMMON_NET_PEER_LINK_IMPL_H_

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "common/net/chunks.h"
#include "common/net/link_socket.h"
#include "common/net/peer_link.h"

namespace atl {

inline constexpr int kLanes = 2;
inline constexpr int LaneOf(int channel) { return channel == 0 ? 0 : 1; }

class PeerLink::Impl {
 public:
  Impl(PeerLinkOptions options, PeerHandler* handler)
      : options_(std::move(options)),
        handler_(handler),
        pool_(BufferPool::Create(kIdleBytesMax)),
        tasks_(std::make_shared<TaskQueue>()) {}
  ~Impl();

  absl::Status Start();
  const PeerLinkOptions& options() const { return options_; }
  const std::string& endpoint() const { return endpoint_; }

  absl::Status SetPeers(const PeerFence& fence, const std::vector<IslandMember>& members);
  absl::Status AwaitPeers(Instant deadline, const std::vector<NodeId>& peers);
  absl::Status Send(const NodeId& to, PeerMessage message);
  bool IsLost(const NodeId& peer) const;
  std::vector<std::pair<NodeId, std::string>> Unconnected(Duration at_least) const;
  std::vector<std::pair<NodeId, std::string>> Probe(const std::vector<IslandMember>& members,
                                                    Duration limit) const;
  void SetTemporaryPeers(const std::vector<IslandMember>& temporary_peers, Duration for_so_long);
  absl::StatusOr<std::unique_ptr<PeerSampler>> Sample(const IslandMember& member,
                                                      Duration limit) const;
  void Lose(const NodeId& peer, const std::string& reason);
  void DropQueued(PeerChannel channel);
  std::vector<PeerCounters> counters() const;
  int64_t frames_refused() const;

 private:
  static constexpr char kNotFollowed[] = "it has not followed to our plan yet";
  static constexpr int64_t kIdleBytesMax = int64_t{256} << 20;

  // ---- What is sent: our lanes to a peer. ----
  struct Outgoing {
    PeerMessage message;
    uint64_t round = 0;   // of SetPeers calls, in which it was sent
    uint64_t number = 0;  // on its lane; 0: not begun
    std::optional<OutgoingTensor> tensor;
    Instant queued;
    int64_t cost() const { return static_cast<int64_t>(message.payload.size()) + kPeerMessageCost; }
  };
  struct Lane {
    std::unique_ptr<LinkClient> link;
    std::shared_ptr<SendAccount> account;
    bool up = false;         // the connection is there
    bool hello_due = false;  // to be said when it is up
    bool welcomed = false;   // under the present fence
    uint64_t next_number = 1;
    uint64_t hello_number = 0;          // of the last one
    std::optional<Instant> connect_at;  // lost, and libzmq does not seem to make it again
    std::string trouble = "no connection yet";
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
    std::array<std::unique_ptr<Lane>, kLanes> lanes;
    std::array<std::deque<Outgoing>, kPeerChannels> queues;
    std::array<int64_t, kPeerChannels> limit = {}, spent = {};
    std::map<std::pair<int, uint64_t>, Arrival> arrivals;  // by lane and number
    bool lost = false;
    uint64_t session = 0;      // grows with every fence and loss
    std::optional<Ping> ping;  // not answered yet
    Instant next_ping;
    std::deque<Duration> round_trips;

    bool welcomed() const { return lanes[0] && lanes[0]->welcomed && lanes[1]->welcomed; }
  };

  // ---- What is received: others' lanes to us. ----
  struct Incoming {
    uint64_t number = 0;  // 0: none is on its way
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
    uint64_t session = 0;
    uint64_t last_number = 0;
    std::array<Incoming, kPeerChannels> incoming;
    std::array<int64_t, kPeerChannels> granted = {}, received = {}, returned = {};
  };

  // What Send and AwaitPeers look at. Guarded by mutex_.
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
  void Reset(Peer& peer, const absl::Status& why);  // ends all that is under way with it
  void OnPeerLost(const NodeId& name, std::string why);
  void Note(const Peer& peer, const std::string& trouble);
  void NoteConnection(const NodeId& name, bool connected);
  bool ReceiveSome();
  void Count(const NodeId& peer, int64_t PeerCounters::*counter, int64_t amount = 1);
  void CountStranger(int64_t frames = 1);
  Peer* Find(const NodeId& name);

  // lanes
  void Queue(const NodeId& to, Outgoing outgoing);
  bool WatchLane(Peer& peer, int lane);  // whether something has come
  void ConnectAgain(Lane& lane);
  bool PumpPeer(Peer& peer);  // whether there is more to send at once
  void SayHello(Peer& peer, int lane);
  bool SendNext(Peer& peer, int lane);
  bool Open(Peer& peer, Lane& lane, int channel);
  bool SendChunk(Peer& peer, Lane& lane, Outgoing& outgoing);
  void Finish(Peer& peer, int channel);
  void Ping(Peer& peer);
  void OnLaneFrame(const NodeId& name, int lane, LinkFrame& in);
  void OnWelcome(Peer& peer, Lane& lane, const v1::PeerWelcome& welcome);
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
  absl::Status OnOpen(Route& route, uint64_t number, const v1::PeerOpen& open);
  absl::Status OnChunk(Route& route, LinkFrame& in);
  void Deliver(Route& route, int channel);
  void Arrived(Route& route, const Incoming& incoming, const std::string& refusal);
  void ReturnCredit(const std::string& id, uint64_t session, int channel, int64_t cost);
  SendOutcome Answer(const std::string& id, const v1::Frame& frame);

  const PeerLinkOptions options_;
  PeerHandler* const handler_;
  const std::shared_ptr<BufferPool> pool_;
  const std::shared_ptr<SendAccount::Total> unsent_bytes_ = std::make_shared<SendAccount::Total>(0);
  const std::shared_ptr<TaskQueue> tasks_;  // also held by deliveries that outlive us
  std::string endpoint_;
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

#endif  // ATOLL_COMMON_NET_PEER_LINK_IMPL_H_

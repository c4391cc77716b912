// The network thread's loop: who our peers are, what happens when one is lost, waiting.

#include <arpa/inet.h>

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/event_loop.h"
#include "common/net/peer/peer_link.h"

namespace atl {
namespace {

constexpr int kMessagesPerTurn = 64;
constexpr Duration kTurnMax = std::chrono::milliseconds(100);
constexpr int64_t kUnsentBytesMax = int64_t{64} << 20;
constexpr int kStripesUnsent = 2;
constexpr Duration kStall = std::chrono::milliseconds(500);  // a turn as long as no other

// Returns whether the host is one interface's address: no name, and not all interfaces ("*",
// "0.0.0.0").
bool IsAddress(absl::string_view host) {
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  const std::string text(host);
  in6_addr v6 = {};
  in_addr v4 = {};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return v4.s_addr != INADDR_ANY;
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && !IN6_IS_ADDR_UNSPECIFIED(&v6);
}

}  // namespace

absl::Status PeerLink::Start() {
  ServerSecurity security;
  security.keys = options_.keys;
  security.allow_plaintext_beyond_loopback = options_.allow_plaintext_beyond_loopback;
  if (std::ssize(options_.more_endpoints) >= kPeerEndpointsMax) {
    return absl::InvalidArgumentError(absl::StrCat(options_.more_endpoints.size() + 1,
                                                   " endpoints: at most ", kPeerEndpointsMax));
  }
  ATOLL_RETURN_IF_ERROR(CheckSecurity(security, options_.endpoint));
  for (const std::string& endpoint : options_.more_endpoints) {
    ATOLL_RETURN_IF_ERROR(CheckSecurity(security, endpoint));
  }
  ATOLL_RETURN_IF_ERROR(tasks_->Check());
  ATOLL_ASSIGN_OR_RETURN(context_, ZmqContext::Create(options_.io_threads));
  ATOLL_ASSIGN_OR_RETURN(
      link_, LinkServer::Create(*context_, options_.keys, [tasks = tasks_] { tasks->Wake(); }));
  ATOLL_ASSIGN_OR_RETURN(endpoint_, link_->Bind(options_.endpoint));
  for (const std::string& endpoint : options_.more_endpoints) {
    ATOLL_ASSIGN_OR_RETURN(more_endpoints_.emplace_back(), link_->Bind(endpoint));
  }
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

PeerLink::~PeerLink() {
  if (thread_.joinable()) {
    tasks_->Post([this] { stopping_ = true; });
    thread_.join();
  }
  for (const auto& [name, peer] : peers_) Reset(*peer, absl::CancelledError("the link ends"));
  for (const auto& [name, peer] : peers_) peer->lanes = {};
  link_.reset();
  context_.reset();  // now libzmq has released what it referenced
  tasks_->RunAll();  // the last `left`
}

void PeerLink::Run() {
  bool more = false;
  now_ = SteadyNow();
  while (!stopping_) {
    std::vector<Socket*> sockets;
    link_->AddTo(&sockets);
    for (const auto& [name, peer] : peers_) {
      if (peer->lost) continue;
      for (const auto& lane : peer->lanes) {
        if (lane != nullptr) lane->link->AddTo(&sockets);
      }
    }
    const bool has_tasks = Socket::Poll(sockets, tasks_->descriptor(), more ? 0 : WaitMs());
    const Instant turn_before = std::exchange(now_, SteadyNow());
    ExcuseSilence(now_ - turn_before);
    if (has_tasks) tasks_->RunAll();
    if (stopping_) break;
    link_->Flush();
    more = ReceiveSome();
    if (const int64_t refused = link_->TakeRefused(); refused > 0) CountStranger(refused);
    for (const auto& [name, peer] : peers_) {  // which only tasks change
      if (!peer->lost) more |= PumpPeer(*peer);
      // After what is sent, so that no lane has to be looked at again before we wait.
      for (int lane = 0; lane < kLanes && !peer->lost; ++lane) more |= WatchLane(*peer, lane);
    }
  }
}

// A machine that stalled has received nothing: what was answered meanwhile is yet to be read.
void PeerLink::ExcuseSilence(Duration turn) {
  if (turn < kStall) return;
  for (const auto& [name, peer] : peers_) {
    if (peer->ping) peer->ping->excused += turn;
  }
}

int PeerLink::WaitMs() const {
  Instant until = now_ + kTurnMax;
  for (const auto& [name, peer] : peers_) {
    if (peer->lost || !peer->welcomed()) continue;
    // An answer to a ping wakes this thread.
    const Instant due = peer->ping ? peer->ping->sent + peer->ping->excused + options_.silence_max
                                   : peer->next_ping;
    until = std::min(until, std::max(now_, due));
  }
  const Duration wait = std::max(until - SteadyNow(), Duration(0));
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count());
}

bool PeerLink::ReceiveSome() {
  LinkFrame in;
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    if (!link_->Receive(&in)) return false;
    OnRouteFrame(in);
  }
  return true;
}

void PeerLink::Adopt(const PeerFence& fence, const std::vector<IslandMember>& members) {
  if (fence_ == fence && members_ == members) return MeetAgain();
  fence_ = fence;
  members_ = members;
  std::map<NodeId, std::unique_ptr<Peer>> before;
  before.swap(peers_);
  for (auto& [name, peer] : before) Reset(*peer, absl::AbortedError("a new plan has begun"));
  for (auto& [id, route] : routes_) route.welcomed = false;
  {
    const std::lock_guard lock(mutex_);
    ++round_;
    std::map<NodeId, Entry> known;
    known.swap(directory_);
    for (const IslandMember& member : members) {
      if (member.worker == options_.name) continue;
      Entry& entry = directory_[member.worker];
      entry.trouble = "no connection yet";
      const auto it = before.find(member.worker);
      // Under another plan it is unreachable for as long.
      if (it != before.end() && it->second->member == member) {
        entry.unconnected_since = known[member.worker].unconnected_since;
      }
      counters_[member.worker].peer = member.worker;
    }
  }
  for (const IslandMember& member : members) {
    if (member.worker == options_.name) continue;
    std::unique_ptr<Peer>& peer = peers_[member.worker];
    const auto it = before.find(member.worker);
    if (it != before.end() && !it->second->lost && it->second->member == member) {
      peer = std::move(it->second);
    } else {
      peer = std::make_unique<Peer>();
      peer->member = member;
    }
    StartPeer(*peer);
  }
  OpenDoor();
  ConsiderAll();
}

// A sampler that says hello is a stranger all the same.
void PeerLink::OpenDoor() {
  if (options_.keys.empty()) return;
  std::vector<std::string> keys;
  for (const auto* who : {&members_, &temporary_peers_}) {
    for (const IslandMember& member : *who) {
      if (member.worker != options_.name) keys.push_back(member.public_key);
    }
  }
  link_->Admit(keys);
}

void PeerLink::SetTemporaryPeers(const std::vector<IslandMember>& temporary_peers,
                                 Duration for_so_long) {
  std::vector<IslandMember> known;
  const ClientSecurity security{options_.keys, options_.allow_plaintext_beyond_loopback};
  for (const IslandMember& temporary_peer : temporary_peers) {
    // One that we would not speak with may not speak with us.
    if (CheckSecurity(security, temporary_peer.endpoint, temporary_peer.public_key).ok())
      known.push_back(temporary_peer);
  }
  std::promise<void> done;
  tasks_->Post([&] {
    temporary_peers_ = known;
    temporary_peers_until_ = SteadyNow() + for_so_long;
    OpenDoor();
    done.set_value();
  });
  done.get_future().wait();
}

void PeerLink::MeetAgain() {
  for (auto& [name, peer] : peers_) {
    if (!peer->lost) continue;
    const IslandMember member = peer->member;
    peer = std::make_unique<Peer>();
    peer->member = member;
    {
      const std::lock_guard lock(mutex_);
      Entry& entry = directory_[name];
      entry.lost = false;
      entry.trouble = "no connection yet";
    }
    StartPeer(*peer);
  }
  ConsiderAll();
}

void PeerLink::StartPeer(Peer& peer) {
  peer.session = next_session_++;
  const bool is_new = peer.lanes[0] == nullptr;
  const absl::Status connected = is_new ? Connect(peer) : absl::OkStatus();
  if (is_new) NoteConnection(peer.member.worker, false);
  if (!connected.ok()) Note(peer, std::string(connected.message()));
  for (int lane = 0; lane < kLanes; ++lane) {
    if (peer.lanes[lane] == nullptr) continue;
    peer.lanes[lane]->hello_due = true;
    if (peer.lanes[lane]->link->up()) NoteTrouble(peer, lane, kNotFollowed);
  }
}

// The newest hello first: of two connections of a peer's lane the older one is dead, and libzmq
// does not say so.
void PeerLink::ConsiderAll() {
  std::vector<std::pair<uint64_t, std::string>> waiting;
  for (const auto& [id, route] : routes_) {
    if (!route.welcomed) waiting.emplace_back(route.said, id);
  }
  std::sort(waiting.rbegin(), waiting.rend());
  for (const auto& [said, id] : waiting) {
    if (const auto it = routes_.find(id); it != routes_.end()) Consider(it->second);
  }
}

int CountEdges(const PeerLinkOptions& options, const IslandMember& member) {
  return 1 +
         static_cast<int>(std::max(options.more_endpoints.size(), member.more_endpoints.size()));
}

const std::string& GetEdgeEndpoint(const IslandMember& member, int edge) {
  const int i = std::min(edge, static_cast<int>(member.more_endpoints.size()));
  return i == 0 ? member.endpoint : member.more_endpoints[static_cast<size_t>(i - 1)];
}

std::string GetEdgeAddress(const PeerLinkOptions& options, const IslandMember& member, int edge) {
  const std::string& to = GetEdgeEndpoint(member, edge);
  if (edge == 0 || options.more_endpoints.empty()) return to;
  const std::string& own =
      options.more_endpoints[std::min<size_t>(edge, options.more_endpoints.size()) - 1];
  const absl::string_view from = absl::string_view(own).substr(0, own.rfind(':'));
  const bool same_family = absl::StrContains(from, '[') == absl::StrContains(to, '[');
  if (!same_family || !IsAddress(absl::StripPrefix(from, "tcp://"))) return to;
  return absl::StrCat(from, ":0;", absl::StripPrefix(to, "tcp://"));
}

absl::StatusOr<std::unique_ptr<PeerLink::Lane>> PeerLink::Connect(const Peer& peer,
                                                                  int lane_index) {
  auto lane = std::make_unique<Lane>();
  const auto wake = [tasks = tasks_] { tasks->Wake(); };
  // A slow edge must not hold much of a message that the others could have sent.
  lane->account = peer.edges == 1
                      ? std::make_shared<SendAccount>(unsent_bytes_, kUnsentBytesMax, wake)
                      : std::make_shared<SendAccount>(unsent_bytes_, kUnsentBytesMax, wake,
                                                      kStripesUnsent * peer.chunk_bytes);
  ATOLL_ASSIGN_OR_RETURN(
      lane->link, LinkClient::Create(*context_, options_.keys, peer.member.public_key, wake));
  ATOLL_RETURN_IF_ERROR(lane->link->Connect(
      GetEdgeAddress(options_, peer.member, EdgeFromLane(lane_index, peer.edges))));
  return lane;
}

absl::Status PeerLink::Connect(Peer& peer) {
  peer.edges = CountEdges(options_, peer.member);
  peer.chunk_bytes =
      peer.edges == 1 ? options_.chunk_bytes : std::min(options_.chunk_bytes, kStripeBytes);
  std::array<std::unique_ptr<Lane>, kLanes> lanes;
  const int bulk = std::clamp(options_.connections, peer.edges, kLanes - 1);
  for (int lane = 0; lane <= bulk; ++lane) {
    ATOLL_ASSIGN_OR_RETURN(lanes[lane], Connect(peer, lane));
  }
  peer.lanes = std::move(lanes);
  return absl::OkStatus();
}

void PeerLink::AddLanes(Peer& peer) {
  for (int lane = 1; lane <= peer.path.wanted(); ++lane) {
    if (peer.lanes[lane] != nullptr) continue;
    absl::StatusOr<std::unique_ptr<Lane>> added = Connect(peer, lane);
    if (!added.ok()) return;  // those that are there go on
    peer.lanes[lane] = *std::move(added);
  }
}

void PeerLink::Reset(Peer& peer, const absl::Status& why) {
  peer.session = next_session_++;
  for (auto& queue : peer.queues) {
    std::deque<Outgoing> dropped;
    dropped.swap(queue);
    for (Outgoing& outgoing : dropped) Fail(peer.member.worker, std::move(outgoing), why);
  }
  std::map<std::pair<int, uint64_t>, Arrival> arrivals;
  arrivals.swap(peer.arrivals);
  for (auto& [number, arrival] : arrivals) arrival.arrived(why, {});
  peer.limit = peer.spent = peer.begun = {};
  peer.ping.reset();
  for (const auto& lane : peer.lanes) {
    if (lane != nullptr) lane->welcomed = false;
  }
}

void PeerLink::OnPeerLost(const NodeId& name, std::string why) {
  Peer* peer = Find(name);
  if (peer == nullptr || peer->lost) return;
  peer->lost = true;
  peer->lanes = {};
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = directory_[name];
    entry.lost = true;
    entry.trouble = why;
    ++counters_[name].times_lost;
    changed_.notify_all();
  }
  Reset(*peer, absl::UnavailableError(absl::StrCat(name, " is lost: ", why)));
  for (auto it = routes_.begin(); it != routes_.end();) {
    const auto here = it++;
    if (!here->second.welcomed || here->second.hello.from() != name) continue;
    Refuse(here->second, v1::PeerRefusal::LOST, why);
    routes_.erase(here);
  }
  handler_->OnPeerLost(name, why);
}

void PeerLink::Note(const Peer& peer, const std::string& trouble) {
  const std::lock_guard lock(mutex_);
  Entry& entry = directory_[peer.member.worker];
  entry.trouble = trouble;
  entry.welcomed = peer.welcomed();
  changed_.notify_all();
}

// From the first time that it is missing.
void PeerLink::NoteConnection(const NodeId& name, bool connected) {
  const std::lock_guard lock(mutex_);
  std::optional<Instant>& since = directory_[name].unconnected_since;
  if (connected) {
    since.reset();
  } else if (!since) {
    since = SteadyNow();
  }
}

PeerLink::Peer* PeerLink::Find(const NodeId& name) {
  const auto it = peers_.find(name);
  return it == peers_.end() ? nullptr : it->second.get();
}

void PeerLink::Count(const NodeId& peer, int64_t PeerCounters::*counter, int64_t amount) {
  const std::lock_guard lock(mutex_);
  counters_[peer].*counter += amount;
}

void PeerLink::CountSent(const NodeId& peer, int edge, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  PeerCounters& counters = counters_[peer];
  counters.payload_bytes_sent += bytes;
  counters.edge_bytes_sent[static_cast<size_t>(edge)] += bytes;
}

void PeerLink::CountReceived(const NodeId& peer, int edge, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  PeerCounters& counters = counters_[peer];
  counters.payload_bytes_received += bytes;
  counters.edge_bytes_received[static_cast<size_t>(edge)] += bytes;
}

void PeerLink::CountStranger(int64_t frames) {
  const std::lock_guard lock(mutex_);
  frames_refused_ += frames;
}

}  // namespace atl

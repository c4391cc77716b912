// The network thread's loop: who our peers are, what happens when one is lost, waiting.

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/event_loop.h"
#include "common/net/peer/peer_link.h"

namespace atl {
namespace {

constexpr int kMessagesPerTurn = 64;
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
  ATOLL_RETURN_IF_ERROR(LinkEnd::Open(options_.io_threads));
  ATOLL_ASSIGN_OR_RETURN(link_, MakeServer(options_.keys));
  ATOLL_ASSIGN_OR_RETURN(endpoint_, link_->Bind(options_.endpoint));
  for (const std::string& endpoint : options_.more_endpoints) {
    ATOLL_ASSIGN_OR_RETURN(more_endpoints_.emplace_back(), link_->Bind(endpoint));
  }
  Launch();
  return absl::OkStatus();
}

PeerLink::~PeerLink() {
  Stop();
  for (const auto& [name, peer] : peers_) Reset(*peer, absl::CancelledError("the link ends"));
  peers_.clear();
  routes_.clear();  // no credit is given any more
  link_.reset();
  context_.reset();  // now libzmq has released what it referenced
  RunRest();         // the last `left`
}

void PeerLink::AddTo(std::vector<Socket*>* sockets) {
  link_->AddTo(sockets);
  for (const auto& [name, peer] : peers_) {
    for (const auto& lane : peer->lanes) {
      if (lane != nullptr) lane->link->AddTo(sockets);
    }
  }
}

bool PeerLink::Turn() {
  ExcuseSilence();
  link_->Flush();
  bool more = ReceiveSome();
  if (const int64_t refused = link_->TakeRefused(); refused > 0) CountStranger(refused);
  for (const auto& [name, peer] : peers_) {  // which only tasks change
    if (!peer->lost) more |= PumpPeer(*peer);
    // After what is sent, so that no lane has to be looked at again before we wait.
    for (int lane = 0; lane < kLanes && !peer->lost; ++lane) more |= WatchLane(*peer, lane);
  }
  return more;
}

// A machine that stalled has received nothing: what was answered meanwhile is yet to be read.
void PeerLink::ExcuseSilence() {
  const Duration turn = now_ - std::exchange(last_turn_, now_);
  if (turn < kStall) return;
  for (const auto& [name, peer] : peers_) {
    if (peer->ping) peer->ping->excused += turn;
  }
}

Instant PeerLink::NextDue() const {
  Instant until = now_ + kTurnMax;
  for (const auto& [name, peer] : peers_) {
    if (peer->lost || !peer->welcomed()) continue;
    // An answer to a ping wakes this thread.
    const Instant due = peer->ping ? peer->ping->sent + peer->ping->excused + options_.silence_max
                                   : peer->next_ping;
    until = std::min(until, std::max(now_, due));
  }
  return until;
}

bool PeerLink::ReceiveSome() {
  LinkFrame in;
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    if (!link_->Receive(&in)) return false;
    OnRouteFrame(in);
  }
  return true;
}

// With the fence and the members that are in force already only lost peers are met, again.
void PeerLink::Adopt(const PeerFence& fence, const std::vector<IslandMember>& members) {
  const bool again = fence_ == fence && members_ == members;
  fence_ = fence;
  members_ = members;
  std::map<NodeId, std::unique_ptr<Peer>> before;
  before.swap(peers_);
  if (!again) {
    for (auto& [name, peer] : before) Reset(*peer, absl::AbortedError("a new plan has begun"));
    for (auto& [id, route] : routes_) route.welcomed = false;
    const std::lock_guard lock(mutex_);
    ++round_;
    for (auto& [name, entry] : directory_) entry.is_peer = false;
  }
  for (const IslandMember& member : members) {
    if (member.worker == options_.name) continue;
    std::unique_ptr<Peer>& known = before[member.worker];
    const bool same = known != nullptr && known->member == member;
    const bool kept = same && !known->lost;
    std::unique_ptr<Peer>& peer = peers_[member.worker];
    peer = kept ? std::move(known) : std::make_unique<Peer>();
    peer->member = member;
    if (again && kept) continue;
    {
      const std::lock_guard lock(mutex_);
      Entry& entry = directory_[member.worker];
      // Under another plan it is unreachable for as long. Met again it may have messages that were
      // counted, and are not in its queue yet.
      entry = {.is_peer = true,
               .unconnected_since = same ? entry.unconnected_since : std::nullopt,
               .queued_messages = again ? entry.queued_messages : 0,
               .queued_bytes = again ? entry.queued_bytes : 0,
               .counters = entry.counters};
      entry.counters.peer = member.worker;
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
  Call([&] {
    temporary_peers_ = known;
    temporary_peers_until_ = SteadyNow() + for_so_long;
    OpenDoor();
  });
}

void PeerLink::StartPeer(Peer& peer) {
  peer.session = next_session_++;
  const bool is_new = peer.lanes[0] == nullptr;
  if (is_new) {
    peer.edges = CountEdges(options_, peer.member);
    peer.chunk_bytes =
        peer.edges == 1 ? options_.chunk_bytes : std::min(options_.chunk_bytes, kStripeBytes);
    NoteConnection(peer.member.worker, false);
    const absl::Status connected =
        AddLanes(peer, std::clamp(options_.connections, peer.edges, kLanes - 1));
    if (!connected.ok()) {
      peer.lanes = {};
      Note(peer, std::string(connected.message()));
    }
  }
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

absl::Status PeerLink::AddLanes(Peer& peer, int last) {
  for (int i = 0; i <= last; ++i) {
    if (peer.lanes[i] != nullptr) continue;
    auto lane = std::make_unique<Lane>();
    lane->trouble = kNoConnection;
    // A slow edge must not hold much of a message that the others could have sent.
    const int64_t unsent_bytes_max =
        peer.edges == 1 ? SendAccount::kConnectionBytesMax : kStripesUnsent * peer.chunk_bytes;
    ATOLL_RETURN_IF_ERROR(
        Connect(GetEdgeAddress(options_, peer.member, EdgeFromLane(i, peer.edges)), options_.keys,
                peer.member.public_key, unsent_bytes_max, lane.get()));
    peer.lanes[i] = std::move(lane);
  }
  return absl::OkStatus();
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
    ++entry.counters.times_lost;
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

void PeerLink::Count(const NodeId& peer, int64_t PeerCounters::*counter) {
  const std::lock_guard lock(mutex_);
  ++(directory_[peer].counters.*counter);
}

void PeerLink::CountStranger(int64_t frames) {
  const std::lock_guard lock(mutex_);
  frames_refused_ += frames;
}

}  // namespace atl

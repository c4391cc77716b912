// Our lanes to a peer: connections, what goes out, what comes back.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

#include "common/check.h"
#include "common/logging.h"
#include "common/net/open_connections.h"
#include "common/net/peer/edge_load.h"
#include "common/net/peer/peer_link.h"
#include "common/net/tcp_endpoint.h"

namespace atl {
namespace {

constexpr int kChunksPerTurn = 8;
constexpr Duration kPingInterval = std::chrono::milliseconds(500);
constexpr size_t kRoundTripsKept = 16;

// How much the kernel may hold that is not sent yet. With more, a caller that waits for the last
// byte to leave (PeerMessage::left) is notified long before.
constexpr int kKernelUnsentBytes = 256 << 10;

// Within a machine nothing is congested, and pacing (by BBR, say) takes a fifth of the time.
constexpr char kLoopbackCongestionControl[] = "reno";  // which every kernel has

// Without effect if the connection has been closed already.
void SetUp(int descriptor) {
  setsockopt(descriptor, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kKernelUnsentBytes,
             sizeof kKernelUnsentBytes);
  if (!IsLoopbackHost(OpenConnections::FindPeer(descriptor).address)) return;
  setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, kLoopbackCongestionControl,
             sizeof kLoopbackCongestionControl - 1);
}

}  // namespace

bool PeerLink::WatchLane(Peer& peer, int lane) {
  if (peer.lanes[lane] == nullptr) return false;
  const int came = TurnConnection(
      *peer.lanes[lane], /*used=*/true,
      [&](ConnectionEvent event, int descriptor) {
        OnLaneEvent(peer, lane, event, descriptor);
        return !peer.lost;
      },
      [&](LinkFrame& in) {
        OnLaneFrame(peer, lane, in);
        return !peer.lost;
      });
  return came > 0;
}

void PeerLink::OnLaneEvent(Peer& peer, int lane_index, ConnectionEvent event, int descriptor) {
  const NodeId name = peer.member.worker;
  Lane& lane = *peer.lanes[lane_index];
  if (event == ConnectionEvent::kConnected) {
    lane.descriptor = descriptor;
    SetUp(descriptor);
    if (lane_index <= 1) NoteConnection(name, true);
    return;
  }
  if (event == ConnectionEvent::kUp) {
    lane.hello_due = true;
    lane.trouble_logged = false;
    return NoteTrouble(peer, lane_index, kNotFollowed);
  }
  if (event == ConnectionEvent::kSessionBroken) Count(name, &PeerCounters::frames_refused);
  if (event != ConnectionEvent::kRetried) {
    lane.descriptor = -1;
    const bool in_use =
        lane_index <= 1 ? peer.lanes[0]->welcomed || peer.lanes[1]->welcomed : lane.welcomed;
    if (in_use) return OnPeerLost(name, lane.trouble);
  }
  if (event == ConnectionEvent::kLost && lane_index <= 1) NoteConnection(name, false);
  NoteTrouble(peer, lane_index, lane.trouble);
}

// Only the first lanes are those that a peer cannot be without.
void PeerLink::NoteTrouble(Peer& peer, int lane_index, std::string trouble) {
  Lane& lane = *peer.lanes[lane_index];
  lane.trouble = std::move(trouble);
  if (lane_index <= 1) return Note(peer, lane.trouble);
  if (lane.link->up() || std::exchange(lane.trouble_logged, true)) return;
  const int edge = EdgeFromLane(lane_index, peer.edges);
  LogWarning("peer link", "a connection of edge ", edge, " to ", peer.member.worker, " at ",
             GetEdgeEndpoint(peer.member, edge), " is not used: ", lane.trouble);
}

bool PeerLink::PumpPeer(Peer& peer) {
  bool more = false;
  // Where more cannot be had, those that are there go on.
  if (peer.welcomed()) AddLanes(peer, peer.path.wanted()).IgnoreError();
  for (int lane = 0; lane < kLanes; ++lane) {
    if (peer.lanes[lane] == nullptr || !peer.lanes[lane]->link->up()) continue;
    if (peer.lanes[lane]->hello_due) SayHello(peer, lane);
    // Where lane 1 is welcomed the other end has no earlier session's messages any more.
    if (!peer.lanes[lane]->welcomed || (lane > 1 && !peer.lanes[1]->welcomed)) continue;
    int sent = 0;
    while (sent < kChunksPerTurn && SendNext(peer, lane)) ++sent;
    more |= sent >= kChunksPerTurn;
  }
  if (peer.welcomed()) Ping(peer);
  return more;
}

void PeerLink::SayHello(Peer& peer, int lane_index) {
  Lane& lane = *peer.lanes[lane_index];
  v1::Frame frame = MakeFrame(lane.next_number);
  v1::PeerHello& hello = *frame.mutable_peer_hello();
  hello.set_job(fence_->job);
  hello.set_generation(fence_->generation);
  hello.set_plan(fence_->plan);
  hello.set_from(options_.name);
  hello.set_from_incarnation(options_.incarnation);
  hello.set_to(peer.member.worker);
  hello.set_to_incarnation(peer.member.incarnation);
  hello.set_lane(lane_index);
  hello.set_chunk_bytes(peer.chunk_bytes);
  hello.set_session(peer.session);
  if (lane.link->Send(frame) != SendOutcome::kSent) return;  // next turn
  lane.hello_number = lane.next_number++;
  lane.hello_due = false;
}

// One frame of the lane's first channel that has something to say and may.
bool PeerLink::SendNext(Peer& peer, int lane_index) {
  for (int channel = 0; channel < kPeerChannels; ++channel) {
    if (!Carries(lane_index, channel) || peer.queues[channel].empty()) continue;
    Outgoing& outgoing = peer.queues[channel].front();
    if (outgoing.number == 0) {
      if (peer.spent[channel] + outgoing.cost() > peer.limit[channel]) continue;
      Begin(peer, channel);
    }
    // A message without chunks goes over the channel's first lane.
    if (outgoing.tensor->done() && lane_index != SelectLane(channel)) return false;
    if (lane_index > 0 && !outgoing.tensor->done() && !IsBestLane(peer, lane_index, channel)) {
      continue;
    }
    const bool opened = (outgoing.opened >> lane_index & 1) != 0;
    if (!(opened ? SendChunk(peer, lane_index, outgoing) : Open(peer, lane_index, channel))) {
      return false;
    }
    if (outgoing.tensor->done()) Finish(peer, channel);
    return true;
  }
  return false;
}

// While more messages wait, every lane that has room takes something. Of the last one a slow lane
// takes nothing that would come after all that the others bring.
bool PeerLink::IsBestLane(const Peer& peer, int lane_index, int channel) const {
  if (peer.lanes[2] == nullptr || peer.queues[channel].size() > 1) return true;
  std::array<EdgeLoad, kPeerEndpointsMax> others;
  size_t count = 0;
  EdgeLoad own;
  for (int other = 1; other < kLanes; ++other) {
    const Lane* lane = peer.lanes[other].get();
    if (lane == nullptr || !lane->welcomed) continue;
    const EdgeLoad load = ReadEdgeLoad(lane->descriptor, lane->account->bytes());
    (other == lane_index ? own : others[count++]) = load;
  }
  const OutgoingTensor& tensor = *peer.queues[channel].front().tensor;
  return TakesChunk(own, std::span(others).first(count), tensor.next_bytes(), tensor.left_bytes());
}

void PeerLink::Begin(Peer& peer, int channel) {
  Outgoing& outgoing = peer.queues[channel].front();
  outgoing.number = peer.lanes[SelectLane(channel)]->next_number++;
  outgoing.sequence = ++peer.begun[channel];
  peer.spent[channel] += outgoing.cost();
  if (outgoing.message.arrived != nullptr) {
    outgoing.wants_arrival = true;
    peer.arrivals[{SelectLane(channel), outgoing.number}] = {std::move(outgoing.message.arrived),
                                                             outgoing.queued, now_};
  }
  std::shared_ptr<const void> owner = std::move(outgoing.message.owner);
  if (outgoing.message.left != nullptr) {
    // libzmq holds a copy with each chunk until the kernel has taken that.
    owner = std::make_shared<AtEnd>(
        tasks_, [this, name = peer.member.worker, session = peer.session, owner,
                 left = std::exchange(outgoing.message.left, nullptr)] {
          const Peer* now = Find(name);
          const bool same = now != nullptr && now->session == session;
          left(same ? absl::OkStatus() : absl::UnavailableError(absl::StrCat(name, " was lost")));
        });
  }
  outgoing.tensor.emplace(outgoing.message.payload, std::move(owner), peer.chunk_bytes);
}

bool PeerLink::Open(Peer& peer, int lane_index, int channel) {
  Lane& lane = *peer.lanes[lane_index];
  Outgoing& outgoing = peer.queues[channel].front();
  // An opening is followed by a chunk, which the other lanes may not take meanwhile.
  if (!outgoing.tensor->done() && !lane.account->Admits(outgoing.tensor->next_bytes()))
    return false;
  v1::Frame frame = MakeFrame(outgoing.number);
  v1::PeerOpen& open = *frame.mutable_peer_open();
  open.set_channel(channel);
  open.set_header(outgoing.message.header);
  open.set_bytes(static_cast<int64_t>(outgoing.message.payload.size()));
  open.set_wants_arrival(outgoing.wants_arrival);
  open.set_sequence(outgoing.sequence);
  if (lane.link->Send(frame) != SendOutcome::kSent) return false;
  outgoing.opened |= 1u << lane_index;
  return outgoing.tensor->done() || SendChunk(peer, lane_index, outgoing);
}

bool PeerLink::SendChunk(Peer& peer, int lane_index, Outgoing& outgoing) {
  Lane& lane = *peer.lanes[lane_index];
  const int64_t bytes = outgoing.tensor->next_bytes();
  if (!lane.account->Admits(bytes)) return false;
  v1::Frame frame = MakeFrame(outgoing.number);
  const bool known = outgoing.message.checksum.has_value() && outgoing.tensor->chunk_count() == 1;
  const bool checksum = options_.keys.empty();
  Message payload =
      outgoing.tensor->Next(*pool_, lane.account, frame.mutable_chunk(), checksum && !known);
  if (checksum && known) frame.mutable_chunk()->set_checksum(*outgoing.message.checksum);
  if (lane.link->Send(std::move(frame), &payload) != SendOutcome::kSent) {
    outgoing.tensor->SkipTo(outgoing.tensor->next() - 1);
    return false;  // the connection was just lost; its watch will report it
  }
  const std::lock_guard lock(mutex_);
  PeerCounters& counters = directory_[peer.member.worker].counters;
  counters.payload_bytes_sent += bytes;
  counters.edge_bytes_sent[static_cast<size_t>(EdgeFromLane(lane_index, peer.edges))] += bytes;
  return true;
}

void PeerLink::Finish(Peer& peer, int channel) {
  auto& queue = peer.queues[channel];
  Unqueue(peer.member.worker, queue.front());
  Count(peer.member.worker, &PeerCounters::messages_sent);
  queue.pop_front();
  if (channel != 0 && queue.empty()) peer.path.Idle();
}

void PeerLink::Unqueue(const NodeId& to, const Outgoing& outgoing) {
  const std::lock_guard lock(mutex_);
  if (outgoing.round != round_) return;  // counted in an entry that was removed
  const auto it = directory_.find(to);
  if (it == directory_.end()) return;
  --it->second.queued_messages;
  it->second.queued_bytes -= static_cast<int64_t>(outgoing.message.payload.size());
}

void PeerLink::Fail(const NodeId& to, Outgoing outgoing, const absl::Status& why) {
  Unqueue(to, outgoing);
  if (outgoing.message.left != nullptr) outgoing.message.left(why);
  if (outgoing.message.arrived != nullptr) outgoing.message.arrived(why, {});
}

// Keeps the round trip known, and finds a peer whose network thread is stuck.
void PeerLink::Ping(Peer& peer) {
  if (peer.ping) {
    if (now_ - peer.ping->sent - peer.ping->excused >= options_.silence_max) {
      OnPeerLost(peer.member.worker,
                 absl::StrCat("it has not answered for ", Seconds(options_.silence_max), " s"));
    }
    return;
  }
  if (now_ < peer.next_ping) return;
  Lane& lane = *peer.lanes[0];
  v1::Frame frame = MakeFrame(lane.next_number);
  frame.mutable_peer_ping();
  peer.next_ping = now_ + kPingInterval;
  if (lane.link->Send(frame) == SendOutcome::kSent) peer.ping = {lane.next_number++, now_};
}

void PeerLink::OnLaneFrame(Peer& peer, int lane_index, LinkFrame& in) {
  const v1::Frame& frame = in.frame;
  absl::Status status = in.status;
  const NodeId name = peer.member.worker;
  Lane& lane = *peer.lanes[lane_index];
  // An answer to an earlier hello means nothing any more.
  const bool answers_hello = !lane.hello_due && frame.transfer() == lane.hello_number;
  if (status.ok()) {
    switch (frame.body_case()) {
      case v1::Frame::kPeerWelcome:
        if (answers_hello) OnWelcome(peer, lane_index, frame.peer_welcome());
        return;
      case v1::Frame::kPeerRefusal:
        if (!answers_hello) return;
        return OnPeerLost(name, absl::StrCat("it refuses us: ", frame.peer_refusal().reason()));
      case v1::Frame::kPeerCredit: {
        const int channel = frame.peer_credit().channel();
        const int64_t limit = frame.peer_credit().limit(), before = peer.limit[channel];
        if (!lane.welcomed || limit <= before) return;
        peer.limit[channel] = limit;
        if (channel != 0) peer.path.Moved(std::min(limit - before, kElementsMax), now_);
        return;
      }
      case v1::Frame::kPeerArrival:
        return OnArrival(peer, lane_index, frame.transfer(), frame.peer_arrival());
      case v1::Frame::kPeerPong:
        return OnPong(peer, frame.transfer());
      default:
        status = absl::InvalidArgumentError("a frame that receivers do not send");
    }
  }
  Count(name, &PeerCounters::frames_refused);
  OnPeerLost(name, absl::StrCat("it broke the protocol: ", status.message()));
}

void PeerLink::OnWelcome(Peer& peer, int lane_index, const v1::PeerWelcome& welcome) {
  Lane& lane = *peer.lanes[lane_index];
  lane.welcomed = true;
  if (lane_index > 1) return;
  for (int channel = 0; channel < kPeerChannels; ++channel) {
    if (SelectLane(channel) == lane_index) peer.limit[channel] = welcome.limits(channel);
  }
  peer.next_ping = now_;
  Note(peer, peer.welcomed() ? "" : lane.trouble);
}

void PeerLink::OnArrival(Peer& peer, int lane, uint64_t number, const v1::PeerArrival& arrival) {
  const auto it = peer.arrivals.find({lane, number});
  if (it == peer.arrivals.end()) return;  // of an earlier plan
  const Arrival waiting = std::move(it->second);
  peer.arrivals.erase(it);
  Duration half_trip{0};
  if (!peer.round_trips.empty()) {
    half_trip = *std::min_element(peer.round_trips.begin(), peer.round_trips.end()) / 2;
  }
  const PeerTiming timing{waiting.begun - waiting.queued,
                          std::max(now_ - waiting.begun - half_trip, Duration(0))};
  if (!arrival.refused()) return waiting.arrived(absl::OkStatus(), timing);
  waiting.arrived(absl::FailedPreconditionError(
                      absl::StrCat(peer.member.worker, " did not take it: ", arrival.reason())),
                  timing);
}

void PeerLink::OnPong(Peer& peer, uint64_t number) {
  if (!peer.ping || peer.ping->number != number) return;
  peer.round_trips.push_back(now_ - peer.ping->sent);
  peer.path.RoundTrip(peer.round_trips.back());
  if (peer.round_trips.size() > kRoundTripsKept) peer.round_trips.pop_front();
  peer.ping.reset();
  const std::lock_guard lock(mutex_);
  directory_[peer.member.worker].counters.round_trip =
      *std::min_element(peer.round_trips.begin(), peer.round_trips.end());
}

}  // namespace atl

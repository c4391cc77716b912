// Others' lanes to us: who may speak, what comes in, and the credit for it.

#include <algorithm>

#include "common/check.h"
#include "common/net/peer/peer_link.h"

namespace atl {
namespace {

// Credit is sent when so much of it has come back, or all.
constexpr int64_t kCreditStep = int64_t{1} << 20;

}  // namespace

void PeerLink::OnRouteFrame(LinkFrame& in) {
  const std::string& id = in.from;
  const v1::Frame& frame = in.frame;
  absl::Status status = in.status;
  if (status.ok() && frame.has_peer_hello()) return OnHello(id, frame, in.key);
  if (status.ok() && frame.has_peer_sample()) return OnSample(id, frame, in.key);
  const auto it = routes_.find(id);
  if (it == routes_.end() || !it->second.welcomed) return CountStranger();
  Route& route = it->second;
  if (status.ok()) {
    switch (frame.body_case()) {
      case v1::Frame::kPeerOpen:
      case v1::Frame::kChunk:
        status = OnMessageFrame(route, in);
        break;
      case v1::Frame::kPeerPing: {
        v1::Frame pong = MakeFrame(frame.transfer());
        pong.mutable_peer_pong();
        link_->Send(id, pong);
        break;
      }
      default:
        status = absl::InvalidArgumentError("a frame that senders do not send");
    }
  }
  if (!status.ok()) Break(route, std::string(status.message()));
}

// Its bytes are here, and not needed.
void PeerLink::OnSample(const std::string& id, const v1::Frame& frame, const std::string& key) {
  const v1::PeerSample& sample = frame.peer_sample();
  const bool temporary_peer =
      now_ <= temporary_peers_until_ && sample.to() == options_.name &&
      sample.to_incarnation() == options_.incarnation &&
      std::any_of(temporary_peers_.begin(), temporary_peers_.end(),
                  [&](const IslandMember& member) {
                    return member.worker == sample.from() &&
                           member.incarnation == sample.from_incarnation() &&
                           (options_.keys.empty() || member.public_key == key);
                  });
  if (!temporary_peer) CountStranger();
  if (!sample.last()) return;
  v1::Frame answer = MakeFrame(frame.transfer());
  if (temporary_peer) {
    answer.mutable_peer_sampled();
  } else {
    answer.mutable_peer_refusal()->set_code(v1::PeerRefusal::STRANGER);
    answer.mutable_peer_refusal()->set_reason(absl::StrCat(options_.name, " expects no samples"));
  }
  link_->Send(id, answer);
}

void PeerLink::OnHello(const std::string& id, const v1::Frame& frame, std::string key) {
  if (!routes_.contains(id) && !MakeRoom()) return CountStranger();
  Route& route = routes_[id];
  route = Route{};
  route.id = id;
  route.said = next_session_++;
  route.hello = frame.peer_hello();
  route.hello_number = frame.transfer();
  route.last_number = frame.transfer();
  route.key = std::move(key);
  Consider(route);
}

// A forgotten peer is notified: an honest sender would wait for ever.
bool PeerLink::MakeRoom() {
  if (std::ssize(routes_) < options_.connections_max) return true;
  auto oldest = routes_.end();
  for (auto it = routes_.begin(); it != routes_.end(); ++it) {
    if (it->second.welcomed) continue;
    if (oldest == routes_.end() || it->second.said < oldest->second.said) oldest = it;
  }
  if (oldest == routes_.end()) return false;
  Refuse(oldest->second, v1::PeerRefusal::LOST, "too many connections wait here");
  routes_.erase(oldest);
  return true;
}

// Welcomes the route, refuses it, or leaves it waiting until our own plan changes.
void PeerLink::Consider(Route& route) {
  route.welcomed = false;
  route.incoming.clear();
  route.numbers.fill({});
  const v1::PeerHello& hello = route.hello;
  if (hello.to() != options_.name || hello.to_incarnation() != options_.incarnation) {
    return Refuse(route, v1::PeerRefusal::STRANGER,
                  absl::StrCat("this is ", options_.name, ", incarnation ", options_.incarnation,
                               ", not ", hello.to(), ", incarnation ", hello.to_incarnation()));
  }
  if (!fence_) return;
  const PeerFence theirs{hello.job(), hello.generation(), hello.plan()};
  if (theirs.job == fence_->job && theirs < *fence_) {
    return Refuse(route, v1::PeerRefusal::OLD,
                  absl::StrCat("generation ", theirs.generation, ", plan ", theirs.plan,
                               " is over; we are at generation ", fence_->generation, ", plan ",
                               fence_->plan));
  }
  if (theirs != *fence_) return;
  const Peer* peer = Find(hello.from());
  if (peer == nullptr || peer->member.incarnation != hello.from_incarnation()) {
    return Refuse(route, v1::PeerRefusal::STRANGER,
                  absl::StrCat("the plan has no member ", hello.from(), ", incarnation ",
                               hello.from_incarnation()));
  }
  if (!options_.keys.empty() && peer->member.public_key != route.key) {
    return Refuse(route, v1::PeerRefusal::STRANGER,
                  absl::StrCat("this is not ", hello.from(), "'s key"));
  }
  if (peer->lost) return;  // until we have set our peers anew
  Welcome(route);
}

void PeerLink::Welcome(Route& route) {
  route.welcomed = true;
  route.session = next_session_++;
  route.granted = options_.window_bytes;
  route.received = route.returned = route.delivered = {};
  v1::Frame frame = MakeFrame(route.hello_number);
  frame.mutable_peer_welcome()->mutable_limits()->Assign(route.granted.begin(),
                                                         route.granted.end());
  if (link_->Send(route.id, frame) != SendOutcome::kSent) {
    routes_.erase(routes_.find(route.id));  // lost while it waited; its sender says hello again
    return;
  }
  for (auto it = routes_.begin(); it != routes_.end();) {
    const auto here = it++;
    const Route& other = here->second;
    const bool same =
        other.hello.from() == route.hello.from() && other.hello.lane() == route.hello.lane();
    if (same && other.said < route.said) routes_.erase(here);  // a connection it had before
  }
}

// The sender's end counts us as lost when it receives this.
void PeerLink::Refuse(const Route& route, v1::PeerRefusal::Code code, const std::string& why) {
  if (code == v1::PeerRefusal::OLD || code == v1::PeerRefusal::STRANGER) CountStranger();
  v1::Frame frame = MakeFrame(route.hello_number);
  frame.mutable_peer_refusal()->set_code(code);
  frame.mutable_peer_refusal()->set_reason(why.substr(0, kReasonBytesMax));
  link_->Send(route.id, frame);
}

void PeerLink::Break(Route& route, const std::string& why) {
  const NodeId from = route.hello.from();
  Count(from, &PeerCounters::frames_refused);
  Refuse(route, v1::PeerRefusal::BROKEN, why);
  route.welcomed = false;
  OnPeerLost(from, absl::StrCat("it broke the protocol: ", why));
}

PeerLink::Route* PeerLink::FirstBulk(Route& route) {
  if (route.hello.lane() < 2) return &route;
  const auto is_it = [&](const Route& other) {
    return other.welcomed && other.hello.lane() == 1 && other.hello.from() == route.hello.from() &&
           other.hello.session() == route.hello.session();
  };
  const auto known = routes_.find(route.first_bulk);
  if (known != routes_.end() && is_it(known->second)) return &known->second;
  for (auto& [id, other] : routes_) {
    if (!is_it(other)) continue;
    route.first_bulk = id;
    return &other;
  }
  return nullptr;
}

absl::Status PeerLink::OnMessageFrame(Route& route, LinkFrame& in) {
  Route* const first = FirstBulk(route);
  if (first == nullptr) {  // of a session that is over
    CountStranger();
    return absl::OkStatus();
  }
  if (first->hello.chunk_bytes() != route.hello.chunk_bytes()) {
    return absl::InvalidArgumentError("its lanes have chunks of different sizes");
  }
  if (in.frame.has_chunk()) return OnChunk(*first, route, in);
  return OnOpen(*first, route, in.frame.transfer(), in.frame.peer_open());
}

absl::Status PeerLink::OnOpen(Route& first, const Route& route, uint64_t number,
                              const v1::PeerOpen& open) {
  const int channel = open.channel();
  const int lane = route.hello.lane();
  if (!Carries(lane, channel)) {
    return absl::InvalidArgumentError(absl::StrCat("channel ", channel, " on the wrong lane"));
  }
  const auto known = first.incoming.find(number);
  if (known == first.incoming.end()) {
    ATOLL_RETURN_IF_ERROR(CheckOpen(first, number, open));
    Take(first, number, open);
  }
  Incoming& incoming = first.incoming[number];
  const bool same = incoming.channel == channel && incoming.sequence == open.sequence() &&
                    incoming.bytes == open.bytes() && incoming.header == open.header();
  if (!same || incoming.complete || (incoming.opened >> lane & 1) != 0) {
    return absl::InvalidArgumentError("a message was opened out of turn");
  }
  incoming.opened |= 1u << lane;
  if (incoming.bytes == 0) {
    incoming.complete = true;
    DeliverReady(first, channel);
  }
  return absl::OkStatus();
}

// Other lanes may bring later messages of the channel first: what is granted bounds how many.
absl::Status PeerLink::CheckOpen(const Route& first, uint64_t number,
                                 const v1::PeerOpen& open) const {
  const int channel = open.channel();
  if (open.sequence() <= first.delivered[channel] ||
      open.sequence() > first.granted[channel] / kPeerMessageCost ||
      first.numbers[channel].contains(open.sequence()) || number == first.hello_number) {
    return absl::InvalidArgumentError("a message was opened out of turn");
  }
  const int64_t cost = open.bytes() + kPeerMessageCost;
  if (first.received[channel] + cost > first.granted[channel]) {
    return absl::InvalidArgumentError(
        absl::StrCat(open.bytes(), " bytes were not granted on channel ", channel));
  }
  return absl::OkStatus();
}

void PeerLink::Take(Route& first, uint64_t number, const v1::PeerOpen& open) {
  const int channel = open.channel();
  const NodeId& from = first.hello.from();
  first.last_number = std::max(first.last_number, number);
  first.received[channel] += open.bytes() + kPeerMessageCost;
  first.numbers[channel][open.sequence()] = number;
  Incoming& incoming = first.incoming[number];
  incoming.channel = channel;
  incoming.sequence = open.sequence();
  incoming.number = number;
  incoming.header = open.header();
  incoming.bytes = open.bytes();
  incoming.wants_arrival = open.wants_arrival();
  // Numbers that are added up need no alignment, and are not copied.
  incoming.stays = channel == static_cast<int>(PeerChannel::kCollective) && incoming.bytes > 0 &&
                   incoming.bytes <= first.hello.chunk_bytes();
  const absl::Status admitted =
      handler_->Admit(from, static_cast<PeerChannel>(channel), incoming.header, incoming.bytes);
  if (!admitted.ok()) {
    incoming.dropped = true;
    Count(from, &PeerCounters::messages_refused);
    Arrived(first, incoming, std::string(admitted.message()));
  } else if (!incoming.stays) {
    incoming.payload = pool_->Take(incoming.bytes);
    incoming.tensor.emplace(std::span(incoming.payload.data(), static_cast<size_t>(incoming.bytes)),
                            first.hello.chunk_bytes());
  }
}

absl::Status PeerLink::OnChunk(Route& first, const Route& route, LinkFrame& in) {
  ATOLL_RETURN_IF_ERROR(in.opened);
  const auto found = first.incoming.find(in.frame.transfer());
  if (found == first.incoming.end() || found->second.complete ||
      (found->second.opened >> route.hello.lane() & 1) == 0) {
    return absl::InvalidArgumentError("a chunk of no open message");
  }
  Incoming& incoming = found->second;
  const auto bytes = static_cast<int64_t>(in.payload.bytes().size());
  ATOLL_RETURN_IF_ERROR(Accept(incoming, in));
  if (!incoming.dropped) {
    const NodeId& from = first.hello.from();
    const int edge = EdgeFromLane(route.hello.lane(), Find(from)->edges);
    const std::lock_guard lock(mutex_);
    PeerCounters& counters = directory_[from].counters;
    counters.payload_bytes_received += bytes;
    counters.edge_bytes_received[static_cast<size_t>(edge)] += bytes;
  }
  if (incoming.complete) DeliverReady(first, incoming.channel);
  return absl::OkStatus();
}

absl::Status PeerLink::Accept(Incoming& incoming, LinkFrame& in) {
  const v1::Chunk& chunk = in.frame.chunk();
  if (incoming.dropped) {
    const auto bytes = static_cast<int64_t>(in.payload.bytes().size());
    incoming.dropped_bytes += bytes;
    if (bytes == 0 || incoming.dropped_bytes > incoming.bytes) {
      return absl::InvalidArgumentError("chunks do not add up to the message's length");
    }
    incoming.complete = incoming.dropped_bytes == incoming.bytes;
  } else if (incoming.stays) {
    ATOLL_RETURN_IF_ERROR(CheckOnlyChunk(chunk, in.payload.bytes(), incoming.bytes));
    if (chunk.tag().empty()) incoming.checksum = chunk.checksum();
    const auto kept = std::make_shared<Message>(std::move(in.payload));
    incoming.payload = Payload(kept, kept->writable());
    incoming.complete = true;
  } else {
    ATOLL_RETURN_IF_ERROR(incoming.tensor->AcceptOnce(chunk, in.payload.bytes()));
    incoming.complete = incoming.tensor->complete();
  }
  return absl::OkStatus();
}

// Delivers what has come whole, as far as nothing sent before it is missing.
void PeerLink::DeliverReady(Route& first, int channel) {
  auto& numbers = first.numbers[channel];
  while (!numbers.empty() && numbers.begin()->first == first.delivered[channel] + 1) {
    const auto next = first.incoming.find(numbers.begin()->second);
    if (!next->second.complete) return;
    Incoming incoming = std::move(next->second);
    first.incoming.erase(next);
    numbers.erase(numbers.begin());
    ++first.delivered[channel];
    Deliver(first, std::move(incoming));
  }
}

void PeerLink::Deliver(Route& first, Incoming incoming) {
  const int channel = incoming.channel;
  const int64_t cost = incoming.bytes + kPeerMessageCost;
  if (incoming.dropped) return ReturnCredit(first.id, first.session, channel, cost);
  Arrived(first, incoming, "");
  PeerDelivery delivery;
  delivery.fence = *fence_;
  delivery.from = first.hello.from();
  delivery.channel = static_cast<PeerChannel>(channel);
  delivery.header = std::move(incoming.header);
  delivery.payload = std::move(incoming.payload);
  delivery.checksum = incoming.checksum;
  delivery.credit =
      std::make_shared<AtEnd>(tasks_, [this, id = first.id, session = first.session, channel,
                                       cost] { ReturnCredit(id, session, channel, cost); });
  handler_->OnMessage(std::move(delivery));
}

void PeerLink::Arrived(Route& route, const Incoming& incoming, const std::string& refusal) {
  if (!incoming.wants_arrival) return;
  v1::Frame frame = MakeFrame(incoming.number);
  frame.mutable_peer_arrival()->set_refused(!refusal.empty());
  frame.mutable_peer_arrival()->set_reason(refusal.substr(0, kReasonBytesMax));
  link_->Send(route.id, frame);
}

void PeerLink::ReturnCredit(const std::string& id, uint64_t session, int channel, int64_t cost) {
  const auto it = routes_.find(id);
  if (it == routes_.end() || it->second.session != session || !it->second.welcomed) return;
  Route& route = it->second;
  route.returned[channel] += cost;
  const int64_t limit = route.returned[channel] + options_.window_bytes[channel];
  const bool idle = route.returned[channel] == route.received[channel];
  if (!idle && limit - route.granted[channel] < kCreditStep) return;
  route.granted[channel] = limit;
  v1::Frame frame = MakeFrame(route.last_number);
  frame.mutable_peer_credit()->set_channel(channel);
  frame.mutable_peer_credit()->set_limit(limit);
  link_->Send(id, frame);
}

}  // namespace atl

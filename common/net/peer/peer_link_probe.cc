// Probes of workers that may be no peers, and samples sent to them, on the caller's thread.

#include <algorithm>

#include "common/event_loop.h"
#include "common/net/peer/peer_link.h"

namespace atl {
namespace {

constexpr int kLookAgainMs = 100;  // whether it is time for another way

// A connection of its own, if it can be had.
struct Attempt {
  absl::Status Start(ZmqContext& context, const PeerLinkOptions& options,
                     const IslandMember& member, int edge = 0) {
    const ClientSecurity security{options.keys, options.allow_plaintext_beyond_loopback};
    ATOLL_RETURN_IF_ERROR(
        CheckSecurity(security, GetEdgeEndpoint(member, edge), member.public_key));
    // Nothing is sealed here but headers, which wake no thread.
    ATOLL_ASSIGN_OR_RETURN(link,
                           LinkClient::Create(context, options.keys, member.public_key, [] {}));
    return link->Connect(GetEdgeAddress(options, member, edge));
  }

  void Look() {
    while (const std::optional<ConnectionEvent> event =
               over ? std::nullopt : link->Next(SteadyNow())) {
      if (*event == ConnectionEvent::kConnected) continue;  // any process may have accepted it
      up = *event == ConnectionEvent::kUp;
      over = up || *event == ConnectionEvent::kUnknownKey;
      trouble = std::string(Explain(*event));
    }
  }

  std::unique_ptr<LinkClient> link;
  bool up = false;
  bool over = false;  // answered, or nothing more can come
  std::string trouble = "no connection";
};

int MsLeft(Instant deadline) {
  const Duration left = std::max(deadline - SteadyNow(), Duration(0));
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
}

// Returns when all are over, or at the deadline.
void Await(std::span<Attempt> attempts, Instant deadline) {
  for (;;) {
    std::vector<Socket*> sockets;
    LinkFrame ignored;
    for (Attempt& attempt : attempts) {
      if (!attempt.over) attempt.Look();
      if (attempt.over) continue;
      while (attempt.link->Receive(&ignored)) {
      }
      attempt.link->AddTo(&sockets);
    }
    if (sockets.empty() || SteadyNow() >= deadline) return;
    Socket::Poll(sockets, /*descriptor=*/-1, std::min(MsLeft(deadline), kLookAgainMs));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerSampler>> PeerLink::Sample(const IslandMember& member, int edge,
                                                              Duration limit) const {
  Attempt attempt;
  ATOLL_RETURN_IF_ERROR(attempt.Start(*context_, options_, member, edge));
  Await({&attempt, 1}, SteadyNow() + limit);
  if (attempt.up) {
    return std::unique_ptr<PeerSampler>(new PeerSampler(options_, member, std::move(attempt.link)));
  }
  if (attempt.over) return absl::PermissionDeniedError(attempt.trouble);
  return absl::UnavailableError(attempt.trouble);
}

PeerSampler::PeerSampler(const PeerLinkOptions& options, const IslandMember& to,
                         std::unique_ptr<LinkClient> link)
    : chunk_bytes_(options.chunk_bytes),
      to_(to.worker),
      bytes_(std::make_shared<std::vector<std::byte>>(static_cast<size_t>(chunk_bytes_))),
      link_(std::move(link)) {
  sample_.set_from(options.name);
  sample_.set_from_incarnation(options.incarnation);
  sample_.set_to(to.worker);
  sample_.set_to_incarnation(to.incarnation);
}

absl::StatusOr<double> PeerSampler::Time(int64_t bytes, Duration timeout) {
  const Instant start = SteadyNow();
  const Instant deadline = start + timeout;
  ++number_;
  do {
    const int64_t chunk = std::min(bytes, chunk_bytes_);
    bytes -= chunk;
    ATOLL_RETURN_IF_ERROR(Send(chunk, bytes == 0, deadline));
  } while (bytes > 0);
  ATOLL_RETURN_IF_ERROR(Answered(deadline));
  return Seconds(SteadyNow() - start);
}

absl::Status PeerSampler::Await(short events, Instant deadline) {
  zmq_pollitem_t item = {link_->socket(), 0, events, 0};
  if (zmq_poll(&item, 1, MsLeft(deadline)) == 1) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("a sample to ", to_, " took too long"));
}

absl::Status PeerSampler::Send(int64_t chunk, bool last, Instant deadline) {
  v1::Frame frame = MakeFrame(number_);
  sample_.set_last(last);
  *frame.mutable_peer_sample() = sample_;
  for (;;) {
    Message payload =
        Message::Wrap(std::span(*bytes_).first(static_cast<size_t>(chunk)), [bytes = bytes_] {});
    const SendOutcome outcome = link_->Send(frame, &payload);
    if (outcome == SendOutcome::kSent) return absl::OkStatus();
    if (outcome == SendOutcome::kUnreachable) {
      return absl::UnavailableError("the connection was lost");
    }
    ATOLL_RETURN_IF_ERROR(Await(ZMQ_POLLOUT, deadline));
  }
}

absl::Status PeerSampler::Answered(Instant deadline) {
  LinkFrame in;
  for (;;) {
    ATOLL_RETURN_IF_ERROR(Await(ZMQ_POLLIN, deadline));
    link_->Flush();
    if (!link_->Receive(&in)) continue;
    if (!in.status.ok() || in.frame.transfer() != number_) {
      continue;  // of a sample that has ended, or nonsense
    }
    if (in.frame.has_peer_sampled()) return absl::OkStatus();
    if (in.frame.has_peer_refusal()) {
      return absl::PermissionDeniedError(in.frame.peer_refusal().reason());
    }
  }
}

std::string PeerLink::FindRelay(const IslandMember& member) const {
  const std::string& endpoint = GetEdgeEndpoint(member, 0);
  const std::optional<LinkWay> way = context_->ways().Find(endpoint, SteadyNow());
  return way ? way->relay() : "";
}

std::vector<std::pair<NodeId, std::string>> PeerLink::Probe(
    const std::vector<IslandMember>& members, Duration limit) const {
  std::vector<Attempt> attempts(members.size());
  std::vector<std::pair<NodeId, std::string>> silent;
  for (size_t i = 0; i < members.size(); ++i) {
    const absl::Status started = attempts[i].Start(*context_, options_, members[i]);
    if (started.ok()) continue;
    attempts[i].over = true;
    silent.emplace_back(members[i].worker, started.message());
  }
  Await(attempts, SteadyNow() + limit);
  // A peer that refuses us has its key, and knows what a peer is.
  for (size_t i = 0; i < members.size(); ++i) {
    if (!attempts[i].over) silent.emplace_back(members[i].worker, attempts[i].trouble);
  }
  return silent;
}

}  // namespace atl

// Probes of workers that may be no peers, and samples sent to them, on the caller's thread.

#include <algorithm>

#include "common/event_loop.h"
#include "common/net/peer/peer_link.h"

namespace atl {
namespace {

// A connection of its own.
absl::StatusOr<std::unique_ptr<LinkClient>> Connect(ZmqContext& context,
                                                    const PeerLinkOptions& options,
                                                    const IslandMember& member, int edge = 0) {
  const ClientSecurity security{options.keys, options.allow_plaintext_beyond_loopback};
  ATOLL_RETURN_IF_ERROR(CheckSecurity(security, GetEdgeEndpoint(member, edge), member.public_key));
  // Nothing is sealed here but headers, which wake no thread.
  ATOLL_ASSIGN_OR_RETURN(auto link,
                         LinkClient::Create(context, options.keys, member.public_key, [] {}));
  ATOLL_RETURN_IF_ERROR(link->Connect(GetEdgeAddress(options, member, edge)));
  return link;
}

// Returns whether a connection can be had.
struct Attempt {
  absl::Status Start(ZmqContext& context, const PeerLinkOptions& options,
                     const IslandMember& member, int edge = 0) {
    ATOLL_ASSIGN_OR_RETURN(link, Connect(context, options, member, edge));
    return absl::OkStatus();
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
    Socket::Poll(sockets, /*descriptor=*/-1, MsLeft(deadline));
  }
}

class Sampler final : public PeerSampler {
 public:
  Sampler(const PeerLinkOptions& options, IslandMember to)
      : name_(options.name),
        incarnation_(options.incarnation),
        chunk_bytes_(options.chunk_bytes),
        to_(std::move(to)),
        bytes_(std::make_shared<std::vector<std::byte>>(static_cast<size_t>(chunk_bytes_))) {}

  // Returns when the handshake is over.
  absl::Status Connect(ZmqContext& context, const PeerLinkOptions& options, int edge,
                       Duration limit) {
    Attempt attempt;
    ATOLL_RETURN_IF_ERROR(attempt.Start(context, options, to_, edge));
    Await({&attempt, 1}, SteadyNow() + limit);
    link_ = std::move(attempt.link);
    if (attempt.up) return absl::OkStatus();
    return attempt.over ? absl::PermissionDeniedError(attempt.trouble)
                        : absl::UnavailableError(attempt.trouble);
  }

  absl::StatusOr<double> Time(int64_t bytes, Duration timeout) override {
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

 private:
  absl::Status Late() const {
    return absl::DeadlineExceededError(absl::StrCat("a sample to ", to_.worker, " took too long"));
  }

  absl::Status Send(int64_t chunk, bool last, Instant deadline) {
    v1::Frame frame = MakeFrame(number_);
    v1::PeerSample& sample = *frame.mutable_peer_sample();
    sample.set_from(name_);
    sample.set_from_incarnation(incarnation_);
    sample.set_to(to_.worker);
    sample.set_to_incarnation(to_.incarnation);
    sample.set_last(last);
    for (;;) {
      Message payload =
          Message::Wrap(std::span(*bytes_).first(static_cast<size_t>(chunk)), [bytes = bytes_] {});
      switch (link_->Send(frame, &payload)) {
        case SendOutcome::kSent:
          return absl::OkStatus();
        case SendOutcome::kUnreachable:
          return absl::UnavailableError("the connection was lost");
        case SendOutcome::kFull:
          break;
      }
      zmq_pollitem_t item = {link_->socket(), 0, ZMQ_POLLOUT, 0};
      if (zmq_poll(&item, 1, MsLeft(deadline)) != 1) return Late();
    }
  }

  absl::Status Answered(Instant deadline) {
    LinkFrame in;
    for (;;) {
      zmq_pollitem_t item = {link_->socket(), 0, ZMQ_POLLIN, 0};
      if (zmq_poll(&item, 1, MsLeft(deadline)) != 1) return Late();
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

  const NodeId name_;
  const Incarnation incarnation_;
  const int64_t chunk_bytes_;
  const IslandMember to_;
  const std::shared_ptr<std::vector<std::byte>> bytes_;  // libzmq holds them, too
  uint64_t number_ = 0;
  std::unique_ptr<LinkClient> link_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PeerSampler>> PeerLink::Sample(const IslandMember& member, int edge,
                                                              Duration limit) const {
  auto sampler = std::make_unique<Sampler>(options_, member);
  ATOLL_RETURN_IF_ERROR(sampler->Connect(*context_, options_, edge, limit));
  return std::unique_ptr<PeerSampler>(std::move(sampler));
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

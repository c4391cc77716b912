// Probes of workers that may be no peers, and samples sent to them, on the caller's thread.

#include <algorithm>

#include "common/event_loop.h"
#include "common/net/peer_link_impl.h"

namespace atl {
namespace {

// A connection of its own.
class Connection {
 public:
  Connection() = default;
  ~Connection() {
    if (dealer.get() != nullptr) zmq_socket_monitor(dealer.get(), nullptr, 0);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  absl::Status Start(ZmqContext& context, const PeerLinkOptions& options,
                     const IslandMember& member) {
    const ClientSecurity security{options.keys, options.allow_plaintext_beyond_loopback};
    ATOLL_RETURN_IF_ERROR(CheckSecurity(security, member.endpoint, member.public_key));
    ATOLL_ASSIGN_OR_RETURN(dealer, context.MakeTensorSocket(ZMQ_DEALER));
    if (!member.public_key.empty()) {
      ATOLL_RETURN_IF_ERROR(SetCurveClient(dealer, options.keys, member.public_key));
    }
    ATOLL_ASSIGN_OR_RETURN(watch, ConnectionWatch::Create(context, dealer));
    if (zmq_connect(dealer.get(), member.endpoint.c_str()) != 0) return ZmqError(member.endpoint);
    return absl::OkStatus();
  }

  Socket dealer;
  ConnectionWatch watch;
};

class Attempt {
 public:
  explicit Attempt(const IslandMember& member) : member_(member) {}

  absl::Status Start(ZmqContext& context, const PeerLinkOptions& options) {
    return connection_.Start(context, options, member_);
  }
  // It is over: answered, or nothing more can come.
  void End(std::string trouble) {
    over_ = true;
    trouble_ = std::move(trouble);
  }

  void Look() {
    while (const std::optional<ConnectionEvent> event = connection_.watch.Next()) {
      if (*event == ConnectionEvent::kConnected) continue;  // any process may have accepted it
      // A peer that refuses us has its key, and knows what a peer is.
      const bool answered =
          *event == ConnectionEvent::kUp || *event == ConnectionEvent::kUnknownKey;
      if (answered) return End("");
      trouble_ = std::string(Explain(*event));
    }
  }

  bool over() const { return over_; }
  const NodeId& worker() const { return member_.worker; }
  const std::string& trouble() const { return trouble_; }
  void* socket() const { return connection_.watch.socket(); }

 private:
  const IslandMember& member_;
  Connection connection_;
  bool over_ = false;
  std::string trouble_ = "no connection";
};

int MsLeft(Instant deadline) {
  const Duration left = std::max(deadline - SteadyNow(), Duration(0));
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
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
  absl::Status Connect(ZmqContext& context, const PeerLinkOptions& options, Duration limit) {
    const Instant deadline = SteadyNow() + limit;
    ATOLL_RETURN_IF_ERROR(connection_.Start(context, options, to_));
    std::string trouble = "no connection";
    while (SteadyNow() < deadline) {
      zmq_pollitem_t item = {connection_.watch.socket(), 0, ZMQ_POLLIN, 0};
      zmq_poll(&item, 1, MsLeft(deadline));
      while (const auto event = connection_.watch.Next()) {
        if (*event == ConnectionEvent::kUp) return absl::OkStatus();
        trouble = std::string(Explain(*event));
        if (*event == ConnectionEvent::kUnknownKey) return absl::PermissionDeniedError(trouble);
      }
    }
    return absl::UnavailableError(trouble);
  }

  absl::StatusOr<double> Time(int64_t bytes, Duration timeout) override {
    const Instant start = SteadyNow();
    const Instant deadline = start + timeout;
    ++number_;
    do {
      const int64_t piece = std::min(bytes, chunk_bytes_);
      bytes -= piece;
      ATOLL_RETURN_IF_ERROR(Send(piece, bytes == 0, deadline));
    } while (bytes > 0);
    ATOLL_RETURN_IF_ERROR(Answered(deadline));
    return Seconds(SteadyNow() - start);
  }

 private:
  absl::Status Late() const {
    return absl::DeadlineExceededError(absl::StrCat("a sample to ", to_.worker, " took too long"));
  }

  absl::Status Send(int64_t piece, bool last, Instant deadline) {
    v1::Frame frame = MakeFrame(number_);
    v1::PeerSample& sample = *frame.mutable_peer_sample();
    sample.set_from(name_);
    sample.set_from_incarnation(incarnation_);
    sample.set_to(to_.worker);
    sample.set_to_incarnation(to_.incarnation);
    sample.set_last(last);
    Message parts[2] = {
        Message::Of(frame.SerializeAsString()),
        Message::Borrow(std::span(*bytes_).first(static_cast<size_t>(piece)), [bytes = bytes_] {})};
    for (;;) {
      switch (connection_.dealer.Send(parts)) {
        case SendOutcome::kSent:
          return absl::OkStatus();
        case SendOutcome::kUnreachable:
          return absl::UnavailableError("the connection was lost");
        case SendOutcome::kFull:
          break;
      }
      zmq_pollitem_t item = {connection_.dealer.get(), 0, ZMQ_POLLOUT, 0};
      if (zmq_poll(&item, 1, MsLeft(deadline)) != 1) return Late();
    }
  }

  absl::Status Answered(Instant deadline) {
    std::vector<Message> parts;
    for (;;) {
      zmq_pollitem_t item = {connection_.dealer.get(), 0, ZMQ_POLLIN, 0};
      if (zmq_poll(&item, 1, MsLeft(deadline)) != 1) return Late();
      if (!connection_.dealer.Receive(&parts, 1)) continue;
      v1::Frame frame;
      if (parts.size() != 1 || !ParseFrame(parts[0].text(), false, &frame).ok() ||
          frame.transfer() != number_) {
        continue;  // of a sample that has ended, or nonsense
      }
      if (frame.has_peer_sampled()) return absl::OkStatus();
      if (frame.has_peer_refusal()) {
        return absl::PermissionDeniedError(frame.peer_refusal().reason());
      }
    }
  }

  const NodeId name_;
  const Incarnation incarnation_;
  const int64_t chunk_bytes_;
  const IslandMember to_;
  const std::shared_ptr<std::vector<std::byte>> bytes_;  // libzmq holds them, too
  uint64_t number_ = 0;
  Connection connection_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PeerSampler>> PeerLink::Impl::Sample(const IslandMember& member,
                                                                    Duration limit) const {
  auto sampler = std::make_unique<Sampler>(options_, member);
  ATOLL_RETURN_IF_ERROR(sampler->Connect(*context_, options_, limit));
  return std::unique_ptr<PeerSampler>(std::move(sampler));
}

std::vector<std::pair<NodeId, std::string>> PeerLink::Impl::Probe(
    const std::vector<IslandMember>& members, Duration limit) const {
  std::vector<std::unique_ptr<Attempt>> attempts;
  for (const IslandMember& member : members) {
    Attempt& attempt = *attempts.emplace_back(std::make_unique<Attempt>(member));
    const absl::Status started = attempt.Start(*context_, options_);
    if (!started.ok()) attempt.End(std::string(started.message()));
  }
  const Instant deadline = SteadyNow() + limit;
  for (;;) {
    std::vector<zmq_pollitem_t> items;
    for (const auto& attempt : attempts) {
      if (!attempt->over()) items.push_back({attempt->socket(), 0, ZMQ_POLLIN, 0});
    }
    const Duration left = deadline - SteadyNow();
    if (items.empty() || left <= Duration(0)) break;
    zmq_poll(items.data(), static_cast<int>(items.size()),
             std::chrono::ceil<std::chrono::milliseconds>(left).count());
    for (const auto& attempt : attempts) {
      if (!attempt->over()) attempt->Look();
    }
  }
  std::vector<std::pair<NodeId, std::string>> silent;
  for (const auto& attempt : attempts) {
    if (attempt->over() && attempt->trouble().empty()) continue;
    silent.emplace_back(attempt->worker(), attempt->trouble());
  }
  return silent;
}

}  // namespace atl

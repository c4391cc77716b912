// Probes of workers that may be no peers, on the caller's thread.

#include "common/event_loop.h"
#include "common/net/peer_link_impl.h"

namespace atl {
namespace {

class Attempt {
 public:
  explicit Attempt(const IslandMember& member) : member_(member) {}
  ~Attempt() {
    if (dealer_.get() != nullptr) zmq_socket_monitor(dealer_.get(), nullptr, 0);
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  absl::Status Start(ZmqContext& context, const PeerLinkOptions& options) {
    const ClientSecurity security{options.keys, options.allow_plaintext_beyond_loopback};
    ATOLL_RETURN_IF_ERROR(CheckSecurity(security, member_.endpoint, member_.public_key));
    ATOLL_ASSIGN_OR_RETURN(dealer_, context.MakeTensorSocket(ZMQ_DEALER));
    if (!member_.public_key.empty()) {
      ATOLL_RETURN_IF_ERROR(SetCurveClient(dealer_, options.keys, member_.public_key));
    }
    ATOLL_ASSIGN_OR_RETURN(watch_, ConnectionWatch::Create(context, dealer_));
    if (zmq_connect(dealer_.get(), member_.endpoint.c_str()) != 0) {
      return ZmqError(member_.endpoint);
    }
    return absl::OkStatus();
  }
  // It is over: answered, or nothing more can come.
  void End(std::string trouble) {
    over_ = true;
    trouble_ = std::move(trouble);
  }

  void Look() {
    while (const std::optional<ConnectionEvent> event = watch_.Next()) {
      if (*event == ConnectionEvent::kConnected) continue;  // anybody may have taken it
      // Whoever turns us away has its key, and knows what a peer is.
      const bool answered =
          *event == ConnectionEvent::kUp || *event == ConnectionEvent::kUnknownKey;
      if (answered) return End("");
      trouble_ = std::string(Explain(*event));
    }
  }

  bool over() const { return over_; }
  const NodeId& worker() const { return member_.worker; }
  const std::string& trouble() const { return trouble_; }
  void* socket() const { return watch_.socket(); }

 private:
  const IslandMember& member_;
  Socket dealer_;
  ConnectionWatch watch_;
  bool over_ = false;
  std::string trouble_ = "no connection";
};

}  // namespace

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

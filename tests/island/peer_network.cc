#include "tests/island/peer_network.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/event_loop.h"
#include "worker/collectives/communicators.h"
#include "worker/island/member/peer_transport.h"

namespace atl::worker {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);  // passes only if something hangs

// Returns whether the header is that of a block of a collective ("sum FROM TO CALL KIND OFFSET
// GROUP"): else it says why its sender ends.
bool HasNumbers(absl::string_view header) {
  const std::vector<std::string> words = absl::StrSplit(header, absl::MaxSplits(' ', 5));
  return words.size() > 4 && (words[4] == "0" || words[4] == "1");
}

}  // namespace

// One worker's end.
class PeerNetwork::Node final : private PeerHandler {
 public:
  Node(const NodeId& worker, KeyPair keys)
      : transport(
            worker, int64_t{64} << 20,
            [](const NodeId&, const SharedLinkCall&) { ATOLL_CHECK(false, "no line is shared"); }),
        blocks(worker, &link) {
    PeerLinkOptions options;
    options.name = worker;
    options.incarnation = 1;
    options.keys = std::move(keys);
    address = {worker, 1, "", options.keys.public_key};
    link = PeerLink::Create(std::move(options), this).value();
    address.endpoint = link->endpoint();
    transport.Use(link.get());
  }
  ~Node() override {
    transport.Stop();
    link.reset();
  }

  IslandMember address;
  PeerTransport transport;
  PeerBlocks blocks;
  std::unique_ptr<Communicators> older, communicators;
  std::map<NodeId, std::string> sites;  // of all workers; set before the first plan
  std::atomic<int64_t> tensors = 0, all_reduces = 0, all_reduce_bytes_between_sites = 0;
  std::unique_ptr<PeerLink> link;  // last: it calls the others

 private:
  absl::Status Admit(const NodeId& from, PeerChannel channel, absl::string_view header,
                     int64_t payload_bytes) override {
    if (channel == PeerChannel::kCollective) return blocks.Admit(header, payload_bytes);
    return transport.Admit(from, header, payload_bytes);
  }
  void OnMessage(PeerDelivery delivery) override {
    if (delivery.channel == PeerChannel::kCollective) {
      ++all_reduces;
      if (HasNumbers(delivery.header) && sites[delivery.from] != sites[address.worker]) {
        all_reduce_bytes_between_sites += delivery.payload.size();
      }
      blocks.OnMessage(std::move(delivery));
    } else {
      ++tensors;
      transport.OnMessage(std::move(delivery));
    }
  }
  void OnPeerLost(const NodeId&, const std::string& reason) override {
    transport.Abort(reason);
    blocks.OnPeerLost();
  }
};

PeerNetwork::PeerNetwork(const IslandPlan& plan, bool with_keys, Seen* seen) : seen_(seen) {
  for (const IslandMember& member : plan.members) {
    nodes_[member.worker] =
        std::make_unique<Node>(member.worker, with_keys ? GenerateKeyPair().value() : KeyPair());
  }
  for (const auto& [worker, node] : nodes_) {
    for (const IslandMember& member : plan.members) node->sites[member.worker] = member.site;
  }
}

PeerNetwork::~PeerNetwork() {
  for (const auto& [worker, node] : nodes_) {
    seen_->tensors += node->tensors;
    seen_->all_reduces += node->all_reduces;
    seen_->all_reduce_bytes_between_sites += node->all_reduce_bytes_between_sites;
  }
}

void PeerNetwork::Begin(const IslandPlan& plan) {
  ++plans_;
  std::vector<IslandMember> members;
  for (const auto& [worker, node] : nodes_) members.push_back(node->address);
  for (const auto& [worker, node] : nodes_) {
    const absl::Status status = node->link->SetPeers({"job", 1, plans_}, members);
    ATOLL_CHECK(status.ok(), status.ToString());
    node->transport.BeginEpoch(plans_);
    node->transport.SetPlan(plan);
    CommunicatorsOptions options;
    options.worker = worker;
    options.scope = absl::StrCat("job/1/", plans_);
    options.peer_blocks = &node->blocks;
    options.sites = node->sites;
    options.timeout = kLong;
    node->blocks.BeginScope(options.scope + "/");
    node->older = std::move(node->communicators);
    node->communicators = std::make_unique<Communicators>(std::move(options));
  }
  for (const auto& [worker, node] : nodes_) {
    const absl::Status status = node->link->AwaitPeers(SteadyNow() + kLong);
    ATOLL_CHECK(status.ok(), status.ToString());
  }
}

Transport& PeerNetwork::transport(const NodeId& worker) { return nodes_.at(worker)->transport; }

CommunicatorFactory& PeerNetwork::communicators(const NodeId& worker) {
  return *nodes_.at(worker)->communicators;
}

}  // namespace atl::worker

#include "tests/island/peer_network.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/event_loop.h"
#include "worker/collectives/communicators.h"
#include "worker/island/member/peer_rendezvous.h"
#include "worker/island/member/peer_transport.h"

namespace atl::worker {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);  // passes only if something hangs

// Of a block of a collective ("sum FROM TO CALL KIND OFFSET GROUP"): else it says why its sender
// ends.
bool HasNumbers(absl::string_view header) {
  const std::vector<std::string> words = absl::StrSplit(header, absl::MaxSplits(' ', 5));
  return words.size() > 4 && (words[4] == "0" || words[4] == "1");
}

}  // namespace

// One worker's end.
class PeerNetwork::Place final : private PeerHandler {
 public:
  Place(const NodeId& worker, KeyPair keys, PeerRendezvous::Tell tell)
      : rendezvous(std::move(tell)),
        transport(worker, int64_t{64} << 20,
                  [](const NodeId&, const LineCall&) { ATOLL_CHECK(false, "no line is shared"); }),
        blocks(worker, SumsOver(&link)) {
    PeerLinkOptions options;
    options.name = worker;
    options.incarnation = 1;
    options.keys = std::move(keys);
    address = {worker, 1, "", options.keys.public_key};
    link = PeerLink::Create(std::move(options), this).value();
    address.endpoint = link->endpoint();
    transport.Use(link.get());
  }
  ~Place() override {
    transport.Stop();
    link.reset();
  }

  IslandMember address;
  PeerRendezvous rendezvous;
  PeerTransport transport;
  PeerBlocks blocks;
  std::unique_ptr<Communicators> older, communicators;
  std::map<NodeId, std::string> sites;  // of all workers; set before the first plan
  std::atomic<int64_t> tensors = 0, sums = 0, sum_bytes_between_sites = 0;
  std::unique_ptr<PeerLink> link;  // last: it calls the others

 private:
  absl::Status Admit(const NodeId& from, PeerChannel channel, absl::string_view header,
                     int64_t payload_bytes) override {
    if (channel == PeerChannel::kSum) return blocks.Admit(header, payload_bytes);
    return transport.Admit(from, header, payload_bytes);
  }
  void OnMessage(PeerDelivery delivery) override {
    if (delivery.channel == PeerChannel::kSum) {
      ++sums;
      if (HasNumbers(delivery.header) && sites[delivery.from] != sites[address.worker]) {
        sum_bytes_between_sites += delivery.payload.size();
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

PeerNetwork::PeerNetwork(const IslandPlan& plan, bool with_keys, Seen* seen)
    : with_keys_(with_keys), seen_(seen) {
  for (const IslandMember& member : plan.members) {
    const auto tell = [this, own = member.worker](const std::string& key,
                                                  const std::string& value) {
      for (const auto& [worker, place] : places_) {
        if (worker != own) place->rendezvous.OnEntry(plans_, key, value);
      }
      return absl::OkStatus();
    };
    places_[member.worker] = std::make_unique<Place>(
        member.worker, with_keys ? GenerateKeyPair().value() : KeyPair(), tell);
  }
  for (const auto& [worker, place] : places_) {
    for (const IslandMember& member : plan.members) place->sites[member.worker] = member.site;
  }
}

PeerNetwork::~PeerNetwork() {
  for (const auto& [worker, place] : places_) {
    seen_->tensors += place->tensors;
    seen_->sums += place->sums;
    seen_->sum_bytes_between_sites += place->sum_bytes_between_sites;
  }
}

void PeerNetwork::Begin(const IslandPlan& plan) {
  ++plans_;
  std::vector<IslandMember> members;
  for (const auto& [worker, place] : places_) members.push_back(place->address);
  for (const auto& [worker, place] : places_) {
    const absl::Status status = place->link->SetPeers({"job", 1, plans_}, members);
    ATOLL_CHECK(status.ok(), status.ToString());
    place->rendezvous.BeginEpoch(plans_);
    place->transport.BeginEpoch(plans_);
    place->transport.SetPlan(plan);
    CommunicatorsOptions options;
    options.worker = worker;
    options.scope = absl::StrCat("job/1/", plans_);
    options.peer_blocks = with_keys_ ? &place->blocks : nullptr;
    options.sites = place->sites;
    options.timeout = kLong;
    place->blocks.BeginScope(options.scope + "/");
    place->older = std::move(place->communicators);
    place->communicators = std::make_unique<Communicators>(std::move(options), &place->rendezvous);
  }
  for (const auto& [worker, place] : places_) {
    const absl::Status status = place->link->AwaitPeers(SteadyNow() + kLong);
    ATOLL_CHECK(status.ok(), status.ToString());
  }
}

Transport& PeerNetwork::transport(const NodeId& worker) { return places_.at(worker)->transport; }

CommunicatorFactory& PeerNetwork::communicators(const NodeId& worker) {
  return *places_.at(worker)->communicators;
}

}  // namespace atl::worker

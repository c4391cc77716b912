#include "bench/collectives/message_pair.h"

#include <utility>

#include "common/check.h"
#include "common/event_loop.h"
#include "common/net/peer/peer_link.h"

namespace atl::bench {

class MessagePair::Worker final : public PeerHandler {
 public:
  Worker(const NodeId& name, const MessagePairOptions& wanted) {
    PeerLinkOptions options;
    options.name = name;
    options.incarnation = 1;
    options.more_endpoints = wanted.more_endpoints;
    if (wanted.encrypted) options.keys = GenerateKeyPair().value();
    const std::string public_key = options.keys.public_key;
    link = PeerLink::Create(std::move(options), this).value();
    member = {name, 1, link->endpoint(), public_key, "", "", link->more_endpoints()};
  }
  absl::Status Admit(const NodeId&, PeerChannel, absl::string_view, int64_t) override {
    return absl::OkStatus();
  }
  void OnMessage(PeerDelivery) override {}
  void OnPeerLost(const NodeId&, const std::string&) override {}  // messages report it

  IslandMember member;
  std::unique_ptr<PeerLink> link;
};

MessagePair::MessagePair(const MessagePairOptions& options) {
  std::vector<IslandMember> members;
  for (const char* name : {"a", "b"}) {
    workers_.push_back(std::make_unique<Worker>(name, options));
    members.push_back(workers_.back()->member);
  }
  for (const auto& worker : workers_) {
    ATOLL_CHECK(worker->link->SetPeers({"job-1", 1, 1}, members).ok());
  }
  for (const auto& worker : workers_) {
    ATOLL_CHECK(worker->link->AwaitPeers(SteadyNow() + std::chrono::seconds(20)).ok());
  }
}

MessagePair::~MessagePair() = default;

std::future<void> MessagePair::Send(const std::shared_ptr<std::vector<std::byte>>& bytes) {
  const auto arrived = std::make_shared<std::promise<void>>();
  PeerMessage message;
  message.channel = PeerChannel::kTensor;
  message.payload = *bytes;
  message.owner = bytes;
  message.arrived = [arrived](const absl::Status& status, PeerTiming) {
    ATOLL_CHECK(status.ok(), status.ToString());
    arrived->set_value();
  };
  ATOLL_CHECK(workers_[0]->link->Send(workers_[1]->member.worker, std::move(message)).ok());
  return arrived->get_future();
}

void MessagePair::Stream(const std::shared_ptr<std::vector<std::byte>>& bytes, int messages) {
  std::vector<std::future<void>> all;
  for (int i = 0; i < messages; ++i) all.push_back(Send(bytes));
  for (std::future<void>& one : all) one.wait();
}

}  // namespace atl::bench

// Groups in this process whose members are workers of their own, with real peer links on loopback.

#ifndef ATOLL_WORKER_COLLECTIVES_TESTING_PEER_MEMBERS_H_
#define ATOLL_WORKER_COLLECTIVES_TESTING_PEER_MEMBERS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/event_loop.h"
#include "common/net/peer/peer_link.h"
#include "worker/collectives/peer.h"

namespace atl::worker::testing {

// One worker: a link that carries blocks and nothing else.
class PeerWorker final : public PeerHandler {
 public:
  PeerWorker(const NodeId& name, KeyPair keys) : blocks(name, &link) {
    PeerLinkOptions options;
    options.name = name;
    options.incarnation = 1;
    options.keys = std::move(keys);
    member = {name, 1, "", options.keys.public_key};
    link = PeerLink::Create(options, this).value();
    member.endpoint = link->endpoint();
  }

  absl::Status Admit(const NodeId&, PeerChannel, absl::string_view header,
                     int64_t payload_bytes) override {
    return blocks.Admit(header, payload_bytes);
  }
  void OnMessage(PeerDelivery delivery) override { blocks.OnMessage(std::move(delivery)); }
  void OnPeerLost(const NodeId&, const std::string&) override { blocks.OnPeerLost(); }

  PeerBlocks blocks;
  IslandMember member;
  std::unique_ptr<PeerLink> link;  // last: it calls the others
};

// `workers` of them, that have met.
class PeerCluster {
 public:
  explicit PeerCluster(int workers, bool encrypted) {
    std::vector<IslandMember> members;
    for (int i = 0; i < workers; ++i) {
      peers_.push_back(std::make_unique<PeerWorker>(
          absl::StrCat("w", i), encrypted ? GenerateKeyPair().value() : KeyPair()));
      members.push_back(peers_.back()->member);
    }
    for (const auto& peer : peers_) {
      ATOLL_CHECK(peer->link->SetPeers({"job-1", 1, 1}, members).ok());
    }
    for (const auto& peer : peers_) {
      const absl::Status met = peer->link->AwaitPeers(SteadyNow() + std::chrono::seconds(60));
      ATOLL_CHECK(met.ok(), met.ToString());
    }
  }
  PeerWorker& peer(int worker) { return *peers_[worker]; }

 private:
  std::vector<std::unique_ptr<PeerWorker>> peers_;
};

// A member that keeps the cluster alive.
class PeerClusterMember final : public Communicator {
 public:
  PeerClusterMember(std::shared_ptr<PeerCluster> cluster, std::unique_ptr<Communicator> member)
      : cluster_(std::move(cluster)), member_(std::move(member)) {}

  int rank() const override { return member_->rank(); }
  int size() const override { return member_->size(); }
  absl::Status AllReduceSum(Backend& backend, Stream& stream, const Tensor& x) override {
    return member_->AllReduceSum(backend, stream, x);
  }
  absl::Status AllReduceMax(Backend& backend, Stream& stream, const Tensor& x) override {
    return member_->AllReduceMax(backend, stream, x);
  }
  absl::Status ReduceScatterSum(Backend& backend, Stream& stream, const Tensor& x,
                                const Cuts& cuts) override {
    return member_->ReduceScatterSum(backend, stream, x, cuts);
  }
  absl::Status AllGather(Backend& backend, Stream& stream, const Tensor& x, const Cuts& cuts,
                         const Routes& routes) override {
    return member_->AllGather(backend, stream, x, cuts, routes);
  }
  void Abort(const std::string& reason) override { member_->Abort(reason); }

 private:
  const std::shared_ptr<PeerCluster> cluster_;
  const std::unique_ptr<Communicator> member_;  // dies first
};

// Rank r is at worker r / devices_per_worker.
inline std::vector<std::unique_ptr<Communicator>> NewPeerMembers(
    int size, Duration timeout, bool encrypted, int devices_per_worker = 1,
    std::vector<std::string> sites = {}) {
  const int workers = (size + devices_per_worker - 1) / devices_per_worker;
  const auto cluster = std::make_shared<PeerCluster>(workers, encrypted);
  PeerGroup group{.name = "group", .sites = sites, .timeout = timeout};
  for (int rank = 0; rank < size; ++rank) {
    group.workers.push_back(absl::StrCat("w", rank / devices_per_worker));
  }
  std::vector<std::unique_ptr<Communicator>> members;
  for (int rank = 0; rank < size; ++rank) {
    group.rank = rank;
    members.push_back(std::make_unique<PeerClusterMember>(
        cluster, NewPeerCommunicator(&cluster->peer(rank / devices_per_worker).blocks, group)));
  }
  return members;
}

}  // namespace atl::worker::testing

#endif  // ATOLL_WORKER_COLLECTIVES_TESTING_PEER_MEMBERS_H_

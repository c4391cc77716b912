// The fixture of the tests of peer links: workers that remember what they received.

#ifndef ATOLL_COMMON_NET_TESTING_PEER_FIXTURE_H_
#define ATOLL_COMMON_NET_TESTING_PEER_FIXTURE_H_

#include <catch2/catch.hpp>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "common/event_loop.h"
#include "common/net/peer/peer_link.h"
#include "common/rng.h"
#include "tests/catch/limits.h"

namespace atl {

inline Instant In(Duration wait) { return SteadyNow() + wait; }
inline constexpr Duration kPatience = testing::kHangLimit;

inline PeerFence Plan(int64_t plan, Generation generation = 1) {
  return {"job-1", generation, plan};
}

inline std::string RandomText(size_t size) {
  Rng rng(size);
  std::string text(size, '\0');
  for (char& letter : text) letter = static_cast<char>(rng.Next());
  return text;
}

// A worker's link, and what came over it.
class TestPeer : public PeerHandler {
 public:
  explicit TestPeer(const NodeId& name, PeerLinkOptions options = {}) {
    options.name = name;
    if (options.incarnation == 0) options.incarnation = 1;
    member = {name, options.incarnation, "", options.keys.public_key};
    link = PeerLink::Create(options, this).value();
    member.endpoint = link->endpoint();
    member.more_endpoints = link->more_endpoints();
  }

  absl::Status Admit(const NodeId&, PeerChannel, absl::string_view header, int64_t) override {
    const std::lock_guard lock(mutex_);
    ++admissions_;
    return header == "unwanted" ? absl::NotFoundError("it is not expected") : absl::OkStatus();
  }
  void OnMessage(PeerDelivery delivery) override {
    const std::lock_guard lock(mutex_);
    received_[delivery.channel].push_back(std::move(delivery));
    changed_.notify_all();
  }
  void OnPeerLost(const NodeId& peer, const std::string& reason) override {
    const std::lock_guard lock(mutex_);
    lost_[peer].push_back(reason);
    changed_.notify_all();
  }

  void Say(const TestPeer& to, PeerChannel channel, const std::string& header,
           const std::string& text = "") {
    const absl::Status sent = TrySay(to, channel, header, text);
    INFO(sent.ToString());
    REQUIRE(sent.ok());
  }
  // Sends to a peer that may be lost by now.
  absl::Status TrySay(const TestPeer& to, PeerChannel channel, const std::string& header,
                      const std::string& text = "") {
    auto owned = std::make_shared<std::string>(text);
    PeerMessage message;
    message.channel = channel;
    message.header = header;
    message.payload = std::as_bytes(std::span(*owned));
    message.owner = owned;
    return link->Send(to.member.worker, std::move(message));
  }
  // The next message of the channel; its credit is the caller's.
  PeerDelivery Receive(PeerChannel channel) {
    std::unique_lock lock(mutex_);
    auto& queue = received_[channel];
    REQUIRE(changed_.wait_for(lock, kPatience, [&] { return !queue.empty(); }));
    PeerDelivery delivery = std::move(queue.front());
    queue.pop_front();
    return delivery;
  }
  std::string ReceiveText(PeerChannel channel) {
    const PeerDelivery delivery = Receive(channel);
    return std::string(reinterpret_cast<const char*>(delivery.payload.data()),
                       delivery.payload.size());
  }
  // Returns why it lost the peer, the n-th time.
  std::string AwaitLost(const NodeId& peer, size_t times = 1) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, kPatience, [&] { return lost_[peer].size() >= times; }));
    return lost_[peer][times - 1];
  }
  size_t CountReceived(PeerChannel channel) {
    const std::lock_guard lock(mutex_);
    return received_[channel].size();
  }
  int admissions() {
    const std::lock_guard lock(mutex_);
    return admissions_;
  }
  PeerCounters GetCounters(const NodeId& peer) const {
    for (const PeerCounters& counters : link->counters()) {
      if (counters.peer == peer) return counters;
    }
    return {};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_.
  std::map<PeerChannel, std::deque<PeerDelivery>> received_;
  std::map<NodeId, std::vector<std::string>> lost_;
  int admissions_ = 0;

 public:
  IslandMember member;
  std::unique_ptr<PeerLink> link;  // last: it calls the others
};

// All of them take on the plan and find each other.
inline void Meet(const PeerFence& fence, const std::vector<TestPeer*>& peers) {
  std::vector<IslandMember> members;
  for (const TestPeer* peer : peers) members.push_back(peer->member);
  for (TestPeer* peer : peers) REQUIRE(peer->link->SetPeers(fence, members).ToString() == "OK");
  for (TestPeer* peer : peers) {
    REQUIRE(peer->link->AwaitPeers(In(kPatience)).ToString() == "OK");
  }
}

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TESTING_PEER_FIXTURE_H_

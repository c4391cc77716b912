#include "bench/collectives/two_edges.h"

#include <sched.h>

#include <cstdlib>
#include <future>
#include <memory>
#include <vector>

#include "bench/measure.h"
#include "common/check.h"
#include "common/event_loop.h"
#include "common/net/peer_link.h"

namespace atl::bench {
namespace {

constexpr double kSumBytesPerS = (100 + 50) * 1e6 / 8;
constexpr int64_t kMessageBytes = int64_t{4} << 20;
constexpr int kStreamed = 24, kOneByOne = 8;
constexpr int kRounds = 3;

// 127.0.0.1 is reached with 100 Mbit/s, 127.0.0.2 with 50, each over a queue of 50 ms.
constexpr char kNetwork[] =
    "ip link set lo up mtu 1500 && "
    "tc qdisc add dev lo root handle 1: htb default 1 r2q 1000 && "
    "tc class add dev lo parent 1: classid 1:1 htb rate 1gbit && "
    "tc class add dev lo parent 1: classid 1:2 htb rate 1gbit && "
    "tc qdisc add dev lo parent 1:1 tbf rate 100mbit burst 25kb latency 50ms && "
    "tc qdisc add dev lo parent 1:2 tbf rate 50mbit burst 15kb latency 50ms && "
    "tc filter add dev lo parent 1: protocol ip prio 1 u32 match ip dst 127.0.0.2/32 flowid 1:2";

bool EnterNetwork() {
  return (unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) &&
         std::system(kNetwork) == 0;
}

class Worker final : public PeerHandler {
 public:
  explicit Worker(const NodeId& name) {
    PeerLinkOptions options;
    options.name = name;
    options.incarnation = 1;
    options.more_endpoints = {"tcp://127.0.0.2:*"};
    link = PeerLink::Create(options, this).value();
    member = {name, 1, link->endpoint(), "", "", "", link->more_endpoints()};
  }
  absl::Status Admit(const NodeId&, PeerChannel, absl::string_view, int64_t) override {
    return absl::OkStatus();
  }
  void OnMessage(PeerDelivery) override {}
  void OnPeerLost(const NodeId&, const std::string&) override {}  // messages report it

  IslandMember member;
  std::unique_ptr<PeerLink> link;
};

// Resolves when the message has arrived.
std::future<void> Send(Worker& from, const Worker& to,
                       const std::shared_ptr<std::vector<std::byte>>& bytes) {
  const auto arrived = std::make_shared<std::promise<void>>();
  PeerMessage message;
  message.channel = PeerChannel::kTensor;
  message.payload = *bytes;
  message.owner = bytes;
  message.arrived = [arrived](const absl::Status& status, PeerTiming) {
    ATOLL_CHECK(status.ok(), status.ToString());
    arrived->set_value();
  };
  ATOLL_CHECK(from.link->Send(to.member.worker, std::move(message)).ok());
  return arrived->get_future();
}

double OverSum(int messages, double seconds) {
  return static_cast<double>(messages * kMessageBytes) / seconds / kSumBytesPerS;
}

}  // namespace

TwoEdges MeasureTwoEdges() {
  if (!EnterNetwork()) return {};
  Worker a("a"), b("b");
  for (Worker* worker : {&a, &b}) {
    ATOLL_CHECK(worker->link->SetPeers({"job-1", 1, 1}, {a.member, b.member}).ok());
  }
  for (Worker* worker : {&a, &b}) {
    ATOLL_CHECK(worker->link->AwaitPeers(SteadyNow() + std::chrono::seconds(20)).ok());
  }
  const auto bytes = std::make_shared<std::vector<std::byte>>(kMessageBytes);
  const double streamed = MedianSeconds(
      [&] {
        std::vector<std::future<void>> all;
        for (int i = 0; i < kStreamed; ++i) all.push_back(Send(a, b, bytes));
        for (std::future<void>& one : all) one.wait();
      },
      kRounds);
  const double one_by_one = MedianSeconds(
      [&] {
        for (int i = 0; i < kOneByOne; ++i) Send(a, b, bytes).wait();
      },
      kRounds);
  return {OverSum(kStreamed, streamed), OverSum(kOneByOne, one_by_one)};
}

}  // namespace atl::bench

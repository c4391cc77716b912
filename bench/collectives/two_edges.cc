#include "bench/collectives/two_edges.h"

#include <sched.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "bench/collectives/message_pair.h"
#include "bench/measure.h"

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

double OverSum(int messages, double seconds) {
  return static_cast<double>(messages * kMessageBytes) / seconds / kSumBytesPerS;
}

}  // namespace

TwoEdges MeasureTwoEdges() {
  if (!EnterNetwork()) return {};
  MessagePair pair({.more_endpoints = {"tcp://127.0.0.2:*"}});
  const auto bytes = std::make_shared<std::vector<std::byte>>(kMessageBytes);
  const double streamed = MedianSeconds([&] { pair.Stream(bytes, kStreamed); }, kRounds);
  const double one_by_one = MedianSeconds(
      [&] {
        for (int i = 0; i < kOneByOne; ++i) pair.Send(bytes).wait();
      },
      kRounds);
  return {OverSum(kStreamed, streamed), OverSum(kOneByOne, one_by_one)};
}

}  // namespace atl::bench

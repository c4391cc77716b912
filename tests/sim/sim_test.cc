// The whole control plane under seeded faults: see cluster.h for what happens to it and checker.h
// for what must hold.

#include <catch2/catch.hpp>
#include <iostream>

#include "tests/sim/cluster.h"

namespace atl::sim {
namespace {

constexpr uint64_t kSeeds = 1000;

TEST_CASE("1,000 seeded histories keep every promise") {
  int64_t rounds = 0, crashes = 0, events = 0, rejected = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const ClusterOptions options = RandomOptions(seed);
    const Outcome outcome = Cluster(options).Run();
    rounds += outcome.rounds;
    crashes += outcome.crashes;
    events += outcome.events;
    rejected += outcome.rejected;
    INFO("seed " << seed << ": " << Describe(options));
    INFO("repeat with: bazel run //tests/sim:run -- --seed=" << seed << " --trace");
    REQUIRE(outcome.failure == "");
  }
  std::cout << kSeeds << " seeds, " << crashes << " crashes, " << rounds << " rounds, " << rejected
            << " rejections, " << events << " events\n";
  REQUIRE(crashes > static_cast<int64_t>(kSeeds));
  REQUIRE(rounds > 5 * static_cast<int64_t>(kSeeds));
}

TEST_CASE("a seed repeats its history exactly") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Outcome first = Cluster(RandomOptions(seed)).Run();
    const Outcome again = Cluster(RandomOptions(seed)).Run();
    INFO("seed " << seed);
    REQUIRE(first.trace_hash == again.trace_hash);
    REQUIRE(first.events == again.events);
  }
}

TEST_CASE("without faults nothing is rejected, lost or late") {
  ClusterOptions options = RandomOptions(5);
  options.faults_until = Duration(0);
  options.network = NetworkFaults{};
  options.spec.outer.overlap = Overlap::kCarry;
  const Outcome outcome = Cluster(options).Run();
  REQUIRE(outcome.failure == "");
  REQUIRE(outcome.crashes == 0);
}

}  // namespace
}  // namespace atl::sim

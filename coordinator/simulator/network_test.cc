#include "coordinator/simulator/network.h"

#include <catch2/catch.hpp>

#include "coordinator/simulator/schedules.h"
#include "coordinator/simulator/simulate.h"

namespace atl::sim {
namespace {

// `senders` pipelines of two stages, one micro-batch each, whose activations of 1000 bytes all
// start at 10 ns over links of 1 byte/ns and 5 ns latency.
Problem Senders(int senders) {
  Problem problem;
  for (int i = 0; i < senders; ++i) {
    for (int s = 0; s < 2; ++s) {
      Chunk chunk;
      chunk.device = 2 * i + s;
      chunk.forward_ns = chunk.backward_ns = 10;
      if (s == 0) {
        chunk.forward_link = i;
        chunk.forward_bytes = 1000;
      }
      problem.chunks.push_back(chunk);
      problem.devices.push_back({});
    }
    problem.network.links.push_back({{Edge{5, 1e9, {}, -1}}});
    problem.pipelines.push_back({2 * i, 2, 1, i});
  }
  return problem;
}

std::vector<Nanos> Arrivals(const Problem& problem) {
  const auto result = Simulate(problem, GPipe(problem), {.record = true});
  INFO(result.status().ToString());
  REQUIRE(result.ok());
  std::vector<Nanos> arrivals;
  for (const MessageSpan& message : result->messages) arrivals.push_back(message.arrive_ns);
  return arrivals;
}

TEST_CASE("A split transfer arrives at (n + sum a b) / sum b, over the edges that help") {
  const std::vector<EdgeOffer> offers = {{10, 1.0, -1}, {30, 2.0, -1}, {500, 100.0, -1}};
  const Split split = SplitTransfer(200, offers);
  CHECK(split.arrival_ns == Approx((200 + 10 * 1.0 + 30 * 2.0) / 3.0));
  CHECK(split.bytes[2] == 0);
  CHECK(split.bytes[0] + split.bytes[1] == Approx(200));
  CHECK(SplitTransfer(10, offers).bytes[1] == 0);  // too small to be worth the second edge
}

TEST_CASE("Edges of one conflict set exclude each other; the better one is taken") {
  const std::vector<EdgeOffer> offers = {{0, 1.0, 7}, {0, 3.0, 7}, {0, 1.0, -1}};
  const Split split = SplitTransfer(400, offers);
  CHECK(split.arrival_ns == Approx(100));
  CHECK(split.bytes[0] == 0);
}

TEST_CASE("A trunk serves one after another") {
  Problem problem = Senders(2);
  problem.network.trunks = {{1e9, {}}};
  for (Link& link : problem.network.links) link.edges[0].trunks = {0};
  CHECK(Arrivals(problem) == std::vector<Nanos>{1015, 2015});
}

TEST_CASE("Bandwidth follows its trace, through an outage too") {
  Problem problem = Senders(1);
  problem.network.trunks = {{1e9, {{110, 0}, {1110, 0.5e9}}}};
  problem.network.links[0].edges[0].trunks = {0};
  // 100 bytes until 110, nothing until 1110, the other 900 at half a byte per ns.
  CHECK(Arrivals(problem) == std::vector<Nanos>{1110 + 1800 + 5});
}

TEST_CASE("A round-robin lane sends by micro-batch, then replica, and skips who is not ready") {
  Problem problem = Senders(2);
  problem.network.lanes = 1;
  for (Link& link : problem.network.links) link.lane = 0;
  for (Pipeline& pipeline : problem.pipelines) pipeline.micro_batches = 2;
  problem.chunks[2].forward_ns = 15;  // replica 1 is ready after replica 0
  const auto result = Simulate(problem, GPipe(problem), {.record = true});
  REQUIRE(result.ok());
  std::vector<std::pair<Nanos, int>> order;
  for (const MessageSpan& m : result->messages) order.push_back({m.start_ns, m.link});
  std::sort(order.begin(), order.end());
  // Micro-batch 1 of replica 0 was ready at 20, yet replica 1's micro-batch 0 goes before it.
  CHECK(order == std::vector<std::pair<Nanos, int>>{{10, 0}, {1010, 1}, {2010, 0}, {3010, 1}});
}

TEST_CASE("Networks that cannot be are refused") {
  const auto refused = [](Network network, const std::string& why) {
    CHECK_THAT(std::string(Validate(network).message()), Catch::Contains(why));
  };
  refused({{}, {}, {Link{}}}, "link 0 has 0 edges");
  refused({{}, {}, {{{Edge{0, 0, {}, -1}}}}}, "not positive");
  refused({{}, {}, {{{Edge{0, 1, {3}, -1}}}}}, "no trunk 3");
  refused({{{1e9, {{5, 0}}}}, {}, {}}, "never ends");
  refused({{{1e9, {{5, 1}, {5, 2}}}}, {}, {}}, "must come after");
}

}  // namespace
}  // namespace atl::sim

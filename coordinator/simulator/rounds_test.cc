#include "coordinator/simulator/rounds.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "common/rng.h"
#include "coordinator/simulator/testing/star.h"

namespace atl::sim {
namespace {

// Islands of these step times and one server; transfers take no time unless bytes are given.
RoundsProblem Islands(const std::vector<Nanos>& step_ns, int64_t steps, Nanos until_ns) {
  RoundsProblem problem;
  for (const Nanos step : step_ns) problem.islands.push_back({step, 1, {}, {}, {}});
  problem.servers.resize(1);
  problem.steps_per_round = steps;
  problem.until_ns = until_ns;
  JoinInStar({std::vector<double>(step_ns.size(), 1e9), {1e9}, 0}, problem);
  return problem;
}

RoundsResult Play(const RoundsProblem& problem) {
  const auto result = SimulateRounds(problem, true);
  INFO(result.status().ToString());
  REQUIRE(result.ok());
  return *result;
}

TEST_CASE("Asynchronous rounds are sum(v) / (4 min v) times as fast as synchronous ones") {
  // Delays of 0, 16, 33 and 50%: 1.230.
  RoundsProblem problem = Islands({100, 116, 133, 150}, 64, 150 * 64 * 2000);
  const RoundsResult asynchronous = Play(problem);
  problem.wait_for_all = true;
  const RoundsResult synchronous = Play(problem);
  CHECK(synchronous.rounds == 2000);
  CHECK(synchronous.tokens == 4 * 64 * 2000);
  const double law = (1 / 1.0 + 1 / 1.16 + 1 / 1.33 + 1 / 1.5) / (4 / 1.5);
  CHECK(law == Approx(1.230).margin(0.0005));
  CHECK(asynchronous.tokens_per_s / synchronous.tokens_per_s == Approx(law).epsilon(0.001));
  CHECK(asynchronous.waiting == 0);
  CHECK(asynchronous.efficiency == Approx(1).epsilon(0.001));
  CHECK(synchronous.islands[0].staleness == 0);
  CHECK(asynchronous.islands[3].staleness > asynchronous.islands[0].staleness);
}

TEST_CASE("an_island_with_fewer_steps_a_round_delays_no_other") {
  RoundsProblem problem = Islands({10, 20}, 8, 80 * 100);
  problem.wait_for_all = true;
  const double waiting = Play(problem).tokens_per_s;
  problem.islands[1].steps_per_round = 4;
  const RoundsResult balanced = Play(problem);
  CHECK(balanced.rounds == 100);
  CHECK(balanced.islands[1].tokens == 4 * 100);
  CHECK(balanced.tokens_per_s == Approx(1.5 * waiting));
  problem.islands[1].steps_per_round = -1;
  CHECK_FALSE(SimulateRounds(problem, false).ok());
}

TEST_CASE("One round, by hand") {
  RoundsProblem problem = Islands({10}, 2, 1000);
  problem.servers[0] = {100, 50, 1e9, 0.5e9};
  problem.control_ns = 3;
  JoinInStar({{1e9}, {1e9}, 5}, problem);
  const RoundsResult result = Play(problem);
  // Trains to 20, pushes to 125, the log takes 100; known at 228, decided at 234, with the server
  // at 237, applied 200 later, known at 440; announced at 443, pulled 50 + 5 later.
  const std::vector<IslandSpan>& spans = result.island_timelines[0];
  REQUIRE(spans.size() >= 5);
  const auto is = [&](int i, IslandState state, Nanos start, Nanos end) {
    INFO("span " << i);
    CHECK(spans[i].state == state);
    CHECK(spans[i].start_ns == start);
    CHECK(spans[i].end_ns == end);
  };
  is(0, IslandState::kTrain, 0, 20);
  is(1, IslandState::kPush, 20, 225);
  is(2, IslandState::kWait, 225, 443);
  is(3, IslandState::kPull, 443, 498);
  is(4, IslandState::kTrain, 498, 518);
  CHECK(result.timeline[0].opened_ns == 228);
  CHECK(result.timeline[0].decided_ns == 234);
  CHECK(result.timeline[0].committed_ns == 440);
  CHECK(result.rounds == 2);
  CHECK(result.tokens == 4);
}

TEST_CASE("A window waits for the grace time from the first arrival, and no longer") {
  RoundsProblem problem = Islands({10, 11, 100}, 10, 100'000);
  problem.grace_ns = 15;
  const RoundsResult result = Play(problem);
  CHECK(result.timeline[0].opened_ns == 100);
  CHECK(result.timeline[0].participants == 2);
  CHECK(result.timeline[0].committed_ns == 115);
  for (const RoundSpan& round : result.timeline) {
    CHECK(round.decided_ns <= round.opened_ns + problem.grace_ns);
  }
  // The islands that came in time go on together.
  CHECK(result.timeline[1].opened_ns == 215);
  problem.wait_for_all = true;
  for (const RoundSpan& round : Play(problem).timeline) CHECK(round.participants == 3);
}

TEST_CASE("Carrying on hides the exchange behind the next steps") {
  RoundsProblem problem = Islands({10, 10}, 100, 1'000'000);
  problem.servers[0] = {100, 100, 1e9, 1e9};
  problem.control_ns = 10;
  const RoundsResult waits = Play(problem);
  problem.overlap = Overlap::kCarry;
  const RoundsResult carries = Play(problem);
  CHECK(waits.efficiency < 0.8);
  CHECK(carries.efficiency > 0.99);
  CHECK(carries.waiting == 0);
  // An exchange that takes longer than the steps delays even these.
  problem.servers[0] = {2000, 2000, 1e9, 1e9};
  const RoundsResult slow = Play(problem);
  CHECK(slow.waiting > 0.5);
  CHECK(slow.islands[0].TimeIn(IslandState::kWait) + slow.islands[0].TimeIn(IslandState::kPull) >
        0);
}

TEST_CASE("Staggered over the servers, as many islands push in the time of one") {
  const auto push_ns = [](int islands) {
    RoundsProblem problem = Islands(std::vector<Nanos>(islands, 10), 1, 2'000);
    problem.servers.assign(4, {100, 100, 1e18, 1e18});
    JoinInStar({std::vector<double>(islands, 1e9), std::vector<double>(4, 1e9), 0}, problem);
    const RoundsResult result = Play(problem);
    return result.island_timelines[0][1].end_ns - result.island_timelines[0][1].start_ns;
  };
  CHECK(push_ns(1) == 400);
  CHECK(push_ns(4) == 400);
}

TEST_CASE("A dead island costs its steps since the last complete push, others the grace time") {
  RoundsProblem problem = Islands({10, 10}, 10, 10'000);
  problem.grace_ns = 20;
  problem.control_ns = 1;
  problem.detect_ns = 40;
  problem.islands[1].down = {{350, 1000}};
  const RoundsResult result = Play(problem);
  CHECK(result.islands[1].steps_lost < 10);
  CHECK(result.islands[1].TimeIn(IslandState::kDown) == 650);
  CHECK(result.islands[1].contributions > 70);
  Nanos before = 0;
  for (const RoundSpan& round : result.timeline) {
    CHECK(round.committed_ns - before <= 10 * 10 + problem.grace_ns + 10);
    before = round.committed_ns;
  }
  // Where all are waited for, until the failure is noticed; after the return, for all again.
  problem.wait_for_all = true;
  const RoundsResult synchronous = Play(problem);
  Nanos longest = 0;
  before = 0;
  for (const RoundSpan& round : synchronous.timeline) {
    longest = std::max(longest, round.committed_ns - before);
    before = round.committed_ns;
  }
  CHECK(longest <= 2 * (10 * 10 + 10));
  CHECK(synchronous.timeline.back().participants == 2);
}

RoundsProblem RandomRounds(uint64_t seed) {
  Rng rng(seed);
  RoundsProblem problem;
  const int islands = 1 + static_cast<int>(rng.Below(6));
  const int servers = 1 + static_cast<int>(rng.Below(4));
  StarNetwork star;
  star.latency_ns = static_cast<Nanos>(rng.Below(50));
  for (int i = 0; i < islands; ++i) {
    RoundIsland island{10 + static_cast<Nanos>(rng.Below(100)), 1 + 9 * rng.Uniform(), {}, {}, {}};
    Nanos at = 0;
    while (rng.Chance(0.5)) {
      const Nanos from = at + 1 + static_cast<Nanos>(rng.Below(8000));
      at = from + 1 + static_cast<Nanos>(rng.Below(3000));
      island.down.push_back({from, rng.Chance(0.1) ? kForever : at});
      if (island.down.back().until_ns == kForever) break;
    }
    problem.islands.push_back(island);
    star.island_bytes_per_s.push_back(1e9 * (0.1 + rng.Uniform()));
  }
  for (int j = 0; j < servers; ++j) {
    problem.servers.push_back({static_cast<int64_t>(rng.Below(300)),
                               static_cast<int64_t>(rng.Below(300)), 1e9 * (0.1 + rng.Uniform()),
                               1e9 * (0.1 + rng.Uniform())});
    star.server_bytes_per_s.push_back(1e9 * (0.1 + rng.Uniform()));
  }
  problem.steps_per_round = 1 + static_cast<int64_t>(rng.Below(20));
  problem.grace_ns = static_cast<Nanos>(rng.Below(500));
  problem.wait_for_all = rng.Chance(0.3);
  problem.overlap = rng.Chance(0.5) ? Overlap::kCarry : Overlap::kNone;
  problem.control_ns = static_cast<Nanos>(rng.Below(20));
  problem.detect_ns = static_cast<Nanos>(rng.Below(300));
  problem.until_ns = 30'000;
  JoinInStar(star, problem);
  return problem;
}

TEST_CASE("Any rounds: every moment and every token is accounted for, and again the same") {
  const uint64_t seed = GENERATE(range(0, 300));
  INFO("seed " << seed);
  const RoundsProblem problem = RandomRounds(seed);
  const RoundsResult result = Play(problem);
  CHECK(result.efficiency <= 1);
  CHECK(result.waiting >= 0);
  CHECK(result.rounds == static_cast<int64_t>(result.timeline.size()));
  double tokens = 0;
  int64_t contributions = 0;
  for (size_t i = 0; i < problem.islands.size(); ++i) {
    const IslandUse& use = result.islands[i];
    Nanos all_ns = 0;
    for (const Nanos ns : use.in_state_ns) all_ns += ns;
    CHECK(all_ns == problem.until_ns);
    Nanos at = 0;
    for (const IslandSpan& span : result.island_timelines[i]) {
      CHECK(span.start_ns == at);
      at = span.end_ns;
    }
    CHECK(at == problem.until_ns);
    CHECK(use.tokens == Approx(static_cast<double>(use.contributions * problem.steps_per_round) *
                               problem.islands[i].tokens_per_step));
    // No more is committed than was trained.
    CHECK(use.contributions * problem.steps_per_round * problem.islands[i].step_ns <=
          use.TimeIn(IslandState::kTrain));
    CHECK(use.staleness >= 0);
    if (problem.overlap == Overlap::kNone && problem.islands[i].down.empty() &&
        problem.islands.size() == 1) {
      CHECK(use.staleness == 0);
    }
    Nanos down_ns = 0;
    for (const Outage& outage : problem.islands[i].down) {
      down_ns += std::max<Nanos>(0, std::min(outage.until_ns, problem.until_ns) -
                                        std::min(outage.from_ns, problem.until_ns));
    }
    CHECK(use.TimeIn(IslandState::kDown) == down_ns);
    tokens += use.tokens;
    contributions += use.contributions;
  }
  CHECK(result.tokens == Approx(tokens));
  int64_t participants = 0;
  int most = static_cast<int>(problem.islands.size());
  for (const RoundIsland& island : problem.islands) most += static_cast<int>(island.down.size());
  Nanos before = 0;
  for (const RoundSpan& round : result.timeline) {
    CHECK(round.participants >= 1);
    CHECK(round.participants <= most);  // an island that came back may be in twice
    CHECK(round.decided_ns >= before);  // the one before is applied
    CHECK(round.committed_ns >= round.decided_ns);
    before = round.committed_ns;
    participants += round.participants;
  }
  CHECK(participants == contributions);
  const RoundsResult again = Play(problem);
  CHECK(again.tokens == result.tokens);
  CHECK(again.rounds == result.rounds);
}

TEST_CASE("Rounds that cannot be are refused") {
  const auto refused = [](RoundsProblem problem, const std::string& why) {
    CHECK_THAT(std::string(SimulateRounds(problem, false).status().message()),
               Catch::Contains(why));
  };
  const RoundsProblem good = Islands({10}, 2, 1000);
  RoundsProblem bad = good;
  bad.islands.clear();
  refused(bad, "islands: 0");
  bad = good;
  bad.islands[0].step_ns = 0;
  refused(bad, "island 0: time of a step");
  bad = good;
  bad.islands[0].push_links = {7};
  refused(bad, "no such link: 7");
  bad = good;
  bad.islands[0].down = {{5, 5}};
  refused(bad, "absences overlap");
  bad = good;
  bad.servers[0].apply_bytes_per_s = 0;
  refused(bad, "a server's rate");
  bad = good;
  bad.until_ns = 0;
  refused(bad, "time to play");
}

}  // namespace
}  // namespace atl::sim

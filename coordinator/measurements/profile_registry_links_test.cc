// Links that only all-reduces show, and round trips that separate latency and bandwidth.

#include <catch2/catch.hpp>

#include "coordinator/measurements/testing/profile_registry_fixture.h"

namespace atl {
namespace {

constexpr int64_t kBytes = 2'000'000;
// Over 1 ms and 100 MB/s, in a ring of two: each half of the tensor once there and once back.
constexpr double kShould_s = 2 * (0.001 + 0.010);

// Two replicas at two sites, whose all-reduces alone use the link between them.
struct Summing : Running {
  Summing() {
    for (const auto& [worker, site] : {std::pair("a", "paris"), std::pair("b", "oslo")}) {
      WorkerHello hello;
      hello.site = site;
      Deliver(worker, hello);
    }
    changes.clear();
  }
  void Sees(const std::string& device, double seconds, int64_t number) {
    AllReduceTimes all_reduce_times{device, {"a/0", "b/0"}, plan, number, kBytes, seconds};
    WorkerHeartbeat heartbeat;
    heartbeat.all_reduce_times = {all_reduce_times};
    Deliver(WorkerFromDevice(device), heartbeat);
  }
  // Windows of both, in which all-reduces take so many times what they should.
  void ReportAllReduces(double times, int windows = 1) {
    for (int i = 0; i < windows; ++i) {
      ++window;
      Sees("a/0", times * kShould_s, window);
      Sees("b/0", times * kShould_s, window);
    }
  }
  LinkProfile Link(size_t index) const { return registry.Links()[index].link; }  // a > b, b > a

  int64_t plan = 1;
};

TEST_CASE("lasting slow all-reduces show that the link between their members is slower") {
  Summing fixture;
  fixture.ReportAllReduces(
      1.3, 3);  // what is usual for them: an all-reduce takes more than the link's time
  fixture.ReportAllReduces(4 * 1.3, 2);
  fixture.ReportAllReduces(1.3);  // it passed
  fixture.ReportAllReduces(4 * 1.3, 2);
  CHECK(fixture.TakeChanges().empty());
  CHECK(fixture.Link(0).bandwidth_bytes_per_s == 1e8);
  fixture.ReportAllReduces(4 * 1.3);
  CHECK(fixture.TakeChanges() ==
        "line a - b is 3.8 times slower than measured, as gradient all-reduces show\n");
  for (const size_t direction : {0, 1}) {
    CHECK(fixture.registry.Links()[direction].live);
    CHECK(fixture.Link(direction).latency_ns == 1'000'000);
    CHECK(fixture.Link(direction).bandwidth_bytes_per_s < 3.6e7);
  }
  SECTION("and when they do no more, that it is again what it was, and never faster than that") {
    fixture.ReportAllReduces(1.3, 6);
    CHECK(fixture.TakeChanges() ==
          "line a - b is as measured again, not 3.8 times slower, as gradient all-reduces show\n");
    CHECK(fixture.Link(0).bandwidth_bytes_per_s == Approx(1e8).epsilon(0.05));
    fixture.ReportAllReduces(0.4, 6);  // members come so late that they need not wait
    CHECK(fixture.TakeChanges().empty());
    CHECK(fixture.Link(0).bandwidth_bytes_per_s == Approx(1e8).epsilon(0.05));
  }
  SECTION("which a new measurement says as well") {
    fixture.Deliver("a", LinksMeasured{"job-1", 9, {{"a", "b", 1'000'000, 1e8}}, ""});
    fixture.Deliver("b", LinksMeasured{"job-1", 9, {{"b", "a", 1'000'000, 1e8}}, ""});
    fixture.ReportAllReduces(0.4, 6);
    CHECK(fixture.TakeChanges().empty());
    CHECK(fixture.Link(0).bandwidth_bytes_per_s == 1e8);
  }
}

TEST_CASE("an all-reduce lasts longer for early members: the least of all members' times counts") {
  Summing fixture;
  fixture.ReportAllReduces(1, 3);
  for (int i = 0; i < 6; ++i) {
    ++fixture.window;
    fixture.Sees("a/0", 9 * kShould_s, fixture.window);
    fixture.Sees("a/0", 9 * kShould_s, fixture.window);  // a heartbeat says it again
    fixture.Sees("b/0", kShould_s, fixture.window);
  }
  CHECK(fixture.TakeChanges().empty());
  // Windows of one member alone say nothing.
  for (int i = 0; i < 6; ++i) fixture.Sees("a/0", 9 * kShould_s, ++fixture.window);
  CHECK(fixture.TakeChanges().empty());
}

TEST_CASE("all-reduces that are slow from the start of a plan do not count as usual") {
  Summing fixture;
  fixture.ReportAllReduces(1, 3);
  fixture.plan = 2;
  fixture.ReportAllReduces(6, 3);
  CHECK(fixture.TakeChanges().empty());
  fixture.ReportAllReduces(6, 3);
  CHECK(fixture.TakeChanges() ==
        "line a - b is 3 times slower than measured, as gradient all-reduces show\n");
}

TEST_CASE("a link's correction by all-reduces holds for all pairs of workers on it") {
  const auto corrected = [](double bytes_per_s, double times) {
    Summing fixture;
    WorkerHello hello;
    hello.site = "oslo";
    fixture.Deliver("c", hello);
    fixture.Deliver("a", LinksMeasured{"job-1", 9, {{"a", "c", 1'000'000, bytes_per_s}}, ""});
    fixture.ReportAllReduces(1, 3);
    fixture.ReportAllReduces(times, 3);
    REQUIRE(fixture.registry.Links().size() == 3);
    REQUIRE(fixture.Link(0).bandwidth_bytes_per_s < 8e7);
    return std::pair(fixture.Link(0), fixture.Link(1));  // a > b, a > c
  };
  // Also where the machine was busy while one of them was measured.
  for (const double bytes_per_s : {6e7, 1e8, 1.8e8}) {
    const auto [reported, other] = corrected(bytes_per_s, 4);
    CHECK(reported.bandwidth_bytes_per_s < 3e7);
    CHECK(other.bandwidth_bytes_per_s == reported.bandwidth_bytes_per_s);
  }
  SECTION("but for those that are slower all the same, or have a link of their own") {
    CHECK(corrected(5.5e7, 1.5).second.bandwidth_bytes_per_s == 5.5e7);
    CHECK(corrected(5e8, 4).second.bandwidth_bytes_per_s == 5e8);
  }
}

TEST_CASE("invalid reports of all-reduces are skipped") {
  Summing fixture;
  const auto says = [&](AllReduceTimes all_reduce_times) {
    WorkerHeartbeat heartbeat;
    heartbeat.all_reduce_times = {std::move(all_reduce_times)};
    fixture.Deliver("a", heartbeat);
  };
  for (int64_t i = 1; i <= 6; ++i) {
    says({"b/0", {"a/0", "b/0"}, 1, i, kBytes, 9});  // another's
    says({"a/0", {"b/0", "c/0"}, 1, i, kBytes, 9});  // it is no member
    says({"a/0", {"a/0", "a/1"}, 1, i, kBytes, 9});  // no shared link
    says({"a/0", {"a/0"}, 1, i, kBytes, 9});         // no group
    says({"a/0", {"a/0", "b/0"}, 1, i, -1, 9});
    says({"a/0", {"a/0", "b/0"}, 1, i, kBytes, -1.0 / 0.0});
  }
  CHECK(fixture.TakeChanges().empty());
}

TEST_CASE("a round trip without a message separates latency and bandwidth") {
  constexpr int64_t kSmall = 65'536;  // 1 ms of latency and 0.66 of bytes were expected
  const auto sees = [](Running& fixture, double seconds, double round_trip_s) {
    WorkerHeartbeat heartbeat;
    heartbeat.round_trips = {{"b", round_trip_s}, {"a", 9}};
    fixture.Deliver("a", heartbeat);
    return fixture.Sees(seconds, kSmall).link;
  };
  Running far;
  sees(far, 0.0207, 0.040);
  sees(far, 0.0207, 0.044);  // it had to wait
  CHECK(far.TakeChanges().empty());
  const LinkProfile farther = sees(far, 0.0207, 0.041);
  CHECK(farther.latency_ns == Approx(20e6).epsilon(0.02));
  CHECK(farther.bandwidth_bytes_per_s == Approx(kSmall / 0.0007).epsilon(0.05));

  Running narrow;
  sees(narrow, 0.027, 0.002);
  sees(narrow, 0.027, 0.002);
  const LinkProfile narrower = sees(narrow, 0.027, 0.002);
  CHECK(narrower.latency_ns == 1'000'000);
  CHECK(narrower.bandwidth_bytes_per_s == Approx(kSmall / 0.026).epsilon(0.05));

  SECTION("if it is not an old one") {
    Running fixture;
    sees(fixture, 0.0017, 0.040);
    fixture.now += std::chrono::seconds(11);
    for (int i = 0; i < 3; ++i) fixture.Sees(0.0207, kSmall);
    CHECK(fixture.registry.Links()[0].link.latency_ns == 1'000'000);
  }
}

TEST_CASE("of a link that was never measured, the round trip is its latency") {
  Running fixture(/*measured=*/false);
  WorkerHeartbeat heartbeat;
  heartbeat.round_trips = {{"b", 0.040}};
  StageLinkState state;
  state.from = "a/0";
  state.to = "b/0";
  state.quickest_bytes = 1'000'000;
  state.quickest_seconds = 0.120;
  IslandProgress progress;
  for (state.window = 1; state.window <= 3; ++state.window) {
    progress.stage_links = {state};
    heartbeat.progress = progress;
    fixture.Deliver("a", heartbeat);
  }
  REQUIRE(fixture.registry.Links().size() == 1);
  CHECK(fixture.registry.Links()[0].link.latency_ns == 20'000'000);
  CHECK(fixture.registry.Links()[0].link.bandwidth_bytes_per_s == Approx(1e7));
}

TEST_CASE("the link of two sites is measured once each way, and at a site each worker once") {
  Fixture fixture;
  const std::vector<NodeId> workers = {"a1", "a2", "a3", "b1", "b2", "b3"};
  for (const NodeId& worker : workers) fixture.StandsAt(worker, worker.substr(0, 1));
  fixture.RequestPlan(workers);
  std::set<std::pair<NodeId, NodeId>> measured;
  while (fixture.planned.empty()) {
    const MeasureLinks turn = fixture.AnswerTurn([](const NodeId& from, const NodeId& to) {
      return LinkProfile{from, to, 1'000'000, from == "a3" ? 1e6 : from == "b1" ? 2e6 : 1e8};
    });
    CHECK(turn.members.size() == turn.to.size() + 1);  // no other worker takes part
    for (const NodeId& other : turn.to) measured.emplace(turn.measurer, other);
  }
  CHECK(measured.size() == 6 + 2);
  const std::vector<LinkProfile>& links = fixture.planned[0].second.links;
  CHECK(links.size() == 30);  // the others are as these
  for (const LinkProfile& link : links) {
    INFO(link.from << " > " << link.to);
    if (measured.contains({link.from, link.to})) continue;
    const bool at_a = link.from[0] == 'a' && link.to[0] == 'a';
    const bool at_b = link.from[0] == 'b' && link.to[0] == 'b';
    const auto touches = [&](const char* worker) {
      return link.from == worker || link.to == worker;
    };
    if (at_a) CHECK((link.bandwidth_bytes_per_s == 1e6) == touches("a3"));
    if (at_b) CHECK((link.bandwidth_bytes_per_s == 2e6) == touches("b1"));
    // The link is measured as the one pair of each direction.
    for (const auto& [from, to] : measured) {
      if (from[0] != link.from[0] || to[0] != link.to[0] || from[0] == to[0]) continue;
      CHECK(link.bandwidth_bytes_per_s == (from == "a3" ? 1e6 : from == "b1" ? 2e6 : 1e8));
    }
  }
}

LinkProfile LocalLink(const NodeId& from, const NodeId& to) { return {from, to, 100'000, 1e9}; }

std::vector<NodeId> Names(const std::string& site, int count) {
  std::vector<NodeId> names;
  for (int i = 0; i < count; ++i) names.push_back(absl::StrCat(site, 100 + i));
  return names;
}

TEST_CASE("half_of_a_sites_workers_measure_at_the_same_time_and_no_worker_twice") {
  Fixture fixture;
  const std::vector<NodeId> workers = Names("a", 64);
  for (const NodeId& worker : workers) fixture.StandsAt(worker, "a");
  fixture.RequestPlan(workers);
  CHECK(fixture.turns.size() == 32);
  int waves = 0;
  size_t links = 0;
  for (; fixture.planned.empty(); ++waves) {
    std::set<NodeId> part;
    size_t members = 0;
    for (const auto& [number, turn] : fixture.turns) {
      members += turn.members.size();
      for (const IslandMember& member : turn.members) part.insert(member.worker);
    }
    CHECK(part.size() == members);
    for (size_t n = fixture.turns.size(); n > 0; --n)
      links += fixture.AnswerTurn(LocalLink).to.size();
  }
  CHECK(links == 64);
  CHECK(waves <= 4);
}

TEST_CASE("inter_site_links_of_one_site_are_measured_one_after_the_other") {
  Fixture fixture;
  std::vector<NodeId> workers;
  for (const char* site : {"a", "b", "c", "d"}) {
    for (const NodeId& worker : Names(site, 4)) {
      fixture.StandsAt(worker, site);
      workers.push_back(worker);
    }
  }
  fixture.RequestPlan(workers);
  std::set<std::pair<char, char>> measured;
  bool at_once = false;
  while (fixture.planned.empty()) {
    std::set<char> in_use;
    size_t uses = 0;
    for (const auto& [number, turn] : fixture.turns) {
      std::set<char> sites;
      for (const NodeId& to : turn.to) {
        if (to[0] != turn.measurer[0]) sites.insert({to[0], turn.measurer[0]});
      }
      uses += sites.size();
      in_use.insert(sites.begin(), sites.end());
    }
    CHECK(in_use.size() == uses);
    at_once = at_once || fixture.turns.size() > 2;
    const MeasureLinks turn = fixture.AnswerTurn(LocalLink);
    for (const NodeId& to : turn.to) {
      if (to[0] == turn.measurer[0]) continue;
      CHECK(measured.emplace(turn.measurer[0], to[0]).second);
    }
  }
  CHECK(measured.size() == 12);
  CHECK(at_once);
}

TEST_CASE("line_that_no_worker_can_measure_is_given_up_after_three_tries") {
  Fixture fixture;
  std::vector<NodeId> workers = Names("a", 20), there = Names("b", 20);
  for (const NodeId& worker : workers) fixture.StandsAt(worker, "a");
  for (const NodeId& worker : there) fixture.StandsAt(worker, "b");
  workers.insert(workers.end(), there.begin(), there.end());
  fixture.RequestPlan(workers);
  int tries = 0;
  while (fixture.planned.empty()) {
    const MeasureLinks turn = std::move(fixture.turns.extract(fixture.turns.begin()).mapped());
    LinksMeasured report{"job-1", turn.request, {}, ""};
    for (const NodeId& to : turn.to) {
      if (to[0] == turn.measurer[0]) {
        report.links.push_back(LocalLink(turn.measurer, to));
      } else {
        ++tries;
        report.unreachable.push_back({to, "no connection"});
      }
    }
    fixture.Deliver(turn.measurer, report);
  }
  CHECK(tries == 6);  // each direction
}

TEST_CASE("sites_of_many_workers_are_found_by_as_many_links_as_there_are_workers_and_sites") {
  Fixture fixture;
  std::vector<NodeId> workers;
  for (int i = 0; i < 32; ++i) {  // mixed
    workers.push_back(absl::StrCat("a", 100 + i));
    workers.push_back(absl::StrCat("b", 100 + i));
  }
  for (const NodeId& worker : workers) fixture.StandsAt(worker, "");
  fixture.RequestPlan(workers);
  size_t links = 0, inter_site = 0;
  while (fixture.planned.empty()) {
    const MeasureLinks turn = fixture.AnswerTurn([](const NodeId& from, const NodeId& to) {
      const bool near = from[0] == to[0];
      return LinkProfile{from, to, near ? 100'000 : 20'000'000, near ? 1e9 : 1e7};
    });
    CHECK(turn.to.size() <= 16);
    links += turn.to.size();
    for (const NodeId& to : turn.to) inter_site += to[0] != turn.measurer[0];
  }
  CHECK(links <= 63 + 31 + 64 + 1);  // two hubs, each worker's link, the inter-site link back
  CHECK(inter_site <= 32 + 1);
  REQUIRE(fixture.sites.size() == 64);
  for (const NodeId& worker : workers) {
    CHECK(fixture.sites[worker] == absl::StrCat("site-", worker.substr(0, 1), "100"));
  }
  CHECK(fixture.planned[0].second.links.size() == 64 * 63);
}

TEST_CASE("worker_that_joins_a_known_cluster_is_found_at_its_site_by_one_worker_of_each") {
  Fixture fixture;
  std::vector<NodeId> workers = Names("a", 4), there = Names("b", 4);
  for (const NodeId& worker : workers) fixture.StandsAt(worker, "a");
  for (const NodeId& worker : there) fixture.StandsAt(worker, "b");
  workers.insert(workers.end(), there.begin(), there.end());
  for (const NodeId& worker : Names("bx", 12)) {
    fixture.StandsAt(worker, "");
    workers.push_back(worker);
  }
  fixture.RequestPlan(workers);
  while (fixture.planned.empty()) {
    fixture.AnswerTurn([](const NodeId& from, const NodeId& to) {
      const bool near = from[0] == to[0];
      return LinkProfile{from, to, near ? 100'000 : 20'000'000, near ? 1e9 : 1e7};
    });
  }
  for (const NodeId& worker : Names("bx", 12)) CHECK(fixture.sites[worker] == "b");
  CHECK(fixture.planned[0].second.links.size() == 20 * 19);
}

}  // namespace
}  // namespace atl

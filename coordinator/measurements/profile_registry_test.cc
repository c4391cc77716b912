#include "coordinator/measurements/profile_registry.h"

#include <catch2/catch.hpp>
#include <map>

#include "absl/strings/str_cat.h"
#include "coordinator/measurements/testing/profile_registry_fixture.h"

namespace atl {
namespace {

using std::chrono::seconds;

TEST_CASE("before a first plan every worker measures its links, one after the other") {
  Fixture fixture;
  fixture.RequestPlan({"a", "b", "c"});
  CHECK(fixture.sent.size() == 3);  // those that do not measure take the messages
  CHECK(fixture.sent[1].incarnation == 5);
  CHECK(fixture.sent[1].message.members.size() == 3);
  CHECK(fixture.Measurer() == "a");
  fixture.Measures({"b", "c"});
  CHECK(fixture.Measurer() == "b");
  fixture.Measures({"a", "c"});
  CHECK(fixture.Measurer() == "c");
  CHECK(fixture.planned.empty());
  fixture.Measures({"a", "b"});
  REQUIRE(fixture.planned.size() == 1);
  CHECK(fixture.planned[0].second.links.size() == 6);
  CHECK(fixture.deadline == kNever);
  fixture.RequestPlan({"a", "b"}, false, 2);  // what is known need not be measured again
  REQUIRE(fixture.planned.size() == 2);
  CHECK(fixture.planned[1].second.links.size() == 2);
}

TEST_CASE("an order that is lost is sent again, and who never answers is planned without") {
  Fixture fixture;
  fixture.RequestPlan({"a", "b"});
  CHECK(fixture.Measurer() == "a");
  fixture.Advances();
  CHECK(fixture.sent.empty());
  fixture.now = fixture.deadline;
  fixture.Advances();
  CHECK(fixture.Measurer() == "a");
  for (int i = 0; i < 100 && fixture.planned.empty(); ++i) {
    fixture.now = fixture.deadline;
    fixture.Advances();
  }
  REQUIRE(fixture.planned.size() == 1);
  CHECK(fixture.planned[0].second.links.empty());
  CHECK(fixture.now == Instant() + seconds(120));
}

TEST_CASE("old measurements are repeated") {
  Fixture fixture;
  fixture.RequestPlan({"a", "b"});
  fixture.Measures({"b"});
  fixture.Measures({"a"});
  CHECK(fixture.planned.size() == 1);
  fixture.now += std::chrono::hours(1);
  fixture.RequestPlan({"a", "b"}, false, 2);
  CHECK(fixture.planned.size() == 1);
  CHECK(fixture.Measurer() == "a");
}

TEST_CASE("workers that run an island, that cannot be reached or are alone get no request") {
  Fixture fixture;
  fixture.RequestPlan({"a", "b"}, true);
  CHECK(fixture.planned.size() == 1);
  fixture.RequestPlan({"a"});
  CHECK(fixture.planned.size() == 2);
  CHECK(fixture.sent.empty());
}

TEST_CASE("two islands of the same workers take turns; a newer request replaces an older one") {
  Fixture fixture;
  fixture.RequestPlan({"a", "b"}, false, 1);
  fixture.RequestPlan({"a", "b", "c"}, false, 2);  // of the same island
  CHECK(fixture.sent.size() == 3);
  PlanRequest other;
  other.members.resize(2);
  other.members[0].member = {"c", 5, "tcp://c", ""};
  other.members[1].member = {"d", 5, "tcp://d", ""};
  fixture.registry.Want({"job-2", 0, 3}, other, false);
  const ProfileRegistry::Work work = fixture.registry.Advance(fixture.now);
  CHECK(work.send.empty());  // c is busy with the first
  fixture.Measures({"b", "c"});
  fixture.Measures({"a", "c"});
  const NodeId third = fixture.Measurer();
  CHECK(third == "c");
  fixture.Measures({"a", "b"});
  REQUIRE(fixture.planned.size() == 1);
  CHECK(fixture.planned[0].first.request == 2);
  CHECK(fixture.Measurer() == "c");
  CHECK(fixture.sent.size() == 2);
}

TEST_CASE("a worker speaks for itself alone, and nonsense is skipped") {
  Fixture fixture;
  DeviceProfile own{"a/0", "cpu", "1", ComputeModelDigest(Shape(), 32), {LayerCost{}}};
  DeviceProfile other = own;
  other.device = "b/0";
  fixture.Deliver("a", JobPrepared{"job-1", {}, {own, other}});
  CHECK(fixture.registry.Devices(own.model_digest).size() == 1);
  CHECK(fixture.registry.Devices(own.model_digest + 1).empty());
  fixture.Deliver(
      "a",
      LinksMeasured{"job-1", 9, {{"b", "a", 1, 1e6}, {"a", "b", 1, -1}, {"a", "a", 1, 1}}, ""});
  CHECK(fixture.registry.Links().empty());
  fixture.RequestPlan({"a", "b"}, true);
  REQUIRE(fixture.planned.size() == 1);
  CHECK(fixture.planned[0].second.members[0].profiles.size() == 1);
  CHECK(fixture.planned[0].second.members[1].profiles.empty());
}

TEST_CASE("a link is another one when three windows of messages in a row say so") {
  Running fixture;
  CHECK_FALSE(fixture.Sees(0.0108, 1'000'000).live);  // 1 ms and 10 ms were expected
  CHECK(fixture.registry.Links()[0].at == fixture.now);
  fixture.Sees(0.041, 1'000'000);
  for (int heartbeat = 0; heartbeat < 10; ++heartbeat) fixture.Sees(0.041, 1'000'000, true);
  fixture.Sees(0.041, 1'000'000);
  CHECK_FALSE(fixture.registry.Links()[0].live);
  CHECK(fixture.TakeChanges().empty());
  const LinkReport slower = fixture.Sees(0.041, 1'000'000);
  CHECK(slower.live);
  CHECK(slower.link.latency_ns == 1'000'000);
  CHECK(slower.link.bandwidth_bytes_per_s < 1.3 * 2.5e7);
  CHECK(fixture.TakeChanges() == "link a > b is 3.4 times slower than measured\n");
  // Small messages say something about the latency, and what passes changes nothing.
  for (int i = 0; i < 2; ++i) fixture.Sees(0.0001, 1000);
  fixture.Sees(0.041, 1'000'000);
  CHECK(fixture.registry.Links()[0].link == slower.link);
}

TEST_CASE("times_by_size_follow_a_link_that_is_corrected_and_damaged_ones_are_skipped") {
  Running fixture;
  LinkProfile link{"a", "b", 1'000'000, 1e8};
  link.times = {{1'000, 3'000'000}, {1'000'000, 21'000'000}};
  fixture.Deliver("a", LinksMeasured{"job-1", 9, {link}, ""});
  CHECK_FALSE(fixture.Sees(0.0211, 1'000'000).live);  // as measured, not 11 ms
  for (int i = 0; i < 4; ++i) fixture.Sees(0.041, 1'000'000);
  const LinkProfile slower = fixture.registry.Links()[0].link;
  REQUIRE(slower.times.size() == 2);
  CHECK(slower.times[1].time_ns > 35'000'000);
  // The same holds for 2 ms compared with 20 ms.
  const auto without_latency = [&](size_t row) {
    return static_cast<double>(slower.times[row].time_ns - slower.latency_ns);
  };
  CHECK(without_latency(0) == Approx(without_latency(1) / 10).epsilon(0.001));
  LinkProfile damaged = link;
  damaged.times = {{1'000, 3'000'000}, {1'000, 4'000'000}};
  fixture.Deliver("a", LinksMeasured{"job-1", 10, {damaged}, ""});
  CHECK(fixture.registry.Links()[0].link == slower);
}

TEST_CASE("messages of one size show less of a link than those of two") {
  constexpr int64_t kBytes = 65'536;  // 1 ms of latency and 0.66 of bytes were expected
  Running narrow;
  for (int i = 0; i < 3; ++i) narrow.Sees(0.027, kBytes);
  CHECK(narrow.registry.Links()[0].link.latency_ns == 1'000'000);
  CHECK(narrow.registry.Links()[0].link.bandwidth_bytes_per_s < 1.3 * 2.5e6);
  CHECK(narrow.TakeChanges() == "link a > b is 16 times slower than measured\n");
  // Faster than that, which is still slower than measured.
  for (int i = 0; i < 4; ++i) narrow.Sees(0.009, kBytes);
  CHECK(narrow.TakeChanges() == "link a > b is 5.4 times slower than measured\n");
  // The link is as it was again: the larger part goes back.
  for (int i = 0; i < 8; ++i) narrow.Sees(0.0017, kBytes);
  CHECK_THAT(narrow.TakeChanges(),
             Catch::EndsWith("link a > b is as measured again, not 1.6 times slower\n"));
  CHECK(narrow.registry.Links()[0].link.latency_ns == 1'000'000);
  CHECK(narrow.registry.Links()[0].link.bandwidth_bytes_per_s > 2e7);

  Running far;
  far.Sees(0.0207, kBytes);
  far.Sees(0.0207, kBytes);
  far.Sees(0.0226, 4 * kBytes);
  CHECK(far.registry.Links()[0].link.latency_ns == Approx(20'000'000).epsilon(0.01));
  CHECK(far.registry.Links()[0].link.bandwidth_bytes_per_s == Approx(1e8).epsilon(0.05));
}

TEST_CASE("what one pair finds of the link between two sites is so for the others on it") {
  Running fixture;
  for (const auto& [worker, site] : {std::pair("a", "paris"), std::pair("b", "oslo"),
                                     std::pair("c", "oslo"), std::pair("d", "paris")}) {
    WorkerHello hello;
    hello.site = site;
    fixture.Deliver(worker, hello);
  }
  constexpr int64_t kMs = 1'000'000;
  fixture.Deliver("a",
                  LinksMeasured{"job-1", 9, {{"a", "c", kMs, 1.1e8}, {"a", "d", kMs, 1e8}}, ""});
  fixture.Deliver("d", LinksMeasured{"job-1", 9, {{"d", "b", kMs, 1e8}, {"d", "c", kMs, 2e7}}, ""});
  for (int i = 0; i < 3; ++i) fixture.Sees(0.041, 1'000'000);
  std::map<std::pair<NodeId, NodeId>, LinkReport> links;
  for (const LinkReport& link : fixture.registry.Links())
    links[{link.link.from, link.link.to}] = link;
  const double slower = links[{"a", "b"}].link.bandwidth_bytes_per_s;
  CHECK(slower < 1.3 * 2.5e7);
  for (const auto& pair : {std::pair("a", "c"), std::pair("d", "b")}) {
    CHECK(links[pair].live);
    CHECK(links[pair].link.bandwidth_bytes_per_s == slower);
  }
  CHECK(links[{"b", "a"}].link.bandwidth_bytes_per_s == 1e8);  // the other direction
  CHECK(links[{"a", "d"}].link.bandwidth_bytes_per_s == 1e8);  // within a site
  CHECK(links[{"d", "c"}].link.bandwidth_bytes_per_s == 2e7);  // it was slow before
}

TEST_CASE("a device that trains slower than measured is so when three windows in a row say so") {
  Running fixture;
  DeviceProfile profile{"b/0", "cpu", "1", ComputeModelDigest(Shape(), 32), {}};
  LayerCost block;
  block.kind = LayerKind::kBlock;
  block.micro_batch_sequences = 1;
  block.forward_ns = 5'000'000;
  block.input_gradient_ns = block.weight_gradient_ns = 5'000'000;
  profile.layers = {block};
  fixture.Deliver("b", JobPrepared{"job-1", {}, {profile}});
  const auto forward_ns = [&] {
    return fixture.registry.Devices(profile.model_digest)[0].layers[0].forward_ns;
  };
  fixture.Works(1.1);
  fixture.Works(2);
  for (int heartbeat = 0; heartbeat < 10; ++heartbeat) fixture.Works(2, true);
  fixture.Works(2);
  CHECK(forward_ns() == 5'000'000);
  fixture.Works(2);
  CHECK(forward_ns() > 8'000'000);
  CHECK_THAT(fixture.TakeChanges(), Catch::StartsWith("b/0 is 1.9 times slower than measured"));
  REQUIRE(fixture.registry.ListTroubles(fixture.now).size() == 1);
  // Only the device's own worker reports its work; another process of that name is measured anew.
  fixture.Deliver("a", WorkerHeartbeat{std::nullopt, std::nullopt, {DeviceWork{"b/0", 99}}});
  fixture.registry.OnMessage(fixture.now, {"b", 6, WorkerHello{}});
  CHECK(forward_ns() == 5'000'000);
}

TEST_CASE("a device that shares its layers is held against the profile of that degree") {
  Running fixture;
  DeviceProfile profile{"b/0", "cpu", "1", ComputeModelDigest(Shape(), 32), {}};
  for (const int ranks : {1, 2}) {
    LayerCost block;
    block.kind = LayerKind::kBlock;
    block.micro_batch_sequences = 1;
    block.tensor_parallel = ranks;
    block.forward_ns = block.input_gradient_ns = block.weight_gradient_ns = 5'000'000 / ranks;
    profile.layers.push_back(block);
  }
  fixture.Deliver("b", JobPrepared{"job-1", {}, {profile}});
  for (int i = 0; i < 3; ++i) fixture.Works(0.5, false, 2);  // half of the work in half of the time
  CHECK(fixture.TakeChanges().empty());
  for (int i = 0; i < 3; ++i) fixture.Works(1, false, 2);
  CHECK_THAT(fixture.TakeChanges(), Catch::StartsWith("b/0 is 1.9 times slower than measured"));
  for (int i = 0; i < 3; ++i) fixture.Works(1, false, 4);  // not measured: nothing to compare with
  CHECK(fixture.TakeChanges().empty());
}

TEST_CASE("a device that has no work any more is tried again") {
  Running fixture;
  fixture.KnowsDevice();
  for (int i = 0; i < 3; ++i) fixture.Works(2);
  CHECK_FALSE(fixture.TakeChanges().empty());
  REQUIRE(fixture.deadline != kNever);
  fixture.now = fixture.deadline;
  fixture.Advances();
  CHECK_THAT(fixture.TakeChanges(), Catch::EndsWith("and is tried again\n"));
  CHECK(fixture.registry.ListTroubles(fixture.now).empty());
}

TEST_CASE("after a restart of the coordinator, a device that becomes slower is found out") {
  Running fixture(/*measured=*/false);
  for (int i = 0; i < 3; ++i) fixture.Works(2);
  CHECK(fixture.TakeChanges().empty());  // no measurement was reported
  fixture.KnowsDevice();                 // workers that connect again do
  fixture.Deliver("a", LinksMeasured{"", 0, {{"a", "b", 1'000'000, 1e8}}, ""});
  for (int i = 0; i < 3; ++i) fixture.Works(2);
  CHECK_THAT(fixture.TakeChanges(), Catch::StartsWith("b/0 is 2 times slower than measured"));
  for (int i = 0; i < 3; ++i) fixture.Sees(0.041, 1'000'000);
  CHECK(fixture.TakeChanges() == "link a > b is 3.7 times slower than measured\n");
  fixture.Deliver("a", LinksMeasured{"", 0, {{"a", "b", 1'000'000, 1e8}}, ""});
  CHECK(fixture.registry.Links()[0].live);  // what is known since is newer
}

TEST_CASE("what workers said again is old, and is measured when there is time") {
  Fixture fixture;
  fixture.Deliver("a", LinksMeasured{"", 0, {{"a", "b", 1'000'000, 1e8}}, ""});
  REQUIRE(fixture.registry.Links().size() == 1);
  fixture.RequestPlan({"a", "b"});
  CHECK(fixture.Measurer() == "a");
  CHECK(fixture.sent[0].message.to == std::vector<NodeId>{"b"});
}

TEST_CASE("who joins a running island is measured beside training, before it is planned with") {
  Fixture fixture;
  fixture.RequestPlan({"a", "b", "c"}, true, 1, {"c"});
  CHECK(fixture.Measurer() == "a");
  REQUIRE(fixture.sent.size() == 2);  // b is left alone
  CHECK(fixture.sent[0].message.during_steps);
  CHECK(fixture.sent[1].worker == "c");
  CHECK(fixture.sent[0].message.to == std::vector<NodeId>{"c"});
  CHECK(fixture.sent[0].message.members.size() == 2);
  CHECK(fixture.registry.DescribeTurns() ==
        std::vector<std::string>{
            "the plan of island 0 of job-1 is waiting for links to be measured: it "
            "is the turn of a; 1 of 3 workers have begun theirs"});
  fixture.Measures({"c"});
  CHECK(fixture.Measurer() == "b");
  fixture.Measures({"c"});
  CHECK(fixture.Measurer() == "c");
  CHECK(fixture.sent[0].message.to == std::vector<NodeId>{"a", "b"});
  CHECK(fixture.planned.empty());
  fixture.Measures({"a", "b"});
  REQUIRE(fixture.planned.size() == 1);
  CHECK(fixture.planned[0].second.links.size() == 4);
  CHECK(fixture.registry.DescribeTurns().empty());
  // Nothing is measured twice, and of those that train nothing at all.
  fixture.RequestPlan({"a", "b", "c"}, true, 2, {"c"});
  CHECK(fixture.planned.size() == 2);

  SECTION("and where that does not work, the island has its plan all the same") {
    fixture.RequestPlan({"a", "b", "d"}, true, 3, {"d"});
    for (int i = 0; i < 100 && fixture.planned.size() < 3; ++i) {
      fixture.now = fixture.deadline;
      fixture.Advances();
    }
    REQUIRE(fixture.planned.size() == 3);
    CHECK(fixture.registry.ListTroubles(fixture.now).size() == 4);  // of d, not of a and b
  }
}

TEST_CASE("who joins a running island over a slow link is found out by its messages") {
  Fixture fixture;
  fixture.RequestPlan({"a", "b"}, true);  // b has joined; no worker has time to measure
  REQUIRE(fixture.planned.size() == 1);
  CHECK(fixture.planned[0].second.links.empty());
  int64_t window = 0;
  const auto sees = [&](double seconds) {
    StageLinkState state;
    state.from = "a/0";
    state.to = "b/0";
    state.window = ++window;
    state.quickest_bytes = 1'000'000;
    state.quickest_seconds = seconds;
    IslandProgress progress;
    progress.stage_links = {state};
    fixture.Deliver("a", WorkerHeartbeat{progress, {}});
  };
  sees(0.9);
  sees(0.8);
  CHECK(fixture.registry.Links().empty());
  CHECK(fixture.changes.empty());
  sees(1.2);
  REQUIRE(fixture.changes.size() == 1);
  CHECK(fixture.changes[0].workers == std::vector<NodeId>{"a", "b"});
  CHECK(fixture.changes[0].reason == "link a > b was not measured before, and carries 1.39 MB/s");
  REQUIRE(fixture.registry.Links().size() == 1);
  CHECK(fixture.registry.Links()[0].live);
  CHECK(fixture.registry.Links()[0].link.latency_ns == 80'000'000);
  fixture.RequestPlan({"a", "b"}, true, 2);  // so that it is planned with what is so
  REQUIRE(fixture.planned.size() == 2);
  CHECK(fixture.planned[1].second.links.size() == 1);
  for (int i = 0; i < 3; ++i) sees(0.2);  // and is corrected like others
  CHECK(fixture.changes.size() == 2);
}

TEST_CASE("a worker that does not measure delays one turn only") {
  Fixture fixture;
  fixture.RequestPlan({"a", "b", "c", "d"});
  CHECK(fixture.Measurer() == "a");
  CHECK(fixture.sent[0].message.to == std::vector<NodeId>{"b", "c", "d"});
  fixture.now += seconds(21);
  fixture.Advances();  // a is busy
  CHECK(fixture.Measurer() == "b");
  CHECK(fixture.sent[0].message.to == std::vector<NodeId>{"c", "d"});
  LinksMeasured report{"job-1", fixture.sent[0].message.request, {{"b", "c", 1'000'000, 1e8}}, ""};
  report.unmeasured = {{"d", "it has not followed to our plan yet"}};
  fixture.Deliver("b", report);
  CHECK(fixture.Measurer() == "c");
  CHECK(fixture.sent[0].message.to == std::vector<NodeId>{"b"});
  fixture.Measures({"b"});
  REQUIRE(fixture.planned.size() == 1);
  CHECK(fixture.planned[0].second.links.size() == 2);
  CHECK(fixture.registry.ListTroubles(fixture.now).size() == 10);
}

TEST_CASE("only links that are not known are measured") {
  Fixture fixture;
  fixture.RequestPlan({"a", "b"});
  fixture.Measures({"b"});
  fixture.Measures({"a"});
  fixture.RequestPlan({"a", "b", "c"}, false, 2);
  CHECK(fixture.Measurer() == "a");
  CHECK(fixture.sent[0].message.to == std::vector<NodeId>{"c"});
}

}  // namespace
}  // namespace atl

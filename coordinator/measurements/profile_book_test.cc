#include "coordinator/measurements/profile_book.h"

#include <catch2/catch.hpp>
#include <map>

#include "absl/strings/str_cat.h"
#include "coordinator/measurements/profile_book_fixture.h"

namespace atl {
namespace {

using std::chrono::seconds;

TEST_CASE("before a first plan every worker measures its links, one after the other") {
  Story story;
  story.Wants({"a", "b", "c"});
  CHECK(story.sent.size() == 3);  // those that do not measure take the messages
  CHECK(story.sent[1].incarnation == 5);
  CHECK(story.sent[1].message.members.size() == 3);
  CHECK(story.Measurer() == "a");
  story.Measures({"b", "c"});
  CHECK(story.Measurer() == "b");
  story.Measures({"a", "c"});
  CHECK(story.Measurer() == "c");
  CHECK(story.planned.empty());
  story.Measures({"a", "b"});
  REQUIRE(story.planned.size() == 1);
  CHECK(story.planned[0].second.links.size() == 6);
  CHECK(story.deadline == kNever);
  story.Wants({"a", "b"}, false, 2);  // what is known need not be measured again
  REQUIRE(story.planned.size() == 2);
  CHECK(story.planned[1].second.links.size() == 2);
}

TEST_CASE("an order that is lost is sent again, and who never answers is planned without") {
  Story story;
  story.Wants({"a", "b"});
  CHECK(story.Measurer() == "a");
  story.Advances();
  CHECK(story.sent.empty());
  story.now = story.deadline;
  story.Advances();
  CHECK(story.Measurer() == "a");
  for (int i = 0; i < 100 && story.planned.empty(); ++i) {
    story.now = story.deadline;
    story.Advances();
  }
  REQUIRE(story.planned.size() == 1);
  CHECK(story.planned[0].second.links.empty());
  CHECK(story.now == Instant() + seconds(120));
}

TEST_CASE("old measurements are repeated") {
  Story story;
  story.Wants({"a", "b"});
  story.Measures({"b"});
  story.Measures({"a"});
  CHECK(story.planned.size() == 1);
  story.now += std::chrono::hours(1);
  story.Wants({"a", "b"}, false, 2);
  CHECK(story.planned.size() == 1);
  CHECK(story.Measurer() == "a");
}

TEST_CASE("workers that run an island, that cannot be reached or are alone get no request") {
  Story story;
  story.Wants({"a", "b"}, true);
  CHECK(story.planned.size() == 1);
  story.Wants({"a"});
  CHECK(story.planned.size() == 2);
  CHECK(story.sent.empty());
}

TEST_CASE("two islands of the same workers take turns; a newer request replaces an older one") {
  Story story;
  story.Wants({"a", "b"}, false, 1);
  story.Wants({"a", "b", "c"}, false, 2);  // of the same island
  CHECK(story.sent.size() == 3);
  PlanRequest other;
  other.members.resize(2);
  other.members[0].member = {"c", 5, "tcp://c", ""};
  other.members[1].member = {"d", 5, "tcp://d", ""};
  story.book.Want({"job-2", 0, 3}, other, false);
  const ProfileBook::Work work = story.book.Advance(story.now);
  CHECK(work.send.empty());  // c is busy with the first
  story.Measures({"b", "c"});
  story.Measures({"a", "c"});
  const NodeId third = story.Measurer();
  CHECK(third == "c");
  story.Measures({"a", "b"});
  REQUIRE(story.planned.size() == 1);
  CHECK(story.planned[0].first.request == 2);
  CHECK(story.Measurer() == "c");
  CHECK(story.sent.size() == 2);
}

TEST_CASE("a worker speaks for itself alone, and nonsense is skipped") {
  Story story;
  DeviceProfile own{"a/0", "cpu", "1", DigestOf(Shape(), 32), {LayerCost{}}};
  DeviceProfile other = own;
  other.device = "b/0";
  story.Says("a", JobPrepared{"job-1", {}, {own, other}});
  CHECK(story.book.Devices(own.model_digest).size() == 1);
  CHECK(story.book.Devices(own.model_digest + 1).empty());
  story.Says("a", LinksMeasured{
                      "job-1", 9, {{"b", "a", 1, 1e6}, {"a", "b", 1, -1}, {"a", "a", 1, 1}}, ""});
  CHECK(story.book.Links().empty());
  story.Wants({"a", "b"}, true);
  REQUIRE(story.planned.size() == 1);
  CHECK(story.planned[0].second.members[0].profiles.size() == 1);
  CHECK(story.planned[0].second.members[1].profiles.empty());
}

TEST_CASE("a link is another one when three windows of messages in a row say so") {
  Running story;
  CHECK_FALSE(story.Sees(0.0108, 1'000'000).live);  // 1 ms and 10 ms were expected
  CHECK(story.book.Links()[0].at == story.now);
  story.Sees(0.041, 1'000'000);
  for (int heartbeat = 0; heartbeat < 10; ++heartbeat) story.Sees(0.041, 1'000'000, true);
  story.Sees(0.041, 1'000'000);
  CHECK_FALSE(story.book.Links()[0].live);
  CHECK(story.Told().empty());
  const LinkReport slower = story.Sees(0.041, 1'000'000);
  CHECK(slower.live);
  CHECK(slower.link.latency_ns == 1'000'000);
  CHECK(slower.link.bandwidth_bytes_per_s < 1.3 * 2.5e7);
  CHECK(story.Told() == "link a > b is 3.4 times slower than measured\n");
  // Small messages say something about the latency, and what passes changes nothing.
  for (int i = 0; i < 2; ++i) story.Sees(0.0001, 1000);
  story.Sees(0.041, 1'000'000);
  CHECK(story.book.Links()[0].link == slower.link);
}

TEST_CASE("messages of one size show less of a link than those of two") {
  constexpr int64_t kBytes = 65'536;  // 1 ms of latency and 0.66 of bytes were expected
  Running narrow;
  for (int i = 0; i < 3; ++i) narrow.Sees(0.027, kBytes);
  CHECK(narrow.book.Links()[0].link.latency_ns == 1'000'000);
  CHECK(narrow.book.Links()[0].link.bandwidth_bytes_per_s < 1.3 * 2.5e6);
  CHECK(narrow.Told() == "link a > b is 16 times slower than measured\n");
  // Faster than that, which is still slower than measured.
  for (int i = 0; i < 4; ++i) narrow.Sees(0.009, kBytes);
  CHECK(narrow.Told() == "link a > b is 5.4 times slower than measured\n");
  // As it was again: what was the larger part goes back.
  for (int i = 0; i < 8; ++i) narrow.Sees(0.0017, kBytes);
  CHECK_THAT(narrow.Told(),
             Catch::EndsWith("link a > b is as measured again, not 1.6 times slower\n"));
  CHECK(narrow.book.Links()[0].link.latency_ns == 1'000'000);
  CHECK(narrow.book.Links()[0].link.bandwidth_bytes_per_s > 2e7);

  Running far;
  far.Sees(0.0207, kBytes);
  far.Sees(0.0207, kBytes);
  far.Sees(0.0226, 4 * kBytes);
  CHECK(far.book.Links()[0].link.latency_ns == Approx(20'000'000).epsilon(0.01));
  CHECK(far.book.Links()[0].link.bandwidth_bytes_per_s == Approx(1e8).epsilon(0.05));
}

TEST_CASE("what one pair finds of the line between two sites is so for the others on it") {
  Running story;
  for (const auto& [worker, site] : {std::pair("a", "paris"), std::pair("b", "oslo"),
                                     std::pair("c", "oslo"), std::pair("d", "paris")}) {
    WorkerHello hello;
    hello.site = site;
    story.Says(worker, hello);
  }
  constexpr int64_t kMs = 1'000'000;
  story.Says("a", LinksMeasured{"job-1", 9, {{"a", "c", kMs, 1.1e8}, {"a", "d", kMs, 1e8}}, ""});
  story.Says("d", LinksMeasured{"job-1", 9, {{"d", "b", kMs, 1e8}, {"d", "c", kMs, 2e7}}, ""});
  for (int i = 0; i < 3; ++i) story.Sees(0.041, 1'000'000);
  std::map<std::pair<NodeId, NodeId>, LinkReport> links;
  for (const LinkReport& link : story.book.Links()) links[{link.link.from, link.link.to}] = link;
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
  Running story;
  DeviceProfile profile{"b/0", "cpu", "1", DigestOf(Shape(), 32), {}};
  LayerCost block;
  block.kind = LayerKind::kBlock;
  block.micro_batch_sequences = 1;
  block.forward_ns = 5'000'000;
  block.input_gradient_ns = block.weight_gradient_ns = 5'000'000;
  profile.layers = {block};
  story.Says("b", JobPrepared{"job-1", {}, {profile}});
  const auto forward_ns = [&] {
    return story.book.Devices(profile.model_digest)[0].layers[0].forward_ns;
  };
  story.Works(1.1);
  story.Works(2);
  for (int heartbeat = 0; heartbeat < 10; ++heartbeat) story.Works(2, true);
  story.Works(2);
  CHECK(forward_ns() == 5'000'000);
  story.Works(2);
  CHECK(forward_ns() > 8'000'000);
  CHECK_THAT(story.Told(), Catch::StartsWith("b/0 is 1.9 times slower than measured"));
  REQUIRE(story.book.Troubles(story.now).size() == 1);
  // Only the device's own worker reports its work; another process of that name is measured anew.
  story.Says("a", WorkerHeartbeat{std::nullopt, std::nullopt, {DeviceWork{"b/0", 99}}});
  story.book.OnMessage(story.now, {"b", 6, WorkerHello{}});
  CHECK(forward_ns() == 5'000'000);
}

TEST_CASE("a device that shares its layers is held against the profile of that degree") {
  Running story;
  DeviceProfile profile{"b/0", "cpu", "1", DigestOf(Shape(), 32), {}};
  for (const int ranks : {1, 2}) {
    LayerCost block;
    block.kind = LayerKind::kBlock;
    block.micro_batch_sequences = 1;
    block.tensor_parallel = ranks;
    block.forward_ns = block.input_gradient_ns = block.weight_gradient_ns = 5'000'000 / ranks;
    profile.layers.push_back(block);
  }
  story.Says("b", JobPrepared{"job-1", {}, {profile}});
  for (int i = 0; i < 3; ++i) story.Works(0.5, false, 2);  // half of the work in half of the time
  CHECK(story.Told().empty());
  for (int i = 0; i < 3; ++i) story.Works(1, false, 2);
  CHECK_THAT(story.Told(), Catch::StartsWith("b/0 is 1.9 times slower than measured"));
  for (int i = 0; i < 3; ++i) story.Works(1, false, 4);  // not measured: nothing to compare with
  CHECK(story.Told().empty());
}

TEST_CASE("a device that has no work any more is tried again") {
  Running story;
  story.KnowsDevice();
  for (int i = 0; i < 3; ++i) story.Works(2);
  CHECK_FALSE(story.Told().empty());
  REQUIRE(story.deadline != kNever);
  story.now = story.deadline;
  story.Advances();
  CHECK_THAT(story.Told(), Catch::EndsWith("and is tried again\n"));
  CHECK(story.book.Troubles(story.now).empty());
}

TEST_CASE("after a restart of the coordinator, a device that becomes slower is found out") {
  Running story(/*measured=*/false);
  for (int i = 0; i < 3; ++i) story.Works(2);
  CHECK(story.Told().empty());  // no measurement was reported
  story.KnowsDevice();          // workers that connect again do
  story.Says("a", LinksMeasured{"", 0, {{"a", "b", 1'000'000, 1e8}}, ""});
  for (int i = 0; i < 3; ++i) story.Works(2);
  CHECK_THAT(story.Told(), Catch::StartsWith("b/0 is 2 times slower than measured"));
  for (int i = 0; i < 3; ++i) story.Sees(0.041, 1'000'000);
  CHECK(story.Told() == "link a > b is 3.7 times slower than measured\n");
  story.Says("a", LinksMeasured{"", 0, {{"a", "b", 1'000'000, 1e8}}, ""});
  CHECK(story.book.Links()[0].live);  // what is known since is newer
}

TEST_CASE("what workers said again is old, and is measured when there is time") {
  Story story;
  story.Says("a", LinksMeasured{"", 0, {{"a", "b", 1'000'000, 1e8}}, ""});
  REQUIRE(story.book.Links().size() == 1);
  story.Wants({"a", "b"});
  CHECK(story.Measurer() == "a");
  CHECK(story.sent[0].message.to == std::vector<NodeId>{"b"});
}

TEST_CASE("who joins a running island is measured beside training, before it is planned with") {
  Story story;
  story.Wants({"a", "b", "c"}, true, 1, {"c"});
  CHECK(story.Measurer() == "a");
  REQUIRE(story.sent.size() == 2);  // b is left alone
  CHECK(story.sent[0].message.beside);
  CHECK(story.sent[1].worker == "c");
  CHECK(story.sent[0].message.to == std::vector<NodeId>{"c"});
  CHECK(story.sent[0].message.members.size() == 2);
  CHECK(story.book.Turns() ==
        std::vector<std::string>{
            "the plan of island 0 of job-1 is waiting for links to be measured: it "
            "is the turn of a; 1 of 3 workers have begun theirs"});
  story.Measures({"c"});
  CHECK(story.Measurer() == "b");
  story.Measures({"c"});
  CHECK(story.Measurer() == "c");
  CHECK(story.sent[0].message.to == std::vector<NodeId>{"a", "b"});
  CHECK(story.planned.empty());
  story.Measures({"a", "b"});
  REQUIRE(story.planned.size() == 1);
  CHECK(story.planned[0].second.links.size() == 4);
  CHECK(story.book.Turns().empty());
  // Nothing is measured twice, and of those who train nothing at all.
  story.Wants({"a", "b", "c"}, true, 2, {"c"});
  CHECK(story.planned.size() == 2);

  SECTION("and where that does not work, the island has its plan all the same") {
    story.Wants({"a", "b", "d"}, true, 3, {"d"});
    for (int i = 0; i < 100 && story.planned.size() < 3; ++i) {
      story.now = story.deadline;
      story.Advances();
    }
    REQUIRE(story.planned.size() == 3);
    CHECK(story.book.Troubles(story.now).size() == 4);  // of d, not of a and b
  }
}

TEST_CASE("who joins a running island over a slow line is found out by its messages") {
  Story story;
  story.Wants({"a", "b"}, true);  // b has joined; no worker has time to measure
  REQUIRE(story.planned.size() == 1);
  CHECK(story.planned[0].second.links.empty());
  int64_t window = 0;
  const auto sees = [&](double seconds) {
    BoundaryState state;
    state.from = "a/0";
    state.to = "b/0";
    state.window = ++window;
    state.quickest_bytes = 1'000'000;
    state.quickest_seconds = seconds;
    IslandProgress progress;
    progress.boundaries = {state};
    story.Says("a", WorkerHeartbeat{progress, {}});
  };
  sees(0.9);
  sees(0.8);
  CHECK(story.book.Links().empty());
  CHECK(story.changes.empty());
  sees(1.2);
  REQUIRE(story.changes.size() == 1);
  CHECK(story.changes[0].workers == std::vector<NodeId>{"a", "b"});
  CHECK(story.changes[0].reason == "link a > b was not measured before, and carries 1.39 MB/s");
  REQUIRE(story.book.Links().size() == 1);
  CHECK(story.book.Links()[0].live);
  CHECK(story.book.Links()[0].link.latency_ns == 80'000'000);
  story.Wants({"a", "b"}, true, 2);  // so that it is planned with what is so
  REQUIRE(story.planned.size() == 2);
  CHECK(story.planned[1].second.links.size() == 1);
  for (int i = 0; i < 3; ++i) sees(0.2);  // and is corrected like others
  CHECK(story.changes.size() == 2);
}

TEST_CASE("a worker that does not measure delays one turn only") {
  Story story;
  story.Wants({"a", "b", "c", "d"});
  CHECK(story.Measurer() == "a");
  CHECK(story.sent[0].message.to == std::vector<NodeId>{"b", "c", "d"});
  story.now += seconds(21);
  story.Advances();  // a is busy
  CHECK(story.Measurer() == "b");
  CHECK(story.sent[0].message.to == std::vector<NodeId>{"c", "d"});
  LinksMeasured report{"job-1", story.sent[0].message.request, {{"b", "c", 1'000'000, 1e8}}, ""};
  report.unmeasured = {{"d", "it has not followed to our plan yet"}};
  story.Says("b", report);
  CHECK(story.Measurer() == "c");
  CHECK(story.sent[0].message.to == std::vector<NodeId>{"b"});
  story.Measures({"b"});
  REQUIRE(story.planned.size() == 1);
  CHECK(story.planned[0].second.links.size() == 2);
  CHECK(story.book.Troubles(story.now).size() == 10);
}

TEST_CASE("only links that are not known are measured") {
  Story story;
  story.Wants({"a", "b"});
  story.Measures({"b"});
  story.Measures({"a"});
  story.Wants({"a", "b", "c"}, false, 2);
  CHECK(story.Measurer() == "a");
  CHECK(story.sent[0].message.to == std::vector<NodeId>{"c"});
}

}  // namespace
}  // namespace atl

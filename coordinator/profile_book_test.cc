#include "coordinator/profile_book.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"

namespace atl {
namespace {

using std::chrono::seconds;

ModelSpec Shape() {
  ModelSpec model;
  model.hidden = 64;
  model.layers = 2;
  model.heads = 4;
  return model;
}

// Workers that answer when they are told to, and a book that asks them.
struct Story {
  ProfileBook book;
  Instant now = Instant() + seconds(100);
  std::vector<std::pair<ProfileBook::PlanKey, PlanRequest>> planned;
  std::vector<ProfileBook::Message> sent;
  Instant deadline = kNever;

  void Advances() {
    ProfileBook::Work work = book.Advance(now);
    sent = std::move(work.send);
    for (auto& plan : work.plan) planned.push_back(std::move(plan));
    deadline = work.deadline;
  }
  void Wants(const std::vector<std::string>& workers, bool busy = false, int64_t request = 1) {
    PlanRequest plan;
    plan.spec.data.sequence_length = 32;
    plan.facts.model = Shape();
    for (const std::string& worker : workers) {
      PlanMember member;
      member.member = {worker, 5, absl::StrCat("tcp://", worker), ""};
      member.devices = {{"cpu", 1 << 30, 1}};
      plan.members.push_back(std::move(member));
    }
    book.Want(now, {"job-1", 0, request}, std::move(plan), busy);
    Advances();
  }
  // The measurer of the newest messages; all of them name the same one.
  NodeId Measurer() const {
    REQUIRE_FALSE(sent.empty());
    for (const auto& message : sent) CHECK(message.message.measurer == sent[0].message.measurer);
    return sent[0].message.measurer;
  }
  void Says(const NodeId& worker, WorkerMessage message) {
    book.OnMessage(now, {worker, 5, std::move(message)});
    Advances();
  }
  // The measurer reports links to these.
  void Measures(const std::vector<NodeId>& others, double bytes_per_s = 1e8) {
    LinksMeasured report{"job-1", sent[0].message.request, {}, ""};
    const NodeId from = Measurer();
    for (const NodeId& to : others) report.links.push_back({from, to, 1'000'000, bytes_per_s});
    Says(from, report);
  }
};

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
    if (!story.sent.empty() && story.Measurer() == "b") story.Measures({"a"});
  }
  REQUIRE(story.planned.size() == 1);
  CHECK(story.planned[0].second.links.size() == 1);
  CHECK(story.now < Instant() + seconds(130));
}

TEST_CASE("old measurements are made again") {
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

TEST_CASE(
    "workers that run an island are not asked, nor such as cannot be reached, nor one alone") {
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
  story.book.Want(story.now, {"job-2", 0, 3}, other, false);
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

TEST_CASE("what a running island's messages show corrects a link") {
  Story story;
  story.Wants({"a", "b"});
  story.Measures({"b"}, 1e8);
  story.Measures({"a"}, 1e8);
  const auto boundary = [&](double seconds, double bytes) {
    BoundaryState state;
    state.from = "a/0";
    state.to = "b/1";
    state.message_seconds = seconds;
    state.bandwidth_bytes_per_s = bytes / seconds;
    IslandProgress progress;
    progress.boundaries = {state};
    story.Says("a", WorkerHeartbeat{progress, {}});
    return story.book.Links()[0];
  };
  story.now += seconds(60);
  CHECK_FALSE(boundary(0.0105, 1e6).live);  // 1 ms and 10 ms were expected
  CHECK(story.book.Links()[0].at == story.now);
  const LinkReport slower = boundary(0.041, 1e6);
  CHECK(slower.live);
  CHECK(slower.link.bandwidth_bytes_per_s == Approx(5e7));  // half way from 1e8 to 2.5e7
  CHECK(slower.link.latency_ns == 1'000'000);
  boundary(0.041, 1e6);
  boundary(0.041, 1e6);
  CHECK(boundary(0.041, 1e6).link.bandwidth_bytes_per_s < 1.3 * 2.5e7);
  const double settled = story.book.Links()[0].link.bandwidth_bytes_per_s;
  CHECK(boundary(0.0005, 1e6).link.bandwidth_bytes_per_s == settled);  // cannot be
}

}  // namespace
}  // namespace atl

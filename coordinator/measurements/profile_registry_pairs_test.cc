#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "coordinator/measurements/profile_registry.h"
#include "coordinator/measurements/testing/profile_registry_fixture.h"

namespace atl {
namespace {

using std::chrono::seconds;

// Two workers that have said hello, of which a does not reach b.
struct Separated : Running {
  Separated() {
    for (const char* worker : {"a", "b"}) {
      WorkerHello hello;
      hello.peer_endpoint = absl::StrCat("tcp://", worker);
      Deliver(worker, hello);
    }
    Fails();
  }
  void Fails() {
    WorkerHeartbeat heartbeat;
    heartbeat.unreachable = {{"b", "no connection within 8 s"}};
    Deliver("a", heartbeat);
  }
  void Waits() {
    REQUIRE(deadline != kNever);
    now = deadline;
    Advances();
  }
  void Answers(const std::string& trouble) {
    LinksMeasured answer;
    answer.probe = true;
    if (trouble.empty()) answer.reached = {"b"};
    if (!trouble.empty()) answer.unreachable = {{"b", trouble}};
    Deliver("a", answer);
  }
  // In the next plan that is requested.
  size_t CountUnreachable() {
    RequestPlan({"a", "b"}, true, ++request);
    return planned.back().second.unreachable.size();
  }
  int64_t request = 1;
};

TEST_CASE("a pair that failed where a worker is no more is tried again at once") {
  Separated fixture;
  CHECK(fixture.CountUnreachable() == 1);
  WorkerHello hello;
  hello.peer_endpoint = "tcp://elsewhere";
  fixture.Deliver("b", hello);
  CHECK(fixture.CountUnreachable() == 0);
  LinksMeasured late;  // at the endpoint before
  late.unreachable = {{"b", "no connection within 8 s"}};
  fixture.Deliver("a", late);
  CHECK(fixture.CountUnreachable() == 0);
}

TEST_CASE("a pair that failed is left out of plans until a probe beside training is answered") {
  Separated fixture;
  const Instant failed = fixture.now;
  REQUIRE(fixture.changes.size() == 1);
  CHECK(fixture.changes[0].unusable);
  CHECK(fixture.TakeChanges() == "a > b: no connection within 8 s\n");
  fixture.Fails();
  CHECK(fixture.TakeChanges().empty());
  CHECK(fixture.CountUnreachable() == 1);
  CHECK(fixture.planned.back().second.unreachable[0].to == "b");
  for (int probe = 0; probe < 3; ++probe) {
    fixture.Waits();
    REQUIRE(fixture.sent.size() == 1);
    CHECK(fixture.sent[0].worker == "a");
    CHECK(fixture.sent[0].incarnation == 5);
    const MeasureLinks& requested = fixture.sent[0].message;
    CHECK(requested.probe);
    CHECK(requested.measurer == "a");
    CHECK(requested.to == std::vector<NodeId>{"b"});
    REQUIRE(requested.members.size() == 1);
    CHECK(requested.members[0].endpoint == "tcp://b");
    fixture.Answers("no peer answers there");
    CHECK(fixture.TakeChanges().empty());
    CHECK(fixture.CountUnreachable() == 1);
  }
  CHECK(fixture.now == failed + seconds(3 * 60));
  REQUIRE(fixture.registry.ListTroubles(fixture.now).size() == 1);
  CHECK(fixture.registry.ListTroubles(fixture.now)[0] ==
        "a > b: no connection within 8 s; left out of plans for 180 s; a probe 0 s ago found: no "
        "peer "
        "answers there; probed in 60 s");
  fixture.Answers("");
  REQUIRE(fixture.changes.size() == 1);
  CHECK_FALSE(fixture.changes[0].unusable);
  CHECK(fixture.TakeChanges() ==
        "a > b: a probe is answered, after 180 s without: no connection within 8 s\n");
  CHECK(fixture.CountUnreachable() == 0);
  CHECK(fixture.registry.ListTroubles(fixture.now).empty());
  CHECK(fixture.deadline == kNever);
}

TEST_CASE("a pair that fails again after a probe is probed later each time") {
  Separated fixture;
  for (int minutes = 1; minutes <= 32; minutes *= 2) {
    const Instant failed = fixture.now;
    fixture.Waits();
    CHECK(fixture.now == failed + std::chrono::minutes(minutes));
    fixture.Answers("");
    fixture.Fails();
  }
}

TEST_CASE("a pair whose prober never answers is forgotten, and so is one of another process") {
  Separated fixture;
  for (int probe = 0; probe < 20; ++probe) {
    CHECK(fixture.CountUnreachable() == 1);
    fixture.Waits();
  }
  fixture.Waits();
  CHECK(fixture.CountUnreachable() == 0);
  Separated other;
  other.registry.OnMessage(other.now, {"b", 6, WorkerHello{}});
  CHECK(other.CountUnreachable() == 0);
}

}  // namespace
}  // namespace atl

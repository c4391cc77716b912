#include "worker/profiler/link_measurer.h"

#include <catch2/catch.hpp>
#include <deque>

#include "common/net/testing/peer_fixture.h"
#include "tests/catch/limits.h"

namespace atl::worker {
namespace {

// A worker that carries out the coordinator's requests.
struct Worker {
  // `patience`: with those that do not come.
  explicit Worker(const NodeId& name, bool busy = false, Duration patience = kPatience)
      : peer(name), measurer(peer.link.get(), Options(busy, patience)) {}

  LinkMeasurerOptions Options(bool busy, Duration patience) {
    LinkMeasurerOptions options;
    options.meet = [this, busy](const PeerFence& fence, const std::vector<IslandMember>& members) {
      if (busy) return absl::FailedPreconditionError("it is in an island");
      return peer.link->SetPeers(fence, members);
    };
    options.post = [this](LinksMeasured answer) {
      const std::lock_guard lock(mutex);
      answers.push_back(std::move(answer));
      changed.notify_all();
    };
    options.measuring = [this](const std::string& what) {
      const std::lock_guard lock(mutex);
      reported.push_back(what);
    };
    options.profile.bytes_max = 64 << 10;
    options.profile.message_timeout = kPatience;
    options.meet_timeout = options.probe_timeout = patience;
    return options;
  }
  LinksMeasured Answers() {
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, kPatience, [&] { return !answers.empty(); }));
    LinksMeasured answer = std::move(answers.front());
    answers.pop_front();
    return answer;
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<LinksMeasured> answers;  // guarded by mutex
  std::vector<std::string> reported;  // likewise: what it measures
  TestPeer peer;
  LinkMeasurer measurer;
};

TEST_CASE("workers measure in turn, and only the measurer answers, once") {
  Worker a("a"), b("b");
  const std::vector<IslandMember> members = {a.peer.member, b.peer.member};
  for (int64_t turn = 1; turn <= 2; ++turn) {
    const MeasureLinks request{"job-1", turn, members, turn == 1 ? "a" : "b"};
    for (int repeated = 0; repeated < 3; ++repeated) {
      a.measurer.Measure(request);
      b.measurer.Measure(request);
    }
    const LinksMeasured answer = (turn == 1 ? a : b).Answers();
    CHECK(answer.request == turn);
    CHECK(answer.trouble == "");
    REQUIRE(answer.links.size() == 1);
    CHECK(answer.links[0].from == request.measurer);
  }
  CHECK(a.reported == std::vector<std::string>{"measures the link to b (1 of 1)", ""});
  CHECK(a.answers.empty());
  CHECK(b.answers.empty());
}

// Returns the answer of a worker that waits for some that do not come: `measure` has it with longer
// and longer patience until those have come that do.
LinksMeasured WithPatience(const std::function<LinksMeasured(Duration)>& measure,
                           const std::function<bool(const LinksMeasured&)>& complete) {
  return atl::testing::WithGrowingLimit(std::chrono::seconds(1), measure, complete);
}

LinksMeasured MeasureSome(Duration patience) {
  Worker a("a", false, patience), b("b"), c("c"), d("d"), e("e");
  // No process listens there; d is there and does not follow.
  e.peer.member.endpoint = "tcp://127.0.0.1:9";
  MeasureLinks request{"job-1", 1, {}, "a", {"b", "d", "e"}};
  for (Worker* worker : {&a, &b, &c, &d, &e}) request.members.push_back(worker->peer.member);
  for (Worker* worker : {&a, &b, &c}) worker->measurer.Measure(request);
  return a.Answers();
}

TEST_CASE("only wanted links are measured; unreachable and busy workers are distinguished") {
  const LinksMeasured answer = WithPatience(MeasureSome, [](const LinksMeasured& found) {
    return found.links.size() == 1 && found.unmeasured.size() == 1 && found.unreachable.size() == 1;
  });
  CHECK(answer.trouble == "");
  REQUIRE(answer.links.size() == 1);
  CHECK(answer.links[0].to == "b");
  REQUIRE(answer.unmeasured.size() == 1);
  CHECK(answer.unmeasured[0].to == "d");
  REQUIRE(answer.unreachable.size() == 1);
  CHECK(answer.unreachable[0].to == "e");
  CHECK_FALSE(answer.unreachable[0].reason.empty());
}

LinksMeasured ProbeInUse(Duration patience) {
  Worker a("a", true, patience), b("b", true), e("e");
  Meet({"job-1", 1, 1}, {&a.peer, &b.peer});
  e.peer.member.endpoint = "tcp://127.0.0.1:9";
  MeasureLinks probe{"", 7, {b.peer.member, e.peer.member}, "a", {"b", "e"}, true};
  a.measurer.Measure(probe);
  LinksMeasured answer = a.Answers();
  a.peer.Say(b.peer, PeerChannel::kCommand, "as before");
  CHECK(b.peer.Receive(PeerChannel::kCommand).header == "as before");
  return answer;
}

TEST_CASE("a worker whose link is in use is probed and probes, beside what it does") {
  const LinksMeasured answer = WithPatience(
      ProbeInUse, [](const LinksMeasured& found) { return found.reached.size() == 1; });
  CHECK(answer.probe);
  CHECK(answer.request == 7);
  CHECK(answer.reached == std::vector<NodeId>{"b"});
  REQUIRE(answer.unreachable.size() == 1);
  CHECK(answer.unreachable[0].to == "e");
  CHECK(answer.links.empty());
}

TEST_CASE("a worker whose link is in use says so") {
  Worker a("a", true);
  a.measurer.Measure({"job-1", 1, {a.peer.member}, "a"});
  CHECK(a.Answers().trouble == "it is in an island");
}

TEST_CASE("who joins is measured beside the island that runs, both ways") {
  Worker a("a"), b("b"), joiner("j", true);  // no worker is met
  Meet(Plan(1), {&a.peer, &b.peer});
  const std::vector<IslandMember> members = {a.peer.member, joiner.peer.member};
  for (int64_t turn = 1; turn <= 2; ++turn) {
    MeasureLinks request{"job-1", turn, members, turn == 1 ? "j" : "a", {turn == 1 ? "a" : "j"}};
    request.during_steps = true;
    (turn == 1 ? joiner : a).measurer.Measure(request);  // the other one gets the request later
    (turn == 1 ? a : joiner).measurer.Measure(request);
    const LinksMeasured answer = (turn == 1 ? joiner : a).Answers();
    CHECK(answer.request == turn);
    CHECK(answer.unmeasured.empty());
    REQUIRE(answer.links.size() == 1);
    CHECK(answer.links[0].from == request.measurer);
    CHECK(answer.links[0].to == request.to[0]);
    CHECK(answer.links[0].bandwidth_bytes_per_s > 0);
  }
  CHECK(joiner.reported == std::vector<std::string>{"measures the link to a (1 of 1)", ""});
  a.peer.Say(b.peer, PeerChannel::kCommand, "still here");
  CHECK(b.peer.Receive(PeerChannel::kCommand).header == "still here");

  // Waits for a, which gets no request to take samples of it.
  Worker impatient("j", true, std::chrono::seconds(1));
  MeasureLinks unmatched{"job-1", 3, {a.peer.member, impatient.peer.member}, "j", {"a"}};
  unmatched.during_steps = true;
  unmatched.members[0].incarnation = 9;
  impatient.measurer.Measure(unmatched);
  const LinksMeasured none = impatient.Answers();
  CHECK(none.links.empty());
  CHECK(none.unmeasured.size() == 1);
}

}  // namespace
}  // namespace atl::worker

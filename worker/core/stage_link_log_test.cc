#include "worker/core/stage_link_log.h"

#include <catch2/catch.hpp>

namespace atl::worker {
namespace {

using Lines = std::vector<std::string>;

StageLinkState Says(const std::string& from, const std::string& to, const std::string& reason) {
  StageLinkState state;
  state.from = from;
  state.to = to;
  state.reason = reason;
  return state;
}

// Between two devices, and back.
class Fixture {
 public:
  Lines Sees(const std::string& out, const std::string& back = "") {
    return log_.LinesDue(now_, {Says("a/0", "b/0", out), Says("b/0", "a/0", back)});
  }
  void Passes(Duration time) { now_ += time; }

  StageLinkLog log_;
  Instant now_{};
};

TEST_CASE("The first change of each stage link is reported at once, and once") {
  Fixture fixture;
  CHECK(fixture.Sees("").empty());
  CHECK(fixture.Sees("2 chunks") == Lines{"a/0 > b/0: 2 chunks"});
  CHECK(fixture.Sees("2 chunks", "saturated") == Lines{"b/0 > a/0: saturated"});
  CHECK(fixture.Sees("2 chunks", "saturated").empty());
  fixture.Passes(std::chrono::hours(1));
  CHECK(fixture.Sees("2 chunks", "saturated").empty());
  CHECK(fixture.Sees("4 chunks", "saturated") == Lines{"a/0 > b/0: 4 chunks"});
}

TEST_CASE("A stage link that changes all the time gets a line a minute, which says how often") {
  Fixture fixture;
  int lines = 0;
  Lines last;
  for (int i = 0; i < 50 * 180; ++i) {  // every 20 ms, for three minutes
    Lines now = fixture.Sees(i % 2 == 0 ? "saturated" : "no longer saturated");
    lines += static_cast<int>(now.size());
    if (!now.empty()) last = std::move(now);
    fixture.Passes(std::chrono::milliseconds(20));
  }
  CHECK(lines == 3);
  CHECK(last == Lines{"a/0 > b/0: changed 3000 times in 60 s; now saturated"});
}

TEST_CASE("A change within the minute is reported at its end, if nothing else happens") {
  Fixture fixture;
  fixture.Sees("2 chunks");
  fixture.Passes(std::chrono::seconds(59));
  CHECK(fixture.Sees("4 chunks").empty());
  fixture.Passes(std::chrono::seconds(1));
  CHECK(fixture.Sees("4 chunks") == Lines{"a/0 > b/0: 4 chunks"});
}

TEST_CASE("A new plan begins with nothing to say, and is no way around the minute") {
  Fixture fixture;
  fixture.Sees("2 chunks");
  fixture.log_.LinesDue(fixture.now_, {});
  CHECK(fixture.Sees("").empty());
  CHECK(fixture.Sees("2 chunks").empty());
  fixture.Passes(StageLinkLog::kRepeatAfter);
  CHECK(fixture.Sees("2 chunks") == Lines{"a/0 > b/0: 2 chunks"});
}

TEST_CASE("Two stages between the same two devices are two stage links") {
  StageLinkLog log;
  const StageLinkState first = Says("a/0", "b/0", "2 chunks");
  const StageLinkState second = Says("a/0", "b/0", "saturated");
  CHECK(log.LinesDue(Instant{}, {first, second}).size() == 2);
  CHECK(log.LinesDue(Instant{}, {first, second}).empty());
}

}  // namespace
}  // namespace atl::worker

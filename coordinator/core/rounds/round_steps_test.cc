// Steps of the next round, in the World's commands.

#include <catch2/catch.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/testing/world.h"

namespace atl::coord {
namespace {

using testing::World;

struct Steps {
  int64_t a, b;
};

// After a round of a, whose speed is 200, and b.
Steps AfterRound(const std::string& submit, int speed_of_b) {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "steps=16 " + submit);
  w.DoLines({"worker a ready speed=200", absl::StrCat("worker b ready speed=", speed_of_b)});
  w.Round({"a", "b"}, 4);
  return {w.Order("a").steps_this_round, w.Order("b").steps_this_round};
}

TEST_CASE("steps_are_balanced_by_measured_speed") {
  const Steps steps = AfterRound("", 110);
  CHECK(steps.a == 16);
  CHECK(steps.b == 9);
}

TEST_CASE("a_slow_island_makes_no_fewer_steps_than_steps_min") {
  CHECK(AfterRound("steps-min=8", 20).b == 8);
}

// Two islands alike, a round of whose lasts 8 s; b's push comes `late_s` after a's. The steps of
// b's next round, and after it of a's.
Steps AfterLatePush(int late_s, const std::string& submit) {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "steps=16 grace=3 tokens=10000 " + submit);
  w.DoLines({"worker a ready speed=20", "worker b ready speed=20"});
  Steps steps{};
  w.Contribute("a", 16);
  w.DoLines({"wait 3", "servers answer", absl::StrCat("wait ", late_s - 3)});
  w.Contribute("b", 16);
  w.DoLines({"wait 3", "servers answer"});
  steps.b = w.Order("b").steps_this_round;
  w.Do(absl::StrCat("wait ", 11 - late_s - 3));
  w.Contribute("a", 16);
  w.DoLines({"wait 3", "servers answer"});
  steps.a = w.Order("a").steps_this_round;
  return steps;
}

TEST_CASE("an_island_between_the_others_makes_a_shorter_round_to_push_with_them") {
  const Steps early = AfterLatePush(4, "");  // a's next push is at 11, b's window closes at 7
  CHECK(early.b == 8);
  const Steps late = AfterLatePush(7, "");  // b's window closes at 10, its next push is at 18
  CHECK(late.b == 16);
  CHECK(late.a == 8);
}

TEST_CASE("no_island_makes_a_shorter_round_where_none_would_push_with_it") {
  CHECK(AfterLatePush(4, "no-balance").b == 16);
  CHECK(AfterLatePush(4, "steps-min=9").b == 16);
}

TEST_CASE("a_shorter_round_is_followed_by_one_of_all_islands") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "steps=16 grace=3 tokens=10000");
  w.DoLines({"worker a ready speed=20", "worker b ready speed=20"});
  w.Contribute("a", 16);
  w.DoLines({"wait 3", "servers answer", "wait 1"});
  w.Contribute("b", 16);
  w.DoLines({"wait 3", "servers answer", "wait 4"});
  w.Contribute("a", 16);
  w.Contribute("b", 8);
  w.Do("servers answer");
  CHECK(w.Job().decisions.back().participants.size() == 2);
  CHECK(w.Order("a").steps_this_round == 16);
  CHECK(w.Order("b").steps_this_round == 16);
}

}  // namespace
}  // namespace atl::coord

// How many steps rounds have where the job leaves that to measurements, in the World's commands: a
// step of an island of speed 20 takes 0.5 s.

#include "common/protocol/round_length.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/testing/world.h"

namespace atl::coord {
namespace {

using testing::World;

void Begin(World& w, int speed_of_b, int tokens = 100000) {
  w.StartJob({"ps-0"}, {"a", "b"}, absl::StrCat("steps=0 tokens=", tokens));
  w.DoLines({"worker a ready speed=20", absl::StrCat("worker b ready speed=", speed_of_b)});
}

// A round of both, whose exchange then takes a so long.
void Round(World& w, double exchange_s) {
  w.Round({"a", "b"}, 2);
  w.DoLines({absl::StrCat("worker a beats exchange=", exchange_s), "worker b beats exchange=0.1",
             "wait 2"});
}

// Rounds whose exchanges take nearly as long, until they count.
void Rounds(World& w, double exchange_s) {
  for (int i = 0; i < 11; ++i) Round(w, exchange_s + 0.001 * i);
}

TEST_CASE("the_first_rounds_are_short_and_the_next_as_long_as_measured_exchanges_require") {
  World w;
  Begin(w, 20);
  CHECK(w.Order("a").steps_this_round == kFirstRoundSteps);
  CHECK(absl::StrContains(w.Job().round_length, "2 steps a round"));
  CHECK(absl::StrContains(w.Job().round_length, "no exchange is measured yet"));
  for (int i = 0; i < 10; ++i) {
    Round(w, 1 + 0.0001 * i);
    CHECK(w.Order("a").steps_this_round == kFirstRoundSteps);
  }
  Round(w, 1);
  CHECK(w.Order("a").steps_this_round == 9);  // four exchanges
  CHECK(w.Order("b").steps_this_round == 9);
  CHECK(absl::StrContains(w.Job().round_length, ", a step 500 ms; "));
}

TEST_CASE("one_slow_exchange_changes_nothing_and_a_slower_link_does") {
  World w;
  Begin(w, 20);
  Rounds(w, 1);
  const int64_t before = w.Order("a").steps_this_round;
  CHECK(before == 9);
  Round(w, 30);
  Round(w, 1.01);
  CHECK(w.Order("a").steps_this_round == before);
  Rounds(w, 3);
  CHECK(w.Order("a").steps_this_round == 25);
}

TEST_CASE("a_short_job_has_32_rounds_however_slow_its_links_are") {
  World w;
  Begin(w, 20, 10000);
  Rounds(w, 100);
  CHECK(w.Order("a").steps_this_round == 15);  // of 10 tokens, of two islands
  CHECK(absl::StrContains(w.Job().round_length, "32 rounds"));
}

TEST_CASE("the_slowest_island_makes_a_step_in_each_round") {
  World w;
  Begin(w, 2);
  for (int i = 0; i < 12 && w.Order("a").steps_this_round == kFirstRoundSteps; ++i) Round(w, 0.1);
  CHECK(w.Order("a").steps_this_round == 10);
  CHECK(w.Order("b").steps_this_round == 1);
}

TEST_CASE("a_restarted_coordinator_keeps_the_length") {
  World w;
  Begin(w, 20);
  Rounds(w, 1);
  REQUIRE(w.Order("a").steps_this_round == 9);
  w.DoLines({"coordinator restarts", "server ps-0 attaches incarnation=1",
             "worker a attaches incarnation=1", "worker b attaches incarnation=1", "worker a ready",
             "worker b ready"});
  Round(w, 1);
  CHECK(w.Order("a").steps_this_round == 9);
}

TEST_CASE("pushes_of_other_lengths_are_no_outliers") {
  World w;
  Begin(w, 20);
  for (int i = 0; i < 12; ++i) Round(w, 1);
  w.Do("worker a leases wanted=8");
  w.DoLines({"worker a pushes steps=64 norm=40", "worker a stages"});
  w.Round({"b"}, 2);
  const DecisionRecord decision = w.Job().decisions.back();
  REQUIRE(decision.participants.size() == 2);
  for (const DecisionParticipant& p : decision.participants) CHECK(p.accepted);
}

TEST_CASE("a_schedule_by_rounds_counts_rounds_of_64_steps") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "steps=0 tokens=100000 validate=1");
  w.DoLines({"worker a ready speed=20", "worker b ready speed=20"});
  w.DoLines({"worker a validates", "worker b validates"});
  for (int i = 0; i < 31; ++i) {
    Round(w, 0.01);
    CHECK(w.Order("a").validate_version <= 0);
  }
  Round(w, 0.01);
  CHECK(std::max(w.Order("a").validate_version, w.Order("b").validate_version) == 32);
}

}  // namespace
}  // namespace atl::coord

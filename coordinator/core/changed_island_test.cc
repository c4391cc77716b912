// What islands of several workers become when the planner or measurements say so.

#include <catch2/catch.hpp>

#include "coordinator/core/testing/shared_story.h"

namespace atl::testing {
namespace {

TEST_CASE("What the planner decides of islands holds for who comes later, and after a restart") {
  World world;
  world.Tell({"planner groups worker", "server ps-0 attaches", "worker a attaches",
              "worker b attaches", "submit min=1 batch=2 island=auto", "worker a prepared",
              "worker b prepared"});
  CHECK(world.Job().islands.size() == 2);
  CHECK(Members(world.Order("a").plan) == "a");
  CHECK(world.Job().grouping == "each worker is an island: as the story says");
  world.Do("coordinator restarts");
  world.Tell({"worker a attaches incarnation=1", "worker b attaches incarnation=1",
              "server ps-0 attaches incarnation=1", "worker c attaches", "worker c prepared"});
  CHECK(world.Job().islands.size() == 3);
}

TEST_CASE("A device that is not what was measured leads to a plan, if that is worth it") {
  World world;
  StartShared(world);
  world.Do("wait 30");
  SECTION("the same layout is still the best") {
    CHECK(Says(world.Do("changed b reason=b/0_is_1.9_times_slower_than_measured"),
               "island 0 keeps plan 1 (b/0 is 1.9 times slower than measured): the same layout"));
    CHECK_FALSE(Says(world.Do("wait 100"), "plan"));  // said once, asked once
    // The next change is heard soon, whatever came of this one.
    CHECK(Says(world.Do("changed b reason=b/0_is_fast_again"), "(b/0 is fast again)"));
  }
  SECTION("nobody works in the island that it was") {
    CHECK_FALSE(Says(world.Do("changed z reason=z/0_is_slow"), "plan"));
  }
}

TEST_CASE("A plan that cannot be set up is replaced at once, and its reason is kept until it is") {
  World world;
  StartShared(world);
  world.Do("planner refuses reason=not-yet");
  world.Do("changed b reason=b_>_c:_no_connection_within_10_s unusable");
  CHECK(Says(world.Island(0).planning, "needs a plan (b > c: no connection within 10 s): not-yet"));
  world.Do("planner answers");
  CHECK(Says(world.Do("wait 30"), "(b > c: no connection within 10 s): plan 2"));
  CHECK(world.Order("a").plan.number == 2);
  CHECK_FALSE(Says(world.Do("wait 60"), "plan"));
}

TEST_CASE("An island that lost a stage of the job's has it again as soon as it can, fast or not") {
  World world;
  const bool fixed = GENERATE(true, false);
  StartShared(world, fixed ? "stages=3" : "");
  world.Tell({"worker c dies", "worker b follows", "worker a sets-up", "wait 30"});
  CHECK(Members(world.Order("a").plan) == "ab");
  world.Do("planner speed=10");
  world.Do("worker c attaches");
  world.Tell({"worker c prepared", "worker b follows", "worker a sets-up", "wait 60"});
  CHECK(Members(world.Order("a").plan) == (fixed ? "abc" : "ab"));
}

TEST_CASE("A lone worker with several devices is planned too") {
  World world;
  world.Tell({"server ps-0 attaches", "worker a attaches devices=2", "submit min=1 batch=2",
              "worker a prepared"});
  CHECK(world.Order("a").plan.number == 1);
}

}  // namespace
}  // namespace atl::testing

// Changes of islands of several workers when the planner or measurements request them.

#include <catch2/catch.hpp>

#include "coordinator/core/testing/shared_fixture.h"

namespace atl::testing {
namespace {

TEST_CASE("What the planner decides of islands holds for who comes later, and after a restart") {
  World world;
  world.DoLines({"planner groups worker", "server ps-0 attaches", "worker a attaches",
                 "worker b attaches", "submit min=1 batch=2 island=auto", "worker a prepared",
                 "worker b prepared"});
  CHECK(world.Job().islands.size() == 2);
  CHECK(Members(world.Order("a").plan) == "a");
  CHECK(world.Job().grouping == "each worker is an island: as the test says");
  world.Do("coordinator restarts");
  world.DoLines({"worker a attaches incarnation=1", "worker b attaches incarnation=1",
                 "server ps-0 attaches incarnation=1", "worker c attaches", "worker c prepared"});
  CHECK(world.Job().islands.size() == 3);
}

TEST_CASE("A device that is not what was measured leads to a plan, if that is worth it") {
  SharedWorld world;
  world.Do("wait 30");
  SECTION("the same layout is still the best") {
    CHECK(
        HasText(world.Do("changed b reason=b/0_is_1.9_times_slower_than_measured"),
                "island 0 keeps plan 1 (b/0 is 1.9 times slower than measured): the same layout"));
    CHECK_FALSE(HasText(world.Do("wait 100"), "plan"));  // reported once, requested once
    // The next change is considered soon, whatever the result of this one.
    CHECK(HasText(world.Do("changed b reason=b/0_is_fast_again"), "(b/0 is fast again)"));
  }
  SECTION("a change of a worker without an island has no effect") {
    CHECK_FALSE(HasText(world.Do("changed z reason=z/0_is_slow"), "plan"));
  }
}

TEST_CASE("A plan's reason names the largest of all that has changed since the one before") {
  SharedWorld world;
  world.Do("changed a reason=a/0_is_2_times_slower_than_measured subject=a/0 size=2");
  world.Do("changed b reason=b/0_is_9_times_slower_than_measured subject=b/0 size=9");
  world.Do("changed c reason=c/0_is_3_times_slower_than_measured subject=c/0 size=3");
  world.Do("changed b reason=link_b_>_c_is_5_times_slower_than_measured subject=b-c size=5");
  // The newer knowledge of b/0 replaces the older.
  world.Do("changed b reason=b/0_is_4_times_slower_than_measured subject=b/0 size=4");
  const std::string output = world.Do("wait 30");
  INFO(output);
  CHECK(HasText(output,
                "(link b > c is 5 times slower than measured; b/0 is 4 times slower than measured; "
                "c/0 is 3 times slower than measured; and 1 more): "));
  CHECK_FALSE(HasText(world.Do("wait 100"), "plan"));  // all of them were considered

  SECTION("and what changes while a plan is made is for the next one") {
    world.Do("planner waits");
    world.Do("changed a reason=a/0_is_slow subject=a/0");
    world.Do("wait 30");
    world.Do("changed c reason=c/0_is_slow subject=c/0");
    const std::string first = world.Do("planner answers");
    INFO(first);
    CHECK(HasText(first, "(a/0 is slow): "));
    CHECK_FALSE(HasText(first, "c/0"));
    CHECK(HasText(world.Do("wait 60"), "(c/0 is slow): "));
  }
}

TEST_CASE("What its workers measure is what a job waits for, and what they do") {
  World world;
  world.DoLines({"planner waits", "server ps-0 attaches", "worker a attaches", "worker b attaches",
                 "submit min=1 batch=2 island=all per-island=2"});
  world.Do("worker b beats measuring=measures_layers:_7_of_at_most_21");
  CHECK(HasText(world.Job().summary.waiting_for, "; b measures layers: 7 of at most 21"));
  world.Do("worker b beats");
  world.DoLines({"worker a prepared", "worker b prepared"});
  CHECK(HasText(world.Job().summary.waiting_for, "making a plan"));
  CHECK_FALSE(HasText(world.Job().summary.waiting_for, "measures"));
  world.Do("worker a beats measuring=measures_the_link_to_b_(1_of_1)");
  CHECK(HasText(world.Job().summary.waiting_for, "; a measures the link to b (1 of 1)"));
  CHECK(world.Island(0).workers[0].activity == "measures the link to b (1 of 1)");
  CHECK(world.Island(0).activity == "measures the link to b (1 of 1)");
  for (const MemberView& member : world.core().Members(Instant())) {
    CHECK(member.measuring == (member.name == "a" ? "measures the link to b (1 of 1)" : ""));
  }
  world.Do("worker a dies");
  CHECK_FALSE(HasText(world.Job().summary.waiting_for, "measures"));
}

TEST_CASE("A plan that cannot be set up is replaced at once, and its reason is kept until it is") {
  SharedWorld world;
  world.Do("planner refuses reason=not-yet");
  world.Do("changed b reason=b_>_c:_no_connection_within_10_s unusable");
  CHECK(HasText(world.Island(0).planning,
                "needs a plan (b > c: no connection within 10 s): not-yet"));
  world.Do("planner answers");
  CHECK(HasText(world.Do("wait 30"), "(b > c: no connection within 10 s): plan 2"));
  CHECK(world.Order("a").plan.number == 2);
  CHECK_FALSE(HasText(world.Do("wait 60"), "plan"));
}

TEST_CASE("An island that lost a stage of the job's has it again as soon as it can, fast or not") {
  const bool fixed = GENERATE(true, false);
  SharedWorld world(fixed ? "stages=3" : "");
  world.DoLines({"worker c dies", "worker b follows", "worker a sets-up", "wait 30"});
  CHECK(Members(world.Order("a").plan) == "ab");
  world.Do("planner speed=10");
  world.Do("worker c attaches");
  world.DoLines({"worker c prepared", "worker b follows", "worker a sets-up", "wait 60"});
  CHECK(Members(world.Order("a").plan) == (fixed ? "abc" : "ab"));
}

TEST_CASE("A lone worker with several devices is planned too") {
  World world;
  world.DoLines({"server ps-0 attaches", "worker a attaches devices=2", "submit min=1 batch=2",
                 "worker a prepared"});
  CHECK(world.Order("a").plan.number == 1);
}

TEST_CASE("A lone worker with one device is planned if the job does not fit it otherwise") {
  World world;
  world.DoLines({"server ps-0 attaches", "worker a attaches", "worker b attaches",
                 "submit min=2 batch=2", "worker a prepared measured=1", "worker b prepared"});
  CHECK(world.Order("a").plan.number == 1);
  CHECK(world.Order("b").plan.number == 0);
}

TEST_CASE("A lone worker says again to a restarted coordinator that it needs a plan") {
  World world;
  world.DoLines({"planner waits", "server ps-0 attaches", "worker a attaches",
                 "submit min=1 batch=2", "worker a prepared measured=1", "coordinator restarts",
                 "server ps-0 attaches incarnation=1", "worker a attaches incarnation=1",
                 "worker a prepared measured=1", "planner answers"});
  CHECK(world.Order("a").plan.number == 1);
}

TEST_CASE("A lone worker whose job fits by no plan waits, and says why") {
  World world;
  world.DoLines({"planner refuses reason=a/0-lacks-1-GiB", "server ps-0 attaches",
                 "worker a attaches", "submit min=1 batch=2", "worker a prepared measured=1"});
  CHECK(world.Order("a").job.empty());
  CHECK(world.Job().summary.waiting_for ==
        "island 0 needs a plan (it is the island's first): a/0-lacks-1-GiB");
}

}  // namespace
}  // namespace atl::testing

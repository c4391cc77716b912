// Workers of shared islands that end on purpose, in the World's commands.

#include <catch2/catch.hpp>

#include "coordinator/core/testing/shared_fixture.h"

namespace atl::testing {
namespace {

TEST_CASE("A follower that leaves serves on until the island is set up without it") {
  SharedWorld world;
  world.Do("worker c leaves");
  CHECK(Members(world.Order("a").plan) == "ab(c)");
  CHECK(world.Order("a").at_step_end);
  // No step is interrupted: the others get the plan when the leader has finished its step.
  CHECK(world.Membership("c").plan.number == 1);
  CHECK(HasText(world.Do("worker a beats"), "-> b: MemberOrder"));
  CHECK(world.Membership("c").plan.number == 2);  // it is a source of its layers
  CHECK_FALSE(HasText(world.Do("wait 4"), "-> c: MemberOrder"));
  const std::string output = world.Do("worker a sets-up");  // the layers have moved
  CHECK(Members(world.Order("a").plan) == "ab");
  CHECK(world.Order("a").plan.number == 3);
  CHECK_FALSE(HasText(output, "-> c: "));  // the step under way still counts on it
  CHECK(
      HasText(world.Do("worker a sets-up"), "-> c: MemberOrder lm-1 island 0 generation 1: stop"));
  world.Do("worker c dies");
  CHECK(world.Order("a").plan.number == 3);
  const std::vector<PlanChange> changes = world.Island(0).plan_changes;
  REQUIRE(changes.size() == 3);
  CHECK(changes[0].reason == "it is the island's first");
  CHECK_FALSE(changes[0].at_step_end);
  CHECK(changes[1].reason == "worker c is unavailable");
  CHECK(changes[1].at_step_end);
  CHECK(changes[2].reason == "its transfer sources are not needed any more");
}

// The leader, a, has pushed in part and handed that on when it begins to leave.
void StartHandingOver(World& world) {
  world.DoLines({"server ps-0 attaches", "worker a attaches incarnation=3",
                 "worker b attaches incarnation=8", "worker c attaches",
                 "submit min=1 batch=2 tokens=4000 island=all per-island=3", "worker a prepared",
                 "worker b prepared", "worker c prepared", "servers answer", "worker b follows",
                 "worker c follows", "worker a sets-up", "worker a pushes", "worker a stages",
                 "servers answer", "worker a ready", "worker a leases wanted=4", "worker a pushes",
                 "worker a stages shards=1"});
}

TEST_CASE("A leader that leaves hands over in the same generation: nothing is lost or renamed") {
  World world;
  StartHandingOver(world);
  const std::string output = world.Do("worker a leaves");
  CHECK(HasText(output, "island 0: worker b leads after a, which leaves"));
  CHECK(HasText(output, "(worker a leaves): plan 2 by b, c"));
  CHECK(HasText(output, "MemberOrder lm-1 island 0 generation 1: plan 2 of b c a, after the step"));
  CHECK_FALSE(HasText(output, "-> b: "));  // it would leave the step under way
  CHECK_FALSE(HasText(output, "-> c: "));
  CHECK_FALSE(HasText(output, "FenceIslands"));
  const std::string handed_over = world.Do("worker a beats");  // it follows now
  CHECK(HasText(handed_over, "-> b: IslandOrder lm-1 island 0 generation 1"));
  CHECK(HasText(handed_over, "takes over from a"));
  CHECK(HasText(handed_over, "-> c: MemberOrder"));
  CHECK(world.Order("b").author == 3);
  SECTION("and leaves when its successor is set up") {
    const std::string set_up = world.Do("worker b sets-up");
    CHECK(HasText(set_up, "island 0: worker b has taken over from a"));
    CHECK_FALSE(HasText(set_up, "-> a: "));
    CHECK(HasText(world.Do("worker b sets-up"),
                  "-> a: MemberOrder lm-1 island 0 generation 1: stop"));
    CHECK(Members(world.Order("b").plan) == "bc");
    world.Do("worker a dies");
    CHECK(world.Order("b").generation == 1);
    // The contribution goes on where it was, under its name.
    CHECK(
        HasText(world.Do("worker b pushes"),
                "-> b: PushGrant island 0 (generation 1, incarnation 3, base 0): shards 1:c 2:c"));
    CHECK(world.Island(0).steps_redone == 0);
  }
  SECTION("or, if it ends too early, begins a new generation as after its death") {
    const std::string left = world.Do("worker a dies");
    CHECK(
        HasText(left, "island 0 begins anew in generation 2: worker a ended before it had handed"));
    CHECK(HasText(left, "FenceIslands 0: generation 2 incarnation 8"));
    CHECK(world.Order("b").generation == 2);
    CHECK(world.Order("b").takes_over_from.empty());
    CHECK(Members(world.Order("b").plan) == "bc");
  }
  SECTION("and so it does if its successor dies") {
    CHECK(HasText(world.Do("worker b dies"), "worker c leads in generation 2 after b was evicted"));
    CHECK(world.Order("c").takes_over_from.empty());
    world.Do("worker c sets-up");
    CHECK(Members(world.Order("c").plan) == "c");
  }
  SECTION("another worker's death does not end it") {
    const std::string died = world.Do("worker c dies");
    CHECK(HasText(died, "(worker c is unavailable): plan 3 by b"));
    CHECK(world.Order("b").plan.number == 2);
    const std::string again = world.Do("worker a beats");
    CHECK(HasText(again, "-> b: IslandOrder"));
    CHECK(world.Order("b").plan.number == 3);
    CHECK(Members(world.Order("b").plan) == "b(a)");
    CHECK(world.Order("b").takes_over_from == "a");
    CHECK(HasText(world.Do("worker b sets-up"), "worker b has taken over from a"));
    CHECK(world.Order("b").generation == 1);
  }
  SECTION("it ends when its successor leads, also while the next plan is being made") {
    world.Do("planner waits");
    world.DoLines({"worker c leaves"});
    CHECK(HasText(world.Do("worker b sets-up"), "worker b has taken over from a"));
    // Steps go on under the plan that names it: it must not leave that plan before its successor
    // has.
    CHECK_FALSE(HasText(world.Do("planner answers"), "-> a: "));
  }
}

TEST_CASE("A restart of the coordinator forgets nothing of a leader that hands over") {
  World world;
  StartHandingOver(world);
  world.DoLines({"worker a leaves", "worker a beats"});
  world.Do("coordinator restarts");
  SECTION("when it comes back first") {
    world.DoLines({"server ps-0 attaches incarnation=3", "worker a attaches incarnation=3",
                   "worker a beats", "worker b attaches incarnation=8",
                   "worker c attaches incarnation=1"});
    CHECK(world.Order("b").takes_over_from == "a");
    CHECK(world.Order("b").generation == 1);
    CHECK(HasText(world.Do("worker b sets-up"), "worker b has taken over from a"));
  }
  SECTION("when its successor does") {
    world.DoLines({"server ps-0 attaches incarnation=3", "worker b attaches incarnation=8",
                   "worker c attaches incarnation=1", "worker a attaches incarnation=3",
                   "worker a beats"});
    CHECK(world.Order("b").takes_over_from == "a");
    CHECK(world.Order("b").generation == 1);
    CHECK(HasText(world.Do("worker b sets-up"), "worker b has taken over from a"));
  }
  SECTION("but where it does not come back, it has died") {
    world.DoLines({"server ps-0 attaches incarnation=3", "worker b attaches incarnation=8",
                   "worker c attaches incarnation=1"});
    CHECK(HasText(world.Do("wait 15"), "worker a ended before it had handed over"));
    CHECK(world.Order("b").generation == 2);
  }
}

TEST_CASE("A restart of the coordinator keeps the transfer sources") {
  SharedWorld world;
  world.Do("worker c leaves");
  CHECK(Members(world.Order("a").plan) == "ab(c)");
  world.Do("coordinator restarts");
  world.DoLines({"server ps-0 attaches incarnation=1", "worker a attaches incarnation=1",
                 "worker a beats", "worker b attaches incarnation=1"});
  SECTION("for those that ask them") {
    world.DoLines({"worker c attaches incarnation=1", "worker c beats"});
    CHECK(Members(world.Order("a").plan) == "ab(c)");
    CHECK(world.Membership("c").plan.number == 2);
    world.Do("worker a sets-up");
    CHECK(Members(world.Order("a").plan) == "ab");
  }
  SECTION("as long as they may come back") {
    CHECK(Members(world.Order("a").plan) == "ab(c)");
    CHECK(HasText(world.Do("wait 15"), "the same layout without its transfer sources"));
  }
}

TEST_CASE("A leader and a follower that leave at once: one after the other, and both are sources") {
  SharedWorld world;
  world.DoLines({"worker c leaves", "worker a leaves"});
  CHECK(Members(world.Order("a").plan) == "ab(c)");
  CHECK(HasText(world.Do("worker a sets-up"), "(worker a leaves): plan 3 by b"));
  world.Do("worker a beats");
  CHECK(Members(world.Order("b").plan) == "b(ac)");
  CHECK(world.Order("b").generation == 1);
}

TEST_CASE("A leader with all of the plan hands over to a spare worker") {
  World world;
  world.DoLines({"server ps-0 attaches", "worker a attaches", "submit min=1 batch=2 island=all",
                 "worker a prepared", "servers answer", "worker a sets-up", "worker a pushes",
                 "worker a stages", "servers answer", "worker a ready", "worker b attaches",
                 "planner speed=1.95"});
  CHECK_FALSE(world.Order("a").shared);
  world.Do("worker b prepared");
  CHECK(Members(world.Order("a").plan) == "a");
  CHECK(world.Order("a").shared);
  const std::string output = world.Do("worker a leaves");
  CHECK(HasText(output, "island 0: worker b leads after a, which leaves"));
  CHECK(HasText(output, "(worker a leaves): plan 2 by b"));
  CHECK_FALSE(HasText(output, "-> b: "));  // before it has stopped, it hands nothing over
  const std::string stopped = world.Do("worker a beats");
  CHECK(HasText(stopped, "-> b: IslandOrder"));
  CHECK(world.Order("b").takes_over_from == "a");
  CHECK(Members(world.Order("b").plan) == "b(a)");
  CHECK(HasText(world.Do("worker b sets-up"), "island 0: worker b has taken over from a"));
  CHECK(
      HasText(world.Do("worker b sets-up"), "-> a: MemberOrder lm-1 island 0 generation 1: stop"));
  CHECK(world.Order("b").generation == 1);
  CHECK(world.Island(0).steps_redone == 0);
}

TEST_CASE("Two followers that leave at once, and whichever plan comes first: both are sources") {
  SharedWorld world;
  world.Do("planner waits");
  world.Do("worker b leaves");
  SECTION("both before any plan is made") {
    world.DoLines({"worker c leaves", "worker b beats", "planner answers"});
    CHECK(Members(world.Order("a").plan) == "a(bc)");
    CHECK(world.Order("a").plan.number == 2);
  }
  SECTION("the second when the leader has its plan without the first") {
    world.DoLines({"planner answers", "planner waits", "worker c leaves"});
    CHECK(Members(world.Order("a").plan) == "ac(b)");
    world.DoLines({"planner answers", "worker b beats", "worker c beats"});
    CHECK(Members(world.Order("a").plan) == "a(bc)");
    CHECK(world.Order("a").at_step_end);
    CHECK(world.Membership("b").plan.number == 1);  // it never gets the plan in between
  }
  CHECK_FALSE(HasText(world.Do("worker a beats"), "stop"));
  CHECK(SamePlan(world.Membership("b").plan, world.Order("a").plan));
  CHECK(SamePlan(world.Membership("c").plan, world.Order("a").plan));
  CHECK_FALSE(HasText(world.Do("worker a sets-up"), "stop"));
  const std::string released = world.Do("worker a sets-up");
  CHECK(HasText(released, "-> b: MemberOrder lm-1 island 0 generation 1: stop"));
  CHECK(HasText(released, "-> c: MemberOrder lm-1 island 0 generation 1: stop"));
}

TEST_CASE("Leader and both followers leave at once: the worker that is left takes over from them") {
  SharedWorld world("per-island=0");
  world.DoLines({"worker d attaches", "worker d prepared"});
  world.DoLines({"planner waits", "worker a leaves", "worker b leaves", "worker c leaves",
                 "planner answers"});
  CHECK(Members(world.Membership("a").plan) == "d(abc)");
  CHECK(world.Order("d").plan.number == 0);
  CHECK_FALSE(HasText(world.Do("worker a beats"), "stop"));
  CHECK(world.Order("d").takes_over_from == "a");
  CHECK(SamePlan(world.Membership("b").plan, world.Order("d").plan));
  CHECK(SamePlan(world.Membership("c").plan, world.Order("d").plan));
  CHECK(world.Order("d").generation == 1);
  world.Do("worker d sets-up");
  const std::string released = world.Do("worker d sets-up");
  for (const char* left : {"a", "b", "c"}) {
    CHECK(HasText(released,
                  std::string("-> ") + left + ": MemberOrder lm-1 island 0 generation 1: stop"));
  }
}

TEST_CASE("a_server_that_is_stopped_left_and_one_that_dies_is_unavailable") {
  World world;
  world.DoLines({"server ps-0 attaches", "server ps-1 attaches"});
  CHECK(HasText(world.Do("server ps-0 leaves"), "ps-0 left: "));
  CHECK(HasText(world.Do("server ps-1 dies"), "ps-1 is unavailable: "));
}

TEST_CASE("an_island_keeps_the_workers_that_it_lost_with_the_reason") {
  SharedWorld world;
  const auto lost = [&] { return world.Stored<IslandRecord>().at(0); };
  CHECK(lost().members_lost == 0);
  world.DoLines({"worker c dies", "worker b leaves"});
  REQUIRE(lost().lost.size() == 2);
  CHECK(lost().members_lost == 2);
  CHECK(lost().lost[0].worker == "c");
  CHECK(lost().lost[1].worker == "b");
  CHECK(HasText(lost().lost[1].reason, "it leaves"));
  world.Do("worker a dies");
  CHECK(lost().lost.back().worker == "a");
}

TEST_CASE("a_leader_that_hands_over_counts_once_as_lost") {
  SharedWorld world;
  world.DoLines({"worker a leaves", "worker b sets-up", "worker b sets-up"});
  CHECK(world.Island(0).worker == "b");
  CHECK(world.Stored<IslandRecord>().at(0).members_lost == 1);
  world.Do("worker a dies");
  const IslandRecord island = world.Stored<IslandRecord>().at(0);
  CHECK(island.members_lost == 1);
  CHECK(island.lost.at(0).worker == "a");
}

TEST_CASE("A leader that leaves without followers is not waited for") {
  World world;
  world.DoLines({"server ps-0 attaches", "worker a attaches", "submit min=1 batch=2 island=all",
                 "worker a prepared", "servers answer", "worker a sets-up"});
  CHECK(HasText(world.Do("worker a leaves"), "worker a left: "));
}

TEST_CASE("A transfer source that dies before its layers have moved is not waited for") {
  SharedWorld world;
  world.Do("worker c leaves");
  CHECK(Members(world.Order("a").plan) == "ab(c)");
  CHECK(HasText(world.Do("worker c dies"), "plan 3, the same layout without its transfer sources"));
  CHECK(Members(world.Order("a").plan) == "ab");
  CHECK(world.Membership("b").plan.number == 3);
}

}  // namespace
}  // namespace atl::testing

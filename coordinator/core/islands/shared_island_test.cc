// Islands of several workers, in the World's commands.

#include <catch2/catch.hpp>

#include "coordinator/core/testing/shared_fixture.h"

namespace atl::testing {
namespace {

TEST_CASE("Workers that share an island get one plan, and one leader") {
  SharedWorld world;
  CHECK(world.Job().islands.size() == 1);
  CHECK(Members(world.Order("a").plan) == "abc");
  CHECK(world.Order("a").plan.number == 1);
  CHECK(SamePlan(world.Membership("b").plan, world.Order("a").plan));
  CHECK(SamePlan(world.Membership("c").plan, world.Order("a").plan));
  const IslandView island = world.Island(0);
  REQUIRE(island.workers.size() == 3);
  CHECK(island.workers[0].leads);
  CHECK(island.workers[2].in_plan);
  CHECK(island.workers[2].plan_number == 1);
  CHECK(world.Job().summary.state == JobState::kRunning);
}

TEST_CASE("Who shares an island: by site, by number, or all") {
  World world;
  const auto attach = [&](const char* submit) {
    world.DoLines({"server ps-0 attaches", "worker a attaches site=oslo",
                   "worker b attaches site=rome", "worker c attaches site=oslo",
                   "worker d attaches site=oslo", submit});
    for (const char* name : {"a", "b", "c", "d"}) {
      world.Do(std::string("worker ") + name + " prepared");
    }
  };
  SECTION("by site") {
    attach("submit min=2 batch=2 island=site");
    REQUIRE(world.Job().islands.size() == 2);
    CHECK(Members(world.Order("a").plan) == "acd");
    CHECK(Members(world.Order("b").plan) == "b");
  }
  SECTION("by site, two each") {
    attach("submit min=2 batch=2 island=site per-island=2");
    REQUIRE(world.Job().islands.size() == 3);
    CHECK(Members(world.Order("a").plan) == "ac");
    CHECK(Members(world.Order("d").plan) == "d");
  }
  SECTION("all") {
    attach("submit min=1 batch=2 island=all");
    REQUIRE(world.Job().islands.size() == 1);
    CHECK(Members(world.Order("a").plan) == "abc");  // three layers: the fourth is spare
    CHECK(world.Island(0).workers.size() == 4);
    CHECK_FALSE(world.Island(0).workers[3].in_plan);
    CHECK(world.Island(0).workers[3].activity == "no faster plan with it was found");
    CHECK(world.Membership("d").job.empty());
  }
  SECTION("nobody") {
    attach("submit min=2 batch=2");
    REQUIRE(world.Job().islands.size() == 4);
    CHECK(world.Order("a").plan.number == 0);
  }
}

TEST_CASE("A job waits for enough workers to make its islands complete") {
  World world;
  world.DoLines(
      {"server ps-0 attaches", "worker a attaches", "submit min=1 island=all per-island=2"});
  CHECK(world.Job().summary.waiting_for == "waiting for workers: 2 needed, 1 idle");
  world.Do("worker b attaches");
  CHECK(world.Job().summary.state == JobState::kPreparing);
}

TEST_CASE("A follower that dies: the same generation, a new plan without it, sent at once") {
  SharedWorld world;
  world.Do("worker a leases wanted=4");
  const Generation generation = world.Order("a").generation;
  const std::string output = world.Do("worker b dies");
  CHECK(HasText(output, "island 0 goes on without worker b: its connection is lost"));
  CHECK(HasText(output, "(worker b is unavailable): plan 2 by a, c: 1 replica of 2 stages"));
  CHECK(world.Order("a").generation == generation);
  CHECK(Members(world.Order("a").plan) == "ac");
  CHECK(world.Membership("c").plan.number == 2);
  // Leases and contributions are what they were.
  CHECK(HasText(world.Do("worker a pushes"), "PushGrant"));
}

TEST_CASE("an_order_that_was_lost_is_not_sent_again_without_the_plan_that_is_being_made") {
  SharedWorld world;
  const IslandOrder order = world.Order("a");
  world.DoLines({"planner waits", "worker b dies", "wait 3"});
  IslandProgress progress;
  progress.job = order.job;
  progress.island = order.island;
  progress.generation = order.generation;
  progress.seen_sequence = order.sequence - 1;
  WorkerHeartbeat beat;
  beat.progress = progress;
  world.HandleEvent(FromWorker{"a", 1, beat});
  CHECK(world.Order("a").plan.number == order.plan.number);
}

TEST_CASE("A contribution of which some is lost is withdrawn: the island begins anew") {
  SharedWorld world;
  world.DoLines({"worker a leases wanted=4", "worker a pushes", "worker a stages shards=1"});
  const Generation generation = world.Order("a").generation;
  const std::string output = world.Do("worker a pushes steps=0 consumed=");
  CHECK(HasText(output, "it has lost a part of what it was pushing"));
  CHECK(HasText(output, "is dropped: its island failed after 1 of 3 shards"));
  CHECK(world.Order("a").generation > generation);
}

TEST_CASE("A leader that dies: the first that remains leads, in a new generation") {
  SharedWorld world;
  world.DoLines({"worker a leases wanted=4", "worker a pushes", "worker a stages shards=1"});
  const Generation generation = world.Order("a").generation;
  const std::string output = world.Do("worker a dies");
  CHECK(HasText(output, "worker b leads in generation 2 after a was evicted"));
  CHECK(HasText(output, "is dropped: its island failed after 1 of 3 shards"));
  CHECK(HasText(output, "FenceIslands 0: generation 2 incarnation 1"));
  CHECK(world.Order("b").generation == generation + 1);
  CHECK(Members(world.Order("b").plan) == "bc");
  CHECK(world.Membership("c").generation == generation + 1);
  // Its data is free, and trained on by the new leader.
  world.DoLines({"worker c follows", "worker b ready", "worker b leases wanted=4"});
  CHECK(world.Leases("b") == std::vector<PositionRange>{{0, 4}});
  // The old one comes back as a follower.
  world.DoLines({"worker a attaches", "worker a prepared"});
  CHECK(Members(world.Order("b").plan) == "bca");
  CHECK(world.Membership("a").generation == generation + 1);
}

TEST_CASE("A leader that dies: the next one goes on from the saved state, if all of it is there") {
  SharedWorld world;
  world.DoLines({"worker a leases wanted=6", "worker a saves holders=abc step=4 consumed=0-4"});
  SECTION("one death leaves a copy of everything") {
    const std::string output = world.Do("worker a dies");
    CHECK(HasText(output, "goes on from the state saved at inner step 4"));
    REQUIRE(world.Order("b").resume.has_value());
    CHECK(world.Order("b").resume->save == 1);
    // The data that it was trained on is leased again, with what the dead leader may have used
    // since.
    CHECK(world.Order("b").resume->leased == std::vector<PositionRange>{{4, 6}});
    world.DoLines({"worker c follows", "worker b ready", "worker b leases wanted=2"});
    CHECK(world.Leases("b") == std::vector<PositionRange>{{6, 8}});
  }
  SECTION("after the coordinator's restart, too") {
    world.DoLines({"coordinator restarts", "worker a attaches incarnation=1",
                   "worker b attaches incarnation=1", "worker c attaches incarnation=1",
                   "server ps-0 attaches incarnation=1", "worker c follows", "worker b follows"});
    CHECK(HasText(world.Do("worker a dies"), "goes on from the state saved at inner step 4"));
  }
  SECTION("two deaths leave some of it nowhere, and which") {
    world.Do("worker b dies");
    CHECK(HasText(world.Do("worker a dies"), "no attached worker holds layer 0"));
    CHECK_FALSE(world.Order("c").resume.has_value());
  }
  SECTION("a push from the same base may count, if it is whole") {
    world.DoLines({"worker a pushes", "worker a stages"});
    CHECK(HasText(world.Do("worker a dies"), "holds steps that it had requested to push"));
  }
  SECTION("one that is half there is dropped, and counts no more") {
    world.DoLines({"worker a pushes", "worker a stages shards=1"});
    CHECK(HasText(world.Do("worker a dies"), "goes on from the state saved at inner step 4"));
  }
}

TEST_CASE("a_leader_dies_when_its_push_is_whole_and_the_next_one_pulls_the_version_made_of_it") {
  const bool overlaps = GENERATE(false, true);
  SharedWorld world(overlaps ? "" : "no-overlap");
  world.DoLines({"worker a leases wanted=6", "worker a saves holders=abc step=4 consumed=0-4",
                 "worker a pushes", "worker a stages"});
  SECTION("before_its_decision") {}
  SECTION("after_its_decision") { world.Do("servers answer once"); }
  SECTION("and_the_coordinator_with_it") {
    world.DoLines({"coordinator restarts", "worker a attaches incarnation=1",
                   "worker b attaches incarnation=1", "worker c attaches incarnation=1"});
  }
  world.Do("worker a dies");
  world.DoLines({"worker c follows", "worker b sets-up"});
  REQUIRE(world.Job().summary.version == 0);
  CHECK_FALSE(world.Order("b").resume.has_value());
  CHECK(world.Order("b").committed_version == 0);
  CHECK(world.Order("b").pull_order.empty() == !overlaps);
  world.DoLines({"server ps-0 attaches incarnation=1", "servers answer"});
  REQUIRE(world.Job().summary.version == 1);
  CHECK(world.Order("b").committed_version == 1);
  CHECK_FALSE(world.Order("b").pull_order.empty());
}

TEST_CASE("a_leader_dies_whose_push_is_dropped_later_and_the_next_one_pulls_what_is_committed") {
  SharedWorld world("no-overlap");
  world.DoLines({"worker a leases wanted=4", "worker a pushes", "worker a stages shards=1",
                 "server ps-0 dies", "worker a dies", "worker c follows", "worker b sets-up"});
  CHECK(world.Order("b").pull_order.empty());  // what is staged is not known
  world.DoLines({"server ps-0 attaches", "servers answer"});
  CHECK_FALSE(world.Order("b").pull_order.empty());
  CHECK(world.Order("b").committed_version == 0);
}

TEST_CASE("all_workers_of_an_island_die_and_it_resumes_from_their_disks_when_all_are_back") {
  SharedWorld world;
  world.DoLines({"worker a leases wanted=6", "worker a saves holders=abc step=4 consumed=0-4 disk",
                 "worker b dies", "worker a dies", "worker c dies"});
  SECTION("all are back, the leader another one") {
    world.DoLines({"planner waits", "worker b attaches", "worker a attaches", "worker c attaches",
                   "worker b prepared", "worker a prepared", "worker c prepared",
                   "planner answers"});
    const IslandOrder& order = world.Order(world.Island(0).workers[0].worker);
    REQUIRE(order.resume.has_value());
    CHECK(order.resume->inner_step == 4);
    CHECK(order.plan.number > 0);
  }
  SECTION("they come back one after the other: the plan waits until all of it is there") {
    world.DoLines({"worker b attaches", "worker b prepared", "wait 10"});
    CHECK_FALSE(world.Island(0).plan);
    world.DoLines({"worker a attaches", "worker a prepared"});
    REQUIRE(world.Order("b").resume.has_value());
    CHECK(Members(world.Order("b").plan) == "ba");
  }
  SECTION("one does not come back: a part of the state is lost") {
    world.DoLines({"worker b attaches", "worker b prepared"});
    CHECK_FALSE(world.Island(0).plan);  // the others may come
    world.Do("wait 29");
    CHECK_FALSE(world.Island(0).plan);
    world.Do("wait 2");
    CHECK(Members(world.Order("b").plan) == "b");
    CHECK_FALSE(world.Order("b").resume.has_value());
  }
}

TEST_CASE("All of an island die: it is vacant, and who comes back begins it anew") {
  SharedWorld world;
  world.DoLines({"worker b dies", "worker a dies", "worker c dies"});
  CHECK(world.Island(0).workers.empty());
  CHECK_FALSE(world.Island(0).plan);
  world.DoLines({"worker c attaches", "worker c prepared"});
  CHECK(Members(world.Order("c").plan) == "c");
  CHECK(world.Order("c").plan.number > 3);  // never a number twice
}

TEST_CASE("A worker that joins gets a part if that is worth it") {
  World world;
  world.DoLines({"server ps-0 attaches", "worker a attaches", "submit min=1 batch=2 island=all",
                 "worker a prepared", "servers answer", "worker a sets-up", "worker a pushes",
                 "worker a stages", "servers answer", "worker a ready", "worker b attaches"});
  SECTION("it is") {
    const std::string output = world.Do("worker b prepared");
    CHECK(HasText(output, "(worker b has joined): plan 2 by a, b"));
    CHECK(Members(world.Order("a").plan) == "ab");
    CHECK(world.Membership("b").plan.number == 2);
    CHECK(world.Order("a").generation == 1);
  }
  SECTION("it is not") {
    world.Do("planner speed=1.95");
    const std::string output = world.Do("worker b prepared");
    CHECK(HasText(output,
                  "island 0 keeps plan 1 (worker b has joined): the best other one would take "
                  "877.5 ms a step, this one takes 900 ms"));
    CHECK(world.Membership("b").job.empty());
    CHECK(world.Island(0).workers.size() == 2);
    CHECK(HasText(world.Island(0).planning,
                  "keeps plan 1 (worker b has joined): the best other one"));
    CHECK(HasText(world.Island(0).workers[1].activity,
                  "no part in the plan: keeps plan 1 (worker b"));
    CHECK(world.Do("wait 100").find("plan") == std::string::npos);  // not requested again
    world.Do("planner speed=1");
    CHECK(HasText(world.Do("worker a replans reason=slow"), "(slow): plan 2 by a, b"));
  }
}

TEST_CASE("An island's replan requests are answered at a limited rate") {
  SharedWorld world;
  CHECK_FALSE(HasText(world.Do("worker a replans reason=a/0>b/0-saturated"), "plan"));  // it is new
  world.Do("wait 29");
  const std::string output = world.Do("wait 2");
  CHECK(HasText(output,
                "island 0 keeps plan 1 (a/0>b/0-saturated): the same layout is still the best"));
  CHECK_FALSE(HasText(world.Do("wait 27"), "keeps plan"));
  CHECK(HasText(world.Do("wait 4"), "keeps plan"));
  CHECK_FALSE(HasText(world.Do("wait 50"), "keeps plan"));  // later and later
  CHECK(HasText(world.Do("wait 20"), "keeps plan"));
}

TEST_CASE("A worker of the old plan dies during its last step: all get the new plan at once") {
  SharedWorld world;
  world.DoLines({"worker d attaches", "worker c leaves"});
  CHECK(world.Order("a").at_step_end);
  CHECK(world.Membership("b").plan.number == 1);
  const std::string output = world.Do("worker c dies");
  CHECK_FALSE(world.Order("a").at_step_end);
  CHECK(HasText(output, "-> b: MemberOrder"));
}

TEST_CASE("A plan waits for the end of a step that takes long, and not for ever") {
  World world;
  world.Do("planner speed=400");  // 120 s a step: one may take 20 min
  StartShared(world);
  world.DoLines({"worker a steps-on", "worker c leaves"});
  REQUIRE(world.Order("a").at_step_end);
  world.Do("wait 1100");
  CHECK(world.Order("a").at_step_end);
  CHECK(world.Membership("b").plan.number == 1);
  world.Do("wait 110");
  CHECK_FALSE(world.Order("a").at_step_end);
  CHECK(world.Membership("b").plan.number == 2);
}

// World fails where the next deadline has passed: the shell would wake up again and again.
TEST_CASE("the_limit_of_a_change_of_plan_is_no_deadline_any_more_when_the_plan_is_set_up") {
  World world;
  world.DoLines({"server ps-0 attaches", "worker a attaches", "submit min=1 batch=2 island=all",
                 "worker a prepared", "servers answer", "worker a sets-up", "worker a pushes",
                 "worker a stages", "servers answer", "worker a ready", "worker b attaches",
                 "worker b prepared"});
  REQUIRE(world.Order("a").at_step_end);
  world.DoLines({"worker b follows", "worker a sets-up", "wait 1000"});
  CHECK(world.Island(0).plan->number == 2);
}

TEST_CASE("The planner refuses: the island waits, says why, and tries again") {
  World world;
  world.DoLines({"planner refuses reason=a/0-lacks-3-GiB", "server ps-0 attaches",
                 "worker a attaches", "worker b attaches", "submit min=1 batch=2 island=all",
                 "worker a prepared", "worker b prepared"});
  CHECK(world.Job().summary.waiting_for ==
        "island 0 needs a plan (it is the island's first): a/0-lacks-3-GiB");
  CHECK(world.Order("a").job.empty());
  world.Do("wait 20");
  world.Do("planner answers");
  CHECK(world.Order("a").job.empty());
  world.Do("wait 10");
  CHECK(Members(world.Order("a").plan) == "ab");
}

TEST_CASE("The planner refuses while an island works: it keeps what it has") {
  SharedWorld world;
  world.Do("planner refuses reason=no");
  world.Do("worker a replans reason=slow");
  CHECK(world.Order("a").plan.number == 1);
  world.Do("worker b dies");
  CHECK(HasText(world.Job().summary.waiting_for,
                "island 0 needs a plan (worker b is unavailable): no"));
  world.Do("planner answers");
  // A worker that joins changes everything: the planner gets a request at once.
  world.DoLines({"worker d attaches", "worker d prepared"});
  CHECK(Members(world.Order("a").plan) == "acd");
}

TEST_CASE("While the planner works the world changes: only the newest answer counts") {
  SharedWorld world;
  world.Do("planner waits");
  world.Do("worker b dies");
  CHECK(
      HasText(world.Job().summary.waiting_for, "island 0 making a plan: worker b is unavailable"));
  world.Do("worker c dies");
  world.Do("planner answers");  // both requests, in order
  CHECK(Members(world.Order("a").plan) == "a");
  CHECK(world.Order("a").plan.number == 2);
}

TEST_CASE("After a restart of the coordinator the plan in force goes on") {
  SharedWorld world;
  const IslandPlan plan = world.Order("a").plan;
  world.Do("coordinator restarts");
  SECTION("all members come back") {
    world.DoLines({"server ps-0 attaches incarnation=1", "worker a attaches incarnation=1",
                   "worker b attaches incarnation=1", "worker c attaches incarnation=1"});
    CHECK(world.Order("a").plan == plan);
    CHECK(SamePlan(world.Membership("b").plan, plan));
  }
  SECTION("a follower does not: it is waited for, and then planned without") {
    world.DoLines({"server ps-0 attaches incarnation=1", "worker a attaches incarnation=1",
                   "worker b attaches incarnation=1"});
    CHECK(world.Order("a").plan == plan);
    world.Do("wait 15");
    CHECK(Members(world.Order("a").plan) == "ab");
    CHECK(world.Order("a").plan.number == 2);
  }
}

TEST_CASE(
    "A worker that comes before the leader is back joins its island, and makes none of its own") {
  SharedWorld world("per-island=0");
  world.Do("coordinator restarts");
  world.DoLines({"server ps-0 attaches incarnation=1", "worker d attaches", "worker d prepared"});
  CHECK(world.Job().islands.size() == 1);
  CHECK(world.Island(0).workers.size() == 3);
  world.DoLines({"worker a attaches incarnation=1", "worker c attaches incarnation=1"});
  CHECK(world.Job().islands.size() == 1);
  CHECK(world.Island(0).workers.size() == 4);
  world.Do("wait 15");  // b is evicted
  CHECK(Members(world.Order("a").plan) == "acd");
}

TEST_CASE("A wrong push renews the generation, and with it the plan's number") {
  SharedWorld world;
  world.DoLines({"worker a leases wanted=4", "worker a pushes consumed=90-94"});
  CHECK(world.Order("a").generation == 2);
  CHECK(world.Order("a").plan.number == 2);
  CHECK(world.Membership("b").plan.number == 2);
  CHECK(world.Membership("b").generation == 2);
}

TEST_CASE(
    "The end of a job stops leader and followers, and repeats the order to those that did not "
    "stop") {
  SharedWorld world;
  const std::string output = world.Do("cancel lm-1");
  CHECK(HasText(output, "-> a: IslandOrder lm-1 island 0 generation 1: stop"));
  CHECK(HasText(output, "-> b: MemberOrder lm-1 island 0 generation 1: stop"));
  CHECK(HasText(output, "-> c: MemberOrder lm-1 island 0 generation 1: stop"));
}

TEST_CASE("Sites that are not declared are measured before islands are made, and stay") {
  World world;
  world.DoLines({"planner waits", "server ps-0 attaches", "worker a attaches site=oslo",
                 "worker b attaches", "worker c attaches", "worker d attaches",
                 "submit min=2 batch=2 island=site", "worker a prepared", "worker b prepared",
                 "worker c prepared"});
  CHECK(HasText(world.Do("worker d prepared"), "groups a b c d?"));
  CHECK(world.Job().islands.empty());
  CHECK(HasText(world.Job().summary.waiting_for, "the links between workers to be measured"));
  CHECK(HasText(world.Do("sites a=rome b=oslo c=site-c d=site-c"),
                "log worker c is at site-c, measured: near site-c"));
  CHECK(HasText(world.Do("planner answers"), "an island for each site: as the test says"));
  REQUIRE(world.Job().islands.size() == 2);
  CHECK(Members(world.Order("a").plan) == "ab");  // what its operator says holds
  CHECK(Members(world.Order("c").plan) == "cd");
  CHECK(HasText(world.Job().grouping, "an island for each site"));
  CHECK(world.core().Members(world.now())[0].site_source == "declared");
  CHECK(world.core().Members(world.now())[1].site_source == "measured: near oslo");
  world.Do("coordinator restarts");
  CHECK(world.core().Members(world.now())[3].site == "site-c");
  world.DoLines({"worker d attaches", "worker d prepared"});
  CHECK(world.Job().islands.size() == 2);
}

TEST_CASE("Measurements that do not come are not waited for") {
  World world;
  world.DoLines(
      {"planner waits", "server ps-0 attaches", "worker a attaches", "worker b attaches"});
  SECTION("auto") {
    world.DoLines(
        {"submit min=1 batch=2 island=auto", "worker a prepared", "worker b prepared", "wait 119"});
    CHECK(world.Job().islands.empty());
    CHECK(HasText(world.Do("wait 1"),
                  "one island of all workers: nothing was measured within 120 s"));
    CHECK(world.Island(0).workers.size() == 2);
  }
  SECTION("by site: no worker has one, so they share an island") {
    world.DoLines(
        {"submit min=1 batch=2 island=site", "worker a prepared", "worker b prepared", "wait 120"});
    CHECK(HasText(world.Job().grouping, "nothing was measured"));
    CHECK(world.Island(0).workers.size() == 2);
  }
}

}  // namespace
}  // namespace atl::testing

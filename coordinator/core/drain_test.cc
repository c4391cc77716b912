// Workers that an operator drains, in the World's commands. Servers: core_test.cc.

#include <catch2/catch.hpp>

#include "coordinator/core/testing/shared_fixture.h"

namespace atl::testing {
namespace {

std::string GetDrainStatus(const World& world, const NodeId& name,
                           MemberKind kind = MemberKind::kWorker) {
  for (const MemberView& member : const_cast<World&>(world).core().Members(world.now())) {
    if (member.kind == Name(kind) && member.name == name) return member.draining;
  }
  return "no such member";
}

constexpr char kDrained[] = "drained: it runs nothing and can be stopped";

TEST_CASE("worker_alone_in_its_island_is_drained_when_its_leased_data_is_committed") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "tokens=4000");
  w.Do("worker a leases wanted=4");
  REQUIRE(w.Leases("a").size() == 1);
  w.Do("drain a");
  CHECK(w.reply().ok());
  CHECK(HasText(w.Do("worker a leases wanted=4 request=2"), "LeaseGrant 2: nothing, exhausted"));
  CHECK(GetDrainStatus(w, "a") == "draining: it trains on the data that it has leased of lm-1");
  CHECK(w.Island(0).incarnation != 0);
  w.DoLines({"worker a pushes", "worker a stages"});
  CHECK(w.Island(0).incarnation != 0);  // its contribution is not decided
  w.Round({"b"}, 4);
  CHECK(w.Job().summary.version == 1);
  CHECK(w.Island(0).rounds_accepted == 1);
  CHECK(w.Island(0).incarnation == 0);
  CHECK(w.Island(0).steps_redone == 0);
  CHECK(w.Island(1).incarnation != 0);
  SECTION("it stops, and gets no work") {
    CHECK(HasText(w.Do("worker a beats"), "stop"));
    w.Do("worker a beats");
    CHECK(GetDrainStatus(w, "a") == kDrained);
    CHECK_FALSE(HasText(w.Do("wait 10"), "-> a: PrepareJob"));
  }
  SECTION("undone, it gets the request to prepare the job again") {
    CHECK(HasText(w.Do("drain a undo"), "-> a: PrepareJob"));
    CHECK(GetDrainStatus(w, "a").empty());
  }
  SECTION("it is drained after a restart of the coordinator and of itself") {
    w.Do("coordinator restarts");
    CHECK_FALSE(HasText(w.Do("worker a attaches"), "-> a: PrepareJob"));
    CHECK(GetDrainStatus(w, "a") == kDrained);
  }
}

TEST_CASE("drain_that_is_undone_in_time_costs_the_worker_nothing") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "tokens=4000");
  w.DoLines({"worker a leases wanted=4", "drain a", "worker a leases wanted=4 request=2"});
  w.Do("drain a undo");
  CHECK(HasText(w.Do("worker a leases wanted=4 request=2"), "LeaseGrant 2: 4-8"));
  CHECK(w.Island(0).evictions == 0);
}

TEST_CASE("worker_of_a_paused_job_is_drained_at_once") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "tokens=4000");
  w.DoLines({"worker a leases wanted=4", "pause lm-1", "drain a"});
  CHECK(w.Island(0).incarnation == 0);
  CHECK(w.Job().ledger.leased == 0);
}

TEST_CASE("drained_follower_serves_on_until_the_island_is_set_up_without_it") {
  SharedWorld w;
  w.Do("drain c");
  CHECK(Members(w.Order("a").plan) == "ab(c)");
  CHECK(w.Order("a").at_step_end);
  CHECK(GetDrainStatus(w, "c") == "draining: it still serves an island of lm-1");
  w.Do("worker a beats");
  w.Do("worker a sets-up");
  CHECK(Members(w.Order("a").plan) == "ab");
  CHECK(HasText(w.Do("worker a sets-up"), "-> c: MemberOrder lm-1 island 0 generation 1: stop"));
  CHECK_FALSE(HasText(w.Do("wait 10"), "-> c: PrepareJob"));
  CHECK(GetDrainStatus(w, "c") == kDrained);
}

TEST_CASE("drained_leader_hands_over_in_the_same_generation") {
  SharedWorld w;
  w.Do("worker a leases wanted=4");
  const std::string output = w.Do("drain a");
  CHECK(HasText(output, "island 0: worker b leads after a, which leaves"));
  w.Do("worker a beats");
  CHECK(w.Order("b").takes_over_from == "a");
  CHECK(HasText(w.Do("worker b sets-up"), "worker b has taken over from a"));
  CHECK(GetDrainStatus(w, "a") == "draining: it still serves an island of lm-1");
  CHECK(HasText(w.Do("worker b sets-up"), "-> a: MemberOrder lm-1 island 0 generation 1: stop"));
  w.Do("wait 2");
  CHECK(GetDrainStatus(w, "a") == kDrained);
  CHECK(w.Order("b").generation == 1);
  CHECK(w.Island(0).steps_redone == 0);
}

TEST_CASE("drain_of_an_unknown_or_ambiguous_name_is_refused") {
  World w;
  w.DoLines({"worker a attaches", "server a attaches"});
  w.Do("drain unknown");
  CHECK(absl::IsNotFound(w.reply()));
  w.Do("drain a");
  CHECK(absl::IsInvalidArgument(w.reply()));
  w.Do("drain worker/a");
  CHECK(w.reply().ok());
  CHECK(GetDrainStatus(w, "a") == kDrained);
  CHECK(GetDrainStatus(w, "a", MemberKind::kServer).empty());
  w.Do("drain paramserver/a");
  CHECK(GetDrainStatus(w, "a", MemberKind::kServer) ==
        "drained: it holds nothing and can be stopped");
}

}  // namespace
}  // namespace atl::testing

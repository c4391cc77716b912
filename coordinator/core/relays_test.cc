// Which relays members get, in the World's commands.

#include <catch2/catch.hpp>

#include "coordinator/core/testing/shared_fixture.h"

namespace atl::testing {
namespace {

MemberView FindMember(World& w, const NodeId& name) {
  for (const MemberView& member : w.core().Members(w.now())) {
    if (member.name == name) return member;
  }
  FAIL("no member " << name);
  return {};
}

TEST_CASE("members_get_a_relay_of_their_site_first_and_then_the_one_that_serves_the_fewest") {
  World w;
  w.DoLines({"server ps-0 attaches relay=r0:7 site=oslo", "server ps-1 attaches relay=r1:7",
             "server ps-2 attaches relay=r2:7"});
  CHECK(HasText(w.Do("worker a attaches site=oslo"), "-> a: Welcome, relay r0:7, relay r1:7"));
  CHECK(FindMember(w, "a").relays == "ps-0 (at its site oslo), ps-1 (serves 0 other members)");
  CHECK(HasText(w.Do("worker b attaches"), "-> b: Welcome, relay r2:7, relay r0:7"));
  CHECK(FindMember(w, "ps-0").relay_address == "r0:7");
  CHECK(FindMember(w, "ps-0").relays.empty());  // others reach it
}

TEST_CASE("a_relay_stays_for_as_long_as_it_is_there_and_another_one_takes_its_place") {
  World w;
  w.DoLines({"server ps-0 attaches relay=r0:7", "worker a attaches"});
  CHECK(FindMember(w, "a").relays == "ps-0 (serves 0 other members)");
  SECTION("others come: the first one stays") {
    CHECK(HasText(w.Do("worker r attaches relay=r9:7"), "-> a: Welcome, relay r0:7, relay r9:7"));
    CHECK_FALSE(HasText(w.Do("server ps-1 attaches relay=r1:7"), "-> a:"));
  }
  SECTION("it ends") {
    w.Do("server ps-1 attaches relay=r1:7");
    CHECK(HasText(w.Do("server ps-0 dies"), "-> a: Welcome, relay r1:7"));
    CHECK(FindMember(w, "a").relays == "ps-1 (serves 0 other members)");
  }
  SECTION("it is another process: words of the one before are void") {
    CHECK(HasText(w.Do("server ps-0 attaches relay=r0:8"), "-> a: Welcome, relay r0:8"));
  }
  SECTION("it relays no more") {
    w.Do("server ps-0 attaches");
    CHECK(FindMember(w, "a").relays.empty());
  }
}

TEST_CASE("a_member_that_has_left_counts_no_more_and_comes_back_to_its_relays") {
  World w;
  w.DoLines({"server ps-0 attaches relay=r0:7", "server ps-1 attaches relay=r1:7",
             "server ps-2 attaches relay=r2:7", "worker a attaches", "worker b attaches",
             "worker a dies"});
  // ps-0 served a and b.
  w.Do("worker c attaches");
  CHECK(FindMember(w, "c").relays == "ps-1 (serves 0 other members), ps-0 (serves 1 other member)");
  CHECK(HasText(w.Do("worker a attaches"), "-> a: Welcome, relay r0:7, relay r1:7"));
  w.Do("server ps-0 dies");
  for (const char* worker : {"a", "b", "c"}) {
    CHECK_FALSE(HasText(FindMember(w, worker).relays, "ps-0"));
    CHECK(HasText(FindMember(w, worker).relays, ","));
  }
}

TEST_CASE(
    "a_member_that_another_cannot_reach_connects_to_it_itself_for_as_long_as_both_are_there") {
  World w;
  w.DoLines({"worker a attaches relay=a:7 own=1", "worker b attaches relay=b:7 own=1"});
  CHECK(FindMember(w, "a").relay_address.empty());  // for its own links alone
  CHECK(FindMember(w, "b").relays.empty());
  const std::string printed = w.Do("worker a misses address=tcp://b:9");
  CHECK(HasText(printed, "-> b: Welcome, connects to a:7"));
  CHECK_FALSE(HasText(printed, "-> a: Welcome"));
  CHECK(FindMember(w, "b").relays == "itself to a (which cannot reach tcp://b:9)");
  CHECK_FALSE(HasText(w.Do("worker a beats"), "Welcome"));
  SECTION("it cannot reach that one either: neither connects, until it does") {
    CHECK(HasText(w.Do("worker b misses address=tcp://a:9"), "-> b: Welcome"));
    CHECK(FindMember(w, "a").relays.empty());
    CHECK(FindMember(w, "b").relays.empty());
    CHECK_FALSE(HasText(w.Do("worker a beats"), "Welcome"));
    w.Do("worker b misses address=tcp://elsewhere:9");
    CHECK(HasText(w.Do("worker a beats"), "-> b: Welcome, connects to a:7"));
  }
  SECTION("the one that cannot reach it ends") {
    w.Do("worker a dies");
    CHECK(FindMember(w, "b").relays.empty());
  }
  SECTION("it comes back, and is reported again") {
    w.DoLines({"worker b dies", "worker b attaches relay=b:7 own=1"});
    CHECK(FindMember(w, "b").relays.empty());
    CHECK(HasText(w.Do("worker a beats"), "-> b: Welcome, connects to a:7"));
  }
  SECTION("it comes back at another address") {
    w.Do("worker b dies");
    w.Do("worker b attaches relay=b:7 own=1 host=c");
    CHECK_FALSE(HasText(w.Do("worker a beats"), "-> b: Welcome"));
    CHECK(HasText(w.Do("worker a misses address=tcp://c:9"), "-> b: Welcome, connects to a:7"));
  }
}

TEST_CASE("a_parameter_server_that_a_worker_cannot_reach_connects_to_the_worker") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches relay=a:7 own=1"});
  CHECK(HasText(w.Do("worker a misses address=tcp://ps-0:1"), "-> ps-0: Welcome, connects to a:7"));
  // Who reaches no other member in either direction is left to relays.
  w.Do("worker b attaches");
  CHECK_FALSE(HasText(w.Do("worker b misses address=tcp://ps-0:1"), "Welcome, connects to"));
}

TEST_CASE("without_relays_members_are_welcomed_once") {
  World w;
  w.Do("server ps-0 attaches");
  const std::string printed = w.Do("worker a attaches");
  const size_t first = printed.find("-> a: Welcome");
  REQUIRE(first != std::string::npos);
  CHECK(printed.find("-> a: Welcome", first + 1) == std::string::npos);
}

}  // namespace
}  // namespace atl::testing

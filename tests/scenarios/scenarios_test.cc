// Replays every transcript in this folder: what follows each command must be what it has.

#include <catch2/catch.hpp>
#include <string>

#include "tests/scenarios/transcript.h"

namespace {

void Retell(const std::string& name) {
  const std::string told = atl::testing::ReadText("tests/scenarios/" + name + ".txt");
  CHECK(atl::testing::Replay(told) == told);
}

}  // namespace

TEST_CASE("transcript: a happy round, from submission to the end") { Retell("happy_round"); }
TEST_CASE("transcript: the grace time is over, a late island joins the next round") {
  Retell("late_island");
}
TEST_CASE("transcript: an island dead after its push counts") {
  Retell("dead_after_complete_push");
}
TEST_CASE("transcript: an island dead half way through its push") { Retell("dead_half_way"); }
TEST_CASE("transcript: the coordinator restarts between decision and commit") {
  Retell("coordinator_restart");
}
TEST_CASE("transcript: every message twice") { Retell("duplicates"); }
TEST_CASE("transcript: an old incarnation is fenced off") { Retell("fencing"); }
TEST_CASE("transcript: outliers are clipped in the warm-up and rejected after it") {
  Retell("outlier");
}
TEST_CASE("transcript: a void round") { Retell("void_round"); }
TEST_CASE("transcript: pause, resume, cancel") { Retell("pause_resume_cancel"); }
TEST_CASE("transcript: jobs are removed") { Retell("removed"); }
TEST_CASE("transcript: a worker joins a running job") { Retell("join"); }
TEST_CASE("transcript: a silent island's data is leased again") { Retell("data_released"); }
TEST_CASE("transcript: a parameter server restarts") { Retell("server_restart"); }
TEST_CASE("transcript: a job waits for the parameter servers it wants") {
  Retell("servers_wanted");
}
TEST_CASE("transcript: a worker resumes from its saved state") { Retell("resume_saved"); }
TEST_CASE("transcript: an island of three workers") { Retell("shared_island"); }
TEST_CASE("transcript: followers die and leave") { Retell("shared_follower_dies"); }
TEST_CASE("transcript: a leader dies") { Retell("shared_leader_dies"); }
TEST_CASE("transcript: a worker joins an island") { Retell("shared_join"); }
TEST_CASE("transcript: rounds of one fragment each") { Retell("fragments"); }
TEST_CASE("transcript: eager updates") { Retell("eager"); }
TEST_CASE("transcript: the planner refuses") { Retell("shared_planner_refuses"); }
TEST_CASE("transcript: a server is lost after a commit") { Retell("lost_after_commit"); }
TEST_CASE("transcript: a server is lost before a commit") { Retell("lost_before_commit"); }
TEST_CASE("transcript: a server is lost and no island has parameters") {
  Retell("lost_without_islands");
}
TEST_CASE("transcript: a server is lost while the job is paused") { Retell("lost_while_paused"); }
TEST_CASE("transcript: a server of fragments is lost") { Retell("lost_fragment"); }
TEST_CASE("transcript: both servers are lost") { Retell("lost_twice"); }

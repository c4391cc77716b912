// Replays every transcript in this folder: what follows each command must be what it has.

#include <catch2/catch.hpp>
#include <string>

#include "tests/scenarios/transcript.h"

namespace {

void CheckTranscript(const std::string& name) {
  const std::string transcript = atl::testing::ReadText("tests/scenarios/" + name + ".txt");
  CHECK(atl::testing::Replay(transcript) == transcript);
}

}  // namespace

TEST_CASE("transcript: a happy round, from submission to the end") {
  CheckTranscript("happy_round");
}
TEST_CASE("transcript: the grace time is over, a late island joins the next round") {
  CheckTranscript("late_island");
}
TEST_CASE("transcript: an island dead after its push counts") {
  CheckTranscript("dead_after_complete_push");
}
TEST_CASE("transcript: an island dead half way through its push") {
  CheckTranscript("dead_half_way");
}
TEST_CASE("transcript: the coordinator restarts between decision and commit") {
  CheckTranscript("coordinator_restart");
}
TEST_CASE("transcript: every message twice") { CheckTranscript("duplicates"); }
TEST_CASE("transcript: an old incarnation is fenced off") { CheckTranscript("fencing"); }
TEST_CASE("transcript: outliers are clipped in the warm-up and rejected after it") {
  CheckTranscript("outlier");
}
TEST_CASE("transcript: a void round") { CheckTranscript("void_round"); }
TEST_CASE("transcript: pause, resume, cancel") { CheckTranscript("pause_resume_cancel"); }
TEST_CASE("transcript: jobs are removed") { CheckTranscript("removed"); }
TEST_CASE("transcript: a worker joins a running job") { CheckTranscript("join"); }
TEST_CASE("transcript: a silent island's data is leased again") {
  CheckTranscript("data_released");
}
TEST_CASE("transcript: a parameter server restarts") { CheckTranscript("server_restart"); }
TEST_CASE("transcript: a job waits for the parameter servers it wants") {
  CheckTranscript("servers_wanted");
}
TEST_CASE("transcript: a worker resumes from its saved state") { CheckTranscript("resume_saved"); }
TEST_CASE("transcript: an island of three workers") { CheckTranscript("shared_island"); }
TEST_CASE("transcript: followers die and leave") { CheckTranscript("shared_follower_dies"); }
TEST_CASE("transcript: a leader dies") { CheckTranscript("shared_leader_dies"); }
TEST_CASE("transcript: a worker joins an island") { CheckTranscript("shared_join"); }
TEST_CASE("transcript: rounds of one fragment each") { CheckTranscript("fragments"); }
TEST_CASE("transcript: the planner refuses") { CheckTranscript("shared_planner_refuses"); }
TEST_CASE("transcript: a server is lost after a commit") { CheckTranscript("lost_after_commit"); }
TEST_CASE("transcript: a server is lost before a commit") { CheckTranscript("lost_before_commit"); }
TEST_CASE("transcript: a server is lost and no island has parameters") {
  CheckTranscript("lost_without_islands");
}
TEST_CASE("transcript: a server is lost while the job is paused") {
  CheckTranscript("lost_while_paused");
}
TEST_CASE("transcript: a server of fragments is lost") { CheckTranscript("lost_fragment"); }
TEST_CASE("transcript: both servers are lost") { CheckTranscript("lost_twice"); }
TEST_CASE("transcript: a server is lost when pushes are whole") {
  CheckTranscript("lost_when_whole");
}
TEST_CASE("transcript: a job is removed whose server has lost it") {
  CheckTranscript("removed_without_folder");
}

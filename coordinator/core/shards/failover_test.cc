// Shards with copies whose servers lose something, in the World's commands.

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "coordinator/core/testing/world.h"

namespace atl::testing {
namespace {

// Active servers of the shards, and those with their copies: "ps-0 ps-1/ps-1 -".
std::string Holders(const World& w) {
  const JobView job = w.Job();
  std::string active, copies;
  for (const ShardPlacement& shard : job.shards) active += shard.server + " ";
  for (const ShardPlacement& copy : job.copies)
    copies += copy.server.empty() ? "- " : copy.server + " ";
  return active + "/ " + copies;
}

void Start(World& w) {
  w.StartJob({"ps-0", "ps-1"}, {"a"}, "steps=4 servers=2 copies=2");
  w.Contribute("a", 4);
  w.DoLines({"servers answer", "worker a ready", "servers snapshot"});
}

bool HasLine(const std::string& output, const std::string& line) {
  const std::vector<std::string> lines = absl::StrSplit(output, '\n');
  return std::count(lines.begin(), lines.end(), "-> " + line) == 1;
}

TEST_CASE("no_copy_is_dropped_while_servers_come_back_to_a_restarted_coordinator") {
  World w;
  Start(w);
  const std::string before = Holders(w);
  w.DoLines({"wait 60", "coordinator restarts", "wait 4"});
  CHECK(Holders(w) == before);
}

// Large clusters gather changes of members before they act on them, but not the loss of a server.
TEST_CASE("a_lost_server_is_looked_at_at_once_however_many_members_there_are") {
  CoordinatorOptions options;
  options.many_members = 0;
  options.copy_grace = Duration::zero();
  World w(options);
  w.DoLines({"server ps-0 attaches", "server ps-1 attaches", "worker a attaches",
             "submit steps=4 servers=2 copies=2", "wait 1", "worker a prepared", "wait 1",
             "servers answer"});
  REQUIRE(Holders(w) == "ps-0 ps-1 ps-1 / ps-1 ps-0 ps-0 ");
  w.Do("server ps-1 dies");
  CHECK(Holders(w) == "ps-0 ps-0 ps-0 / - - - ");
}

TEST_CASE("refill_keeps_the_shards_that_the_other_server_still_has") {
  World w;
  Start(w);
  REQUIRE(Holders(w) == "ps-0 ps-1 ps-1 / ps-1 ps-0 ps-0 ");
  w.DoLines({"server ps-1 dies", "server ps-0 dies", "server ps-1 attaches lacks=0",
             "server ps-0 attaches empty"});
  const std::string output = w.Do("refill lm-1 server=ps-0");
  REQUIRE(w.reply().ok());
  CHECK(Holders(w) == "ps-0 ps-1 ps-1 / - - - ");
  CHECK(HasLine(output, "ps-0: ReceiveShards lm-1 version 1: 1"));
  CHECK(HasLine(output, "ps-1: AssignShards 1[30] 2[10]"));
}

TEST_CASE("refill_leaves_shards_that_the_other_server_lacks_to_be_refilled_there") {
  World w;
  Start(w);
  w.DoLines({"server ps-1 dies", "server ps-0 dies", "server ps-1 attaches lacks=1",
             "server ps-0 attaches empty", "refill lm-1 server=ps-0"});
  REQUIRE(w.reply().ok());
  CHECK(Holders(w) == "ps-1 ps-1 ps-1 / - - - ");
  CHECK(HasLine(w.Do("refill lm-1 server=ps-1"), "ps-1: ReceiveShards lm-1 version 1: 1"));
  CHECK(w.reply().ok());
}

TEST_CASE(
    "shards_that_both_servers_lost_before_an_island_had_their_version_are_filled_from_the_older") {
  World w;
  Start(w);
  w.DoLines({"worker a lags"});
  w.Contribute("a", 4);
  w.DoLines({"servers answer", "server ps-0 dies", "server ps-1 dies", "server ps-0 attaches empty",
             "server ps-1 attaches empty"});
  REQUIRE(w.Job().summary.version == 2);
  w.Do("refill lm-1 server=ps-0");
  REQUIRE(w.reply().ok());
  w.Do("refill lm-1 server=ps-1");
  REQUIRE(w.reply().ok());
  w.DoLines({"servers answer", "wait 4", "servers answer", "worker a fills", "servers answer"});
  const JobView job = w.Job();
  CHECK(job.summary.version == 4);  // each refill made one
  CHECK(job.decisions.back().version == 4);
  CHECK(job.decisions.back().participants.empty());
  for (const ShardPlacement& shard : job.shards) CHECK_FALSE(shard.server.empty());
  w.DoLines({"worker a ready"});
  w.Round({"a"}, 4);
  CHECK(w.Job().summary.version == 5);
}

// Bits of two versions are not mixed under one number.
TEST_CASE("a_refill_that_goes_on_from_another_theta_base_gets_another_version") {
  World w;
  w.StartJob({"ps-0", "ps-1"}, {"a", "b"}, "steps=4 servers=2 grace=1");
  w.DoLines({"worker a lags"});
  w.Contribute("b", 4);
  w.DoLines({"wait 2", "servers answer", "worker b ready", "worker b lags"});
  w.Contribute("b", 4);
  w.DoLines({"wait 2", "servers answer"});
  REQUIRE(w.Job().summary.version == 2);
  w.DoLines({"server ps-0 dies", "server ps-0 attaches empty", "refill lm-1 server=ps-0"});
  REQUIRE(w.reply().ok());
  CHECK(w.Do("servers answer").find("FillShards lm-1 version 1") != std::string::npos);
  CHECK(w.Job().summary.version == 3);
  w.DoLines({"worker b dies", "refill lm-1 server=ps-0"});
  REQUIRE(w.reply().ok());
  CHECK(w.Do("servers answer").find("FillShards lm-1 version 0") != std::string::npos);
  CHECK(w.Job().summary.version == 4);
  w.Do("servers answer");
  CHECK(HasLine(w.Do("worker a fills"), "ps-0: AssignShards 0[40]"));
  w.Do("worker a dies");
  w.DoLines({"server ps-0 dies", "server ps-0 attaches empty"});
  const std::string refused = w.Do("refill lm-1 server=ps-0");
  CHECK(w.reply().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(refused.find("->") == std::string::npos);
  CHECK(w.Job().summary.version == 4);
}

}  // namespace
}  // namespace atl::testing

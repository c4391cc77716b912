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
  w.Tell({"servers answer", "worker a ready", "servers snapshot"});
}

bool Tells(const std::string& told, const std::string& line) {
  const std::vector<std::string> lines = absl::StrSplit(told, '\n');
  return std::count(lines.begin(), lines.end(), "-> " + line) == 1;
}

TEST_CASE("refill_keeps_the_shards_that_the_other_server_still_has") {
  World w;
  Start(w);
  REQUIRE(Holders(w) == "ps-0 ps-1 ps-1 / ps-1 ps-0 ps-0 ");
  w.Tell({"server ps-1 dies", "server ps-0 dies", "server ps-1 attaches lacks=0",
          "server ps-0 attaches empty"});
  const std::string told = w.Do("refill lm-1 server=ps-0");
  REQUIRE(w.reply().ok());
  CHECK(Holders(w) == "ps-0 ps-1 ps-1 / - - - ");
  CHECK(Tells(told, "ps-0: ReceiveShards lm-1 version 0: 1"));
  CHECK(Tells(told, "ps-1: AssignShards 1[30] 2[10]"));
}

TEST_CASE("refill_leaves_shards_that_the_other_server_lacks_to_be_refilled_there") {
  World w;
  Start(w);
  w.Tell({"server ps-1 dies", "server ps-0 dies", "server ps-1 attaches lacks=1",
          "server ps-0 attaches empty", "refill lm-1 server=ps-0"});
  REQUIRE(w.reply().ok());
  CHECK(Holders(w) == "ps-1 ps-1 ps-1 / - - - ");
  CHECK(Tells(w.Do("refill lm-1 server=ps-1"), "ps-1: ReceiveShards lm-1 version 0: 1"));
  CHECK(w.reply().ok());
}

}  // namespace
}  // namespace atl::testing

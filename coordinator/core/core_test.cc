// The coordinator's rules that the transcripts in tests/scenarios do not cover.

#include "coordinator/core/core.h"

#include <catch2/catch.hpp>
#include <set>

#include "absl/strings/str_join.h"
#include "coordinator/core/testing/world.h"

namespace atl {
namespace {

using testing::World;

bool HasText(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

std::string ListMemberNames(World& w) {
  std::vector<NodeId> names;
  for (const MemberView& member : w.core().Members(w.now())) names.push_back(member.name);
  return absl::StrJoin(names, " ");
}

// ----------------------------------------------------------------------------------- members ----

TEST_CASE("names that are not names are refused for good") {
  World w;
  CHECK(HasText(w.Do("worker b@d attaches"), "Refused for good: a name is 1 to 63 letters"));
  CHECK(w.core().Members(w.now()).empty());
}

TEST_CASE("another software version is refused for good") {
  CoordinatorOptions options;
  options.software_version = "7";
  World w(options);
  CHECK(HasText(w.Do("worker a attaches"), "all daemons must be of one version"));
}

TEST_CASE("a_name_beyond_the_limit_is_refused_while_all_others_are_in_use") {
  CoordinatorOptions options;
  options.max_members = 2;
  World w(options);
  w.DoLines({"worker a attaches", "worker b attaches"});
  CHECK(HasText(w.Do("worker c attaches"), "keeps at most 2 names"));
  w.DoLines({"worker a goes-silent", "wait 30"});
  CHECK(HasText(w.Do("worker c attaches"), "keeps at most 2 names"));  // it may be back any moment
  w.Do("wait 60");
  CHECK_FALSE(HasText(w.Do("worker c attaches"), "Refused"));
  CHECK(ListMemberNames(w) == "b c");
  // Nor does a restarted coordinator know it.
  w.DoLines({"coordinator restarts"});
  CHECK(ListMemberNames(w) == "b c");
}

TEST_CASE("names_that_a_job_refers_to_are_not_forgotten") {
  CoordinatorOptions options;
  options.max_members = 4;
  World w(options);
  w.StartJob({"ps-0"}, {"a", "b"}, "");
  w.DoLines({"worker other attaches", "worker a goes-silent", "worker other goes-silent", "wait 10",
             "server ps-0 dies", "wait 90"});
  CHECK_FALSE(HasText(w.Do("worker c attaches"), "Refused"));
  CHECK(ListMemberNames(w) == "a b c ps-0");
  CHECK(HasText(w.Do("worker d attaches"), "keeps at most 4 names"));
}

TEST_CASE("more_names_come_over_a_clusters_life_than_are_kept") {
  CoordinatorOptions options;
  options.max_members = 600;
  options.many_members = 1000;
  World w(options);
  w.Do("worker stays attaches");
  for (int wave = 0; wave < 15; ++wave) {
    for (int i = 0; i < 290; ++i) {
      const std::string name = absl::StrCat("w", wave, "-", i);
      REQUIRE_FALSE(HasText(w.Do(absl::StrCat("worker ", name, " attaches")), "Refused"));
      w.Do(absl::StrCat("worker ", name, " goes-silent"));
    }
    w.Do("wait 70");
    REQUIRE(w.core().Members(w.now()).size() <= 600);
  }
  CHECK(HasText(ListMemberNames(w), "stays"));
}

TEST_CASE("a member without a hello is refused until it says hello") {
  World w;
  CHECK(HasText(w.Do("worker a ready"), "Refused: say hello first: not seen before"));
  w.DoLines({"worker a attaches", "worker a goes-silent", "wait 7"});
  CHECK(HasText(w.Do("worker a ready"), "say hello first: no heartbeat for 6 s"));
}

TEST_CASE("workers_without_an_island_send_heartbeats_less_often_in_a_large_cluster") {
  CoordinatorOptions options;
  options.heartbeats_per_second_max = 1;
  World w(options);
  const auto attached = [&w](const NodeId& name) {
    for (const MemberView& member : w.core().Members(w.now())) {
      if (member.name == name) return member.attached;
    }
    return false;
  };
  w.StartJob({"ps-0"}, {"a"}, "max=1");
  CHECK(HasText(w.Do("worker b attaches"), "a heartbeat every 3 s"));
  CHECK(HasText(w.Do("worker c attaches"), "a heartbeat every 4 s"));
  CHECK(HasText(w.Do("worker b beats"), "a heartbeat every 4 s"));
  CHECK_FALSE(HasText(w.Do("worker b beats"), "a heartbeat every"));
  CHECK_FALSE(HasText(w.Do("worker a ready"), "a heartbeat every"));  // leads an island
  w.DoLines({"worker a goes-silent", "worker b goes-silent", "wait 6"});
  CHECK_FALSE(attached("a"));
  w.Do("wait 5");
  CHECK(attached("b"));
  w.Do("wait 1");
  CHECK_FALSE(attached("b"));
}

TEST_CASE("three missed heartbeats evict, and not two") {
  World w;
  w.DoLines({"worker a attaches", "worker a goes-silent", "wait 5"});
  CHECK(w.core().Members(w.now())[0].attached);
  w.Do("wait 1");
  CHECK_FALSE(w.core().Members(w.now())[0].attached);
  CHECK(w.core().Members(w.now())[0].reason == "no heartbeat for 6 s");
}

TEST_CASE("after a stall no member is evicted at once, and a silent one is evicted later") {
  World w;
  w.DoLines({"worker a attaches", "worker b attaches", "worker b goes-silent"});
  w.Do("coordinator is-held-up 30");
  CHECK(w.core().Members(w.now())[0].attached);
  w.Do("wait 2");
  CHECK(w.core().Members(w.now())[0].attached);
  CHECK(w.core().Members(w.now())[1].reason == "no heartbeat for 6 s");
}

TEST_CASE("a worker that leaves has left at once with its reason, and is not evicted") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "");
  w.Do("worker a leaves");
  CHECK(w.Island(0).reason == "left: stopped by its operator");
}

TEST_CASE("after a restart of the coordinator members have time to come back, and no more") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "");
  const Generation generation = w.Island(0).generation;
  w.DoLines({"worker b goes-silent", "worker a goes-silent", "coordinator restarts", "wait 14",
             "worker a attaches incarnation=1"});
  CHECK(w.Island(0).generation == generation);
  w.Do("wait 1");
  CHECK(w.Island(0).attached);
  CHECK(HasText(w.Island(1).reason, "did not come back within 15 s"));
}

// -------------------------------------------------------------------------------------- jobs ----

TEST_CASE("a job that is not valid is refused with the field") {
  World w;
  w.Do("submit tokens=5");
  CHECK(HasText(std::string(w.reply().message()), "schedule.train_tokens = 5"));
  CHECK(w.core().Jobs().jobs.empty());
}

TEST_CASE("a job waits for workers, then for a server, and says so") {
  World w;
  w.Do("submit min=2");
  CHECK(w.Job().summary.waiting_for == "waiting for workers: 2 needed, 0 idle");
  w.DoLines({"worker a attaches", "worker b attaches"});
  CHECK(w.Job().summary.waiting_for == "waiting for parameter servers: 1 needed, 0 attached");
  w.Do("server ps-0 attaches");
  CHECK(w.Job().summary.state == JobState::kPreparing);
}

TEST_CASE("jobs are served first come, first served") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "worker b attaches", "submit min=2 max=2",
             "submit min=2", "submit min=1"});
  CHECK(w.Job("lm-1").summary.state == JobState::kPreparing);
  CHECK(w.Job("lm-3").summary.waiting_for ==
        "waiting for workers: 1 needed, 0 idle; job lm-1 (priority 0) has 2");
  w.DoLines({"cancel lm-1"});
  CHECK(w.Job("lm-2").summary.state == JobState::kPreparing);
  CHECK(w.Job("lm-3").summary.state == JobState::kQueued);
}

TEST_CASE("a job that no worker can run has failed with their reasons") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "submit"});
  w.Do("worker a refuses reason=no-such-file");
  CHECK(w.Job().summary.state == JobState::kFailed);
  CHECK(w.Job().summary.reason == "no worker can run it: a: no-such-file");
}

TEST_CASE("the minority is refused with the fact that differs") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "worker b attaches", "worker c attaches",
             "submit min=2", "worker a prepared sequences=999", "worker b prepared"});
  CHECK(
      HasText(w.Do("worker c prepared"),
              "worker a cannot run the job: it differs from the other workers: training sequences: "
              "999 here, 1000 on the others"));
  CHECK(w.Job().islands.size() == 2);
}

TEST_CASE("a slow worker is not waited for longer than the limit, and joins later") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "worker b attaches", "submit min=1",
             "worker a prepared", "wait 59"});
  CHECK(w.Job().summary.state == JobState::kPreparing);
  w.Do("wait 1");
  CHECK(w.Job().summary.state == JobState::kInitializing);
  w.Do("worker b prepared");
  CHECK(w.Job().islands.size() == 2);
}

TEST_CASE("servers without the memory are waited for with the numbers") {
  World w;
  w.DoLines(
      {"server ps-0 attaches memory=900", "worker a attaches", "submit", "worker a prepared"});
  CHECK(HasText(w.Job().summary.waiting_for, "too little memory: 960 bytes"));
  w.Do("server ps-1 attaches");
  CHECK(w.Job().summary.state == JobState::kInitializing);
}

TEST_CASE("a job waits for the servers that it wants, and is placed on all that are there") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "submit servers=3"});
  CHECK(w.Job().summary.state == JobState::kQueued);
  CHECK(w.Job().summary.waiting_for == "waiting for parameter servers: 3 needed, 1 attached");
  w.DoLines({"server ps-1 attaches", "server ps-2 attaches"});
  CHECK(w.Job().summary.state == JobState::kPreparing);
  // One that goes again before the model is placed is waited for, too.
  w.DoLines({"server ps-1 dies", "worker a prepared"});
  CHECK(w.Job().summary.state == JobState::kPreparing);
  CHECK(w.Job().summary.waiting_for == "waiting for parameter servers: 3 needed, 2 attached");
  w.Do("server ps-1 attaches");
  CHECK(w.Job().summary.state == JobState::kInitializing);
  std::set<NodeId> holders;
  for (const ShardPlacement& shard : w.Job().shards) holders.insert(shard.server);
  CHECK(holders == std::set<NodeId>{"ps-0", "ps-1", "ps-2"});
}

TEST_CASE("if the initializer dies another island makes the weights") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "worker b attaches", "submit min=1",
             "worker a prepared", "worker b prepared", "servers answer", "worker a pushes",
             "worker a stages shards=1", "worker a dies"});
  CHECK(w.Order("b").initialize);
  w.DoLines({"worker b pushes", "worker b stages", "servers answer"});
  CHECK(w.Job().summary.state == JobState::kRunning);
  CHECK(w.Job().decisions[0].participants[0].contribution.island == 1);
}

TEST_CASE("no_island_of_a_paused_job_has_a_speed") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "");
  w.Do("worker a ready speed=500");
  REQUIRE(w.Job().islands[0].progress->tokens_per_s == 500);
  w.Do("pause lm-1");
  CHECK(w.Job().islands[0].progress->tokens_per_s == 0);
  CHECK(w.Job().summary.tokens_per_s == 0);
  w.Do("resume lm-1");
  CHECK(w.Job().islands[0].progress->tokens_per_s == 500);
}

TEST_CASE("below min_islands the others pause, and go on when it returns") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "");
  w.Do("worker b dies");
  CHECK(w.Order("a").run == RunState::kPause);
  CHECK(w.Order("a").reason == "the job needs 2 islands and has 1");
  w.DoLines({"worker b attaches", "worker b prepared"});
  CHECK(w.Order("a").run == RunState::kRun);
}

TEST_CASE("a returning worker gets its island; a stranger only after the grace") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "max=3");
  w.DoLines({"worker b dies", "worker c attaches", "worker c prepared"});
  CHECK(w.Order("c").island == 2);
  w.DoLines({"worker b attaches", "worker b prepared"});
  CHECK(w.Order("b").island == 1);
  w.DoLines({"worker b dies", "wait 31", "worker d attaches", "worker d prepared"});
  CHECK(w.Order("d").island == 1);
}

TEST_CASE("a new worker's island does not change the others' generation") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "");
  const Generation before = w.Order("a").generation;
  w.DoLines({"worker b attaches", "worker b prepared"});
  CHECK(w.Order("a").generation == before);
  CHECK(w.Order("b").generation > before);
}

TEST_CASE("a server's fault makes the job wait with its reason, and the order is repeated") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "");
  w.Do("server ps-0 faults reason=a-push-is-missing");
  CHECK(w.Job().summary.state == JobState::kRunning);
  CHECK(HasText(w.Job().summary.waiting_for, "parameter server ps-0: a-push-is-missing"));
  CHECK(HasText(w.Do("wait 10"), "-> ps-0: AssignShards"));
}

TEST_CASE(
    "a server's passing fault is what the job waits for, until the server takes writes again") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "");
  w.Do("server ps-0 faults passing reason=disk-full");
  CHECK(w.Job().summary.state == JobState::kRunning);
  CHECK(HasText(w.Job().summary.waiting_for, "; parameter server ps-0: disk-full"));
  w.Round({"a"}, 4);
  CHECK(w.Job().summary.version == 1);
  CHECK_FALSE(HasText(w.Job().summary.waiting_for, "disk-full"));
}

TEST_CASE("the last validation ends at its time limit") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "tokens=40");
  w.Round({"a"}, 4);
  CHECK(w.Job().summary.waiting_for == "waiting for the last validation");
  w.Do("wait 120");
  CHECK(w.Job().summary.waiting_for == "waiting for the parameter servers' last snapshots");
  w.Do("servers snapshot");
  CHECK(w.Job().summary.state == JobState::kDone);
}

}  // namespace
}  // namespace atl

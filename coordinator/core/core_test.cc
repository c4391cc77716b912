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
  w.DoLines({"server ps-0 attaches", "worker a attaches", "worker b attaches", "submit min=1 max=1",
             "submit min=2", "submit min=1"});
  CHECK(w.Job("lm-3").summary.waiting_for == "waiting for job lm-2, which is before it");
  w.DoLines({"cancel lm-2"});
  CHECK(w.Job("lm-3").summary.state == JobState::kPreparing);
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
  w.Contribute("a", 4);
  w.Do("servers answer");
  CHECK(w.Job().summary.version == 1);
  CHECK_FALSE(HasText(w.Job().summary.waiting_for, "disk-full"));
}

TEST_CASE("the last validation ends at its time limit") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "tokens=40");
  w.Contribute("a", 4);
  w.Do("servers answer");
  CHECK(w.Job().summary.waiting_for == "waiting for the last validation");
  w.Do("wait 120");
  CHECK(w.Job().summary.waiting_for == "waiting for the parameter servers' last snapshots");
  w.Do("servers snapshot");
  CHECK(w.Job().summary.state == JobState::kDone);
}

// ------------------------------------------------------------------------------------ rounds ----

TEST_CASE("the grace time counts from the first arrival") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b", "c"}, "grace=10");
  w.Contribute("a", 4);
  w.Do("wait 6");
  w.Contribute("b", 4);
  w.Do("wait 3");
  CHECK(w.Job().round.phase == "window open");
  CHECK(w.Job().round.closes_in_s == 1);
  w.Do("wait 1");
  CHECK(w.Job().round.phase == "collecting");
}

TEST_CASE("wait_for_all waits for every island, but not for an evicted one") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "wait-for-all grace=1");
  w.Contribute("a", 4);
  w.Do("wait 60");
  CHECK(w.Job().round.phase == "window open");
  CHECK(w.Job().round.reason == "waiting for island 1 (60 s)");
  w.Do("worker b dies");
  CHECK(w.Job().round.phase == "collecting");
}

TEST_CASE("a push that claims what was not leased restarts its island") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "");
  w.Do("worker a leases wanted=4");
  const Generation before = w.Order("a").generation;
  SECTION("foreign data") {
    w.Do("worker a pushes consumed=0-5");
    CHECK(HasText(w.Island(0).reason, "positions 0 to 5 are not leased to this island"));
  }
  SECTION("wrong token count") {
    w.Do("worker a pushes tokens=41");
    CHECK(HasText(w.Island(0).reason, "it claims 41 tokens for 4 sequences of 10"));
  }
  SECTION("a version from the future") {
    w.Do("worker a pushes base=1");
    CHECK(HasText(w.Island(0).reason, "base version 1 is not one of 0 to 0"));
  }
  SECTION("nothing") {
    w.Do("worker a pushes consumed=");
    CHECK(HasText(w.Island(0).reason, "a push names 1 to"));
  }
  CHECK(w.Order("a").generation > before);
  CHECK(w.Job().ledger.free == 100);
  CHECK(w.Job().round.contributions.empty());
}

TEST_CASE("a push waits until every server has room, and a round without it makes room") {
  World w;
  // 80 elements: 640 bytes of parameters and momentum, 320 for one staged pseudo-gradient.
  w.DoLines({"server ps-0 attaches memory=1000", "worker a attaches", "worker b attaches",
             "submit min=2 wait-for-all", "worker a prepared", "worker b prepared",
             "servers answer", "worker a pushes", "worker a stages", "servers answer",
             "worker a ready", "worker b ready"});
  w.Contribute("a", 4);
  w.Do("worker b leases wanted=4");
  w.Do("worker b pushes consumed=4-8");
  CHECK(HasText(w.Job().round.reason, "waiting for statistics"));
  w.Do("servers answer");
  CHECK(w.Job().decisions.back().closed_because ==
        "the servers have no room for the other islands' pushes");
  CHECK(HasText(w.Do("worker b pushes base=0 consumed=4-8"), "PushGrant"));
}

TEST_CASE("three rejections in a row: the island warms up again") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "tokens=10000 grace=1");
  const auto round = [&](double norm_of_a) {
    w.Contribute("a", 1, norm_of_a);
    w.Contribute("b", 1);
    w.Do("servers answer");
  };
  for (int i = 0; i < 10; ++i) round(1);
  round(100);
  round(100);
  CHECK_FALSE(w.Order("a").outcome->accepted);
  CHECK_FALSE(w.Order("a").outcome->warm_up_again);
  round(100);
  CHECK(w.Order("a").outcome->warm_up_again);
  CHECK(w.Stored<PenaltyRecord>().at(0).state == PenaltyState());
  CHECK(w.Job().ledger.committed == 23);
  CHECK(w.Job().summary.tokens_committed == 230);
}

TEST_CASE("the decision keeps what it was made of") {
  World w;
  w.StartJob({"ps-0", "ps-1"}, {"a", "b"}, "clip=1");
  w.Contribute("a", 6, 2);
  w.Contribute("b", 2, 4);
  w.Do("servers answer");
  const DecisionRecord d = w.Job().decisions.back();
  CHECK(d.version == 1);
  CHECK(d.opened_by == 0);
  CHECK(d.closed_because == "all 2 active islands are in");
  REQUIRE(d.gram.size() == 4);
  CHECK(d.gram[1] == Approx(8));
  CHECK(d.norm == Approx(0.75 * 2 + 0.25 * 4));
  CHECK(d.clip_scale == Approx(1 / d.norm));
  CHECK(d.participants[0].weight == Approx(0.75 / d.norm));
  CHECK(d.participants[0].worker == "a");
  CHECK(d.participants[0].gradient_norm == 3);
}

// Version after so many seconds for which only a, that makes 4 steps of 10 tokens a round, has
// pushed.
Version VersionAfter(int seconds, const std::string& speed, const std::string& submit) {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "steps=4 grace=10 " + submit);
  w.Do("worker a ready speed=" + speed);
  w.Contribute("a", 4);
  w.DoLines({absl::StrCat("wait ", seconds), "servers answer"});
  return w.Job().summary.version;
}

TEST_CASE("adaptive_grace_waits_as_long_as_the_first_island_has_something_to_do") {
  CHECK(VersionAfter(9, "8", "") == 0);
  CHECK(VersionAfter(11, "8", "") == 1);
  // Its next round takes 5 s: four of them.
  CHECK(VersionAfter(3, "8", "adaptive-grace") == 0);
  CHECK(VersionAfter(5, "8", "adaptive-grace") == 1);
  // 40 s, and 10 at most.
  CHECK(VersionAfter(9, "1", "adaptive-grace") == 0);
  CHECK(VersionAfter(11, "1", "adaptive-grace") == 1);
}

TEST_CASE("the fastest island validates every few rounds, version 0 and the last") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "validate=2 tokens=200");
  w.DoLines({"worker a validates loss=5", "worker b ready speed=500"});
  const auto round = [&] {
    w.Contribute("a", 4);
    w.Contribute("b", 4);
    w.Do("servers answer");
  };
  round();
  CHECK(w.Order("b").validate_version == kNoVersion);
  round();
  CHECK(w.Order("a").validate_version == kNoVersion);
  CHECK(w.Order("b").validate_version == 2);
  w.Do("worker b validates loss=4");
  CHECK(w.Job().summary.validation_loss == 4);
  CHECK(w.Job().summary.first_validation_loss == 5);
  round();
  w.Contribute("a", 2);
  CHECK(w.Order("b").validate_version == kNoVersion);
}

TEST_CASE("a lost lease grant is repeated, an older request is ignored") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "");
  CHECK(HasText(w.Do("worker a leases wanted=4 request=5"), "LeaseGrant 5: 0-4"));
  CHECK(HasText(w.Do("worker a leases wanted=9 request=5"), "LeaseGrant 5: 0-4"));
  CHECK(w.Do("worker a leases wanted=4 request=4").empty());
  CHECK(w.Job().ledger.leased == 4);
}

TEST_CASE("an island cannot hoard data") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "steps=2 tokens=100000");
  w.Do("worker a leases wanted=1000000");
  CHECK(w.Job().ledger.leased == 16);  // 8 rounds of 2 steps of 1 sequence
}

TEST_CASE("an order that got lost is sent again when the heartbeat shows it") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "");
  w.Do("worker a attaches incarnation=1");  // the connection is new
  CHECK(HasText(w.Do("again"), "IslandOrder"));
}

TEST_CASE("an unanswered request is repeated every two seconds") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "");
  w.Contribute("a", 4);
  CHECK_FALSE(HasText(w.Do("wait 1"), "CollectStatistics"));
  CHECK(HasText(w.Do("wait 1"), "CollectStatistics"));
}

TEST_CASE("old decisions are forgotten once every snapshot is past them") {
  CoordinatorOptions options;
  options.decisions_kept = 4;
  World w(options);
  w.StartJob({"ps-0"}, {"a"}, "tokens=10000");
  const auto rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      w.Contribute("a", 1);
      w.Do("servers answer");
    }
  };
  rounds(20);
  CHECK(w.Job().decisions.size() == 21);  // nothing is in a snapshot yet
  w.Do("servers snapshot");
  rounds(1);
  CHECK(w.Job().decisions.size() == 9);  // a snapshot to spare: 8 rounds before version 20
  CHECK(w.Job().decisions.front().previous == 12);
}

TEST_CASE("a server that comes back with another key is placed with that one") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "");
  CHECK(w.Job("lm-1").shards[0].public_key.empty());
  w.Do("server ps-0 attaches key=new-key");
  for (const ShardPlacement& shard : w.Job("lm-1").shards) CHECK(shard.public_key == "new-key");
}

TEST_CASE("a damaged store is an error, not a crash") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "");
  w.Do("worker a leases wanted=4");
  const auto recover = [&](auto damage) {
    std::vector<StoreRecord> stored = w.core().Stored();
    damage(stored);
    return CoordinatorCore(CoordinatorOptions(), w.core().cluster(), 9).Recover(w.now(), stored);
  };
  const auto without = [&](auto kind) {
    return recover([&](std::vector<StoreRecord>& stored) {
      std::erase_if(
          stored, [&](const StoreRecord& r) { return std::holds_alternative<decltype(kind)>(r); });
    });
  };
  CHECK(recover([](auto&) {}).ok());
  CHECK_FALSE(without(JobRecord()).ok());
  CHECK_FALSE(without(ProgressRecord()).ok());
  CHECK_FALSE(without(IslandRecord()).ok());
  CHECK_FALSE(without(MemberRecord()).ok());
  const absl::Status twice = recover([](std::vector<StoreRecord>& stored) {
    stored.push_back(LedgerRecord{"lm-1", {2, 6}, LedgerUse::kLeased, 0, {}});
  });
  CHECK(HasText(std::string(twice.message()), "ledger/lm-1/0000000000000000002: it contradicts"));
}

// --------------------------------------------------------------------------------- placement ----

// Which servers hold shards of a job whose workers are in paris.
std::set<NodeId> HoldersWith(const std::string& rates) {
  World w;
  w.DoLines({"server far attaches site=oslo", "server near attaches site=paris",
             "worker a attaches site=paris", "worker b attaches site=paris"});
  if (!rates.empty()) w.Do(rates);
  w.DoLines({"submit min=2", "worker a prepared", "worker b prepared"});
  std::set<NodeId> holders;
  for (const ShardPlacement& shard : w.Job().shards) holders.insert(shard.server);
  return holders;
}

TEST_CASE("the_first_placement_weighs_how_far_servers_are_from_the_workers") {
  CHECK(HoldersWith("") == std::set<NodeId>{"far", "near"});
  CHECK(HoldersWith("rates paris-paris=100000000 paris-oslo=50000000") ==
        std::set<NodeId>{"far", "near"});
  CHECK(HoldersWith("rates paris-paris=100000000 paris-oslo=5000000") == std::set<NodeId>{"near"});
}

TEST_CASE("shards_leave_a_server_from_which_pulls_come_in_slowly") {
  const auto moves_after = [](int64_t ps_0, int64_t ps_1) {
    World w;
    w.StartJob({"ps-0", "ps-1"}, {"a"}, "servers=2");
    // An estimate needs so many different rates to be sure.
    for (int i = 0; i < 5; ++i) {
      w.Do(absl::StrCat("worker a pulls ps-0=", ps_0 + i, " ps-1=", ps_1 + i));
    }
    const std::string output = w.Do("wait 30");
    return HasText(output, "-> ps-0: ReceiveShards") +
           2 * HasText(output, "-> ps-1: ReceiveShards");
  };
  CHECK(moves_after(50000000, 100000000) == 0);
  CHECK(moves_after(2000000, 100000000) == 2);
  CHECK(moves_after(100000000, 2000000) == 1);
}

}  // namespace
}  // namespace atl

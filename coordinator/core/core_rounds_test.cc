// Rounds, data and placement, in the World's commands.

#include <catch2/catch.hpp>
#include <set>

#include "absl/strings/str_join.h"
#include "coordinator/core/testing/world.h"

namespace atl {
namespace {

using testing::World;

bool HasText(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
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

TEST_CASE("a round keeps of the moving average its decay to the power of the islands mean steps") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "wait-for-all no-balance ema=0.5");
  for (const char* worker : {"a", "b"}) {
    w.Do(absl::StrCat("worker ", worker, " leases wanted=4"));
    w.Do(absl::StrCat("worker ", worker, " pushes steps=", *worker == 'a' ? 3 : 1));
    w.Do(absl::StrCat("worker ", worker, " stages"));
  }
  CHECK(HasText(w.Do("servers answer"), "keeps 0.2500 of the average"));
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
    w.Round({"b"}, 1);
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
  const auto round = [&] { w.Round({"a", "b"}, 4); };
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
      w.Round({"a"}, 1);
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
  CHECK_FALSE(recover([](std::vector<StoreRecord>& stored) {
                for (StoreRecord& record : stored) {
                  auto* const job = std::get_if<JobRecord>(&record);
                  if (job != nullptr) job->spec.model.initial_job = "lm-0@x";
                }
              }).ok());
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

// Rounds of a mixture with two experts: shards 2 and 3 of six.

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "coordinator/core/testing/world.h"

namespace atl::testing {
namespace {

bool HasText(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

struct Mixture {
  explicit Mixture(const std::string& submit = "") {
    world.DoLines({"server ps-0 attaches", "worker a attaches", "worker b attaches",
                   absl::StrCat("submit min=2 wait-for-all ", submit),
                   "worker a prepared experts=2", "worker b prepared experts=2", "servers answer",
                   "worker a pushes", "worker a stages", "servers answer", "worker a ready",
                   "worker b ready"});
    REQUIRE(world.Job().summary.version == 0);
  }
  void Pushes(const std::string& worker, const std::string& experts) {
    world.Do(absl::StrCat("worker ", worker, " leases wanted=4"));
    world.Do(absl::StrCat("worker ", worker, " pushes experts=", experts));
  }
  int64_t CountPushed(size_t contribution = 0) {
    return world.Job().round.contributions.at(contribution).shards;
  }

  World world;
};

TEST_CASE("each expert is a shard, and all else is cut around it") {
  Mixture mixture;
  const std::vector<ShardPlacement> shards = mixture.world.Job().shards;
  REQUIRE(shards.size() == 6);
  std::vector<int32_t> experts;
  std::vector<int64_t> begins;
  for (const ShardPlacement& shard : shards) {
    experts.push_back(shard.expert);
    begins.push_back(shard.begin);
  }
  CHECK(experts == std::vector<int32_t>{-1, -1, 0, 1, -1, -1});
  CHECK(begins == std::vector<int64_t>{0, 0, 4, 14, 24, 0});
}

TEST_CASE("an expert without tokens is neither granted nor waited for") {
  Mixture mixture;
  mixture.Pushes("a", "7,0");
  CHECK(mixture.CountPushed() == 5);
  mixture.world.Do("worker a stages");
  mixture.Pushes("b", "3,40");
  CHECK(mixture.CountPushed(1) == 6);
  mixture.world.Do("worker b stages");
  const std::string round = mixture.world.Do("servers answer");
  CHECK(HasText(round, "experts 7 0 of 40"));
  CHECK(HasText(round, "experts 3 40 of 40"));
  CHECK(mixture.world.Job().summary.version == 1);
}

TEST_CASE("a push that claims more tokens than it has restarts its island") {
  Mixture mixture;
  const Generation before = mixture.world.Order("a").generation;
  SECTION("of an expert") { mixture.Pushes("a", "41,0"); }
  SECTION("of other experts") { mixture.Pushes("a", "1,2,3"); }
  SECTION("of none") { mixture.Pushes("a", "0,0"); }
  CHECK(mixture.world.Order("a").generation > before);
  CHECK(mixture.world.Job().round.contributions.empty());
}

TEST_CASE("initial weights say nothing of experts") {
  const auto [push, taken] =
      GENERATE(std::pair("worker a pushes", 1u), std::pair("worker a pushes experts=7,0", 0u));
  World world;
  world.DoLines({"server ps-0 attaches", "worker a attaches", "submit min=1",
                 "worker a prepared experts=2", "servers answer", push});
  CHECK(world.Job().round.contributions.size() == taken);
}

TEST_CASE("a decision is stored with its tokens, from which it is sent again") {
  Mixture mixture;
  mixture.Pushes("a", "7,0");
  mixture.world.Do("worker a stages");
  mixture.Pushes("b", "3,40");
  mixture.world.Do("worker b stages");
  mixture.world.Do("servers answer once");  // statistics; the commit is on its way
  const DecisionRecord decided = mixture.world.Stored<DecisionRecord>().back();
  REQUIRE(decided.participants.size() == 2);
  CHECK(decided.participants[0].expert_tokens == std::vector<int64_t>{7, 0});
  CHECK(decided.participants[1].expert_tokens == std::vector<int64_t>{3, 40});
  mixture.world.DoLines({"coordinator restarts", "server ps-0 attaches", "servers answer"});
  CHECK(mixture.world.Job().summary.version == 1);
}

TEST_CASE("a job that is rebuilt from its servers has the tokens of its newest round") {
  Mixture mixture;
  mixture.Pushes("a", "7,0");
  mixture.world.Do("worker a stages");
  mixture.Pushes("b", "3,40");
  mixture.world.DoLines({"worker b stages", "servers answer", "coordinator is-lost",
                         "server ps-0 attaches incarnation=1", "worker a attaches incarnation=1",
                         "worker b attaches incarnation=1", "servers answer", "wait 10",
                         "adopt lm-1"});
  REQUIRE(mixture.world.reply().ok());
  const DecisionRecord newest = mixture.world.Stored<DecisionRecord>().back();
  REQUIRE(newest.participants.size() == 2);
  CHECK(newest.participants[0].expert_tokens == std::vector<int64_t>{7, 0});
  CHECK(newest.participants[0].tokens == 40);
}

TEST_CASE("experts take turns and all else is in every round") {
  Mixture mixture("expert-fragments=2");
  mixture.Pushes("a", "7,5");
  CHECK(mixture.CountPushed() == 5);
  mixture.world.Do("worker a stages");
  mixture.Pushes("b", "7,5");
  mixture.world.Do("worker b stages");
  mixture.world.Do("servers answer");
  CHECK(mixture.world.Job().summary.version == 1);
}

}  // namespace
}  // namespace atl::testing

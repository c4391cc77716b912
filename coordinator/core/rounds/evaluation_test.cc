// Tasks that committed versions are scored in, in the World's commands: 4 steps of 10 tokens a
// round of each island.

#include <catch2/catch.hpp>

#include "coordinator/core/testing/world.h"

namespace atl::coord {
namespace {

using testing::World;

const std::vector<int32_t> kArc = {0}, kNone;

void Round(World& w) {
  w.Contribute("a", 4);
  w.Contribute("b", 4);
  w.Do("servers answer");
}

TEST_CASE("tasks are scored in the version where they are due, in one order with its validation") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "validate=0 evaluate=2 tokens=2000");
  CHECK(w.Order("a").evaluations == kArc);  // version 0
  w.DoLines({"worker a validates loss=5 score=0.25", "worker b ready speed=500"});
  REQUIRE(w.Job().summary.scores.size() == 1);
  CHECK(w.Job().summary.scores[0].name == "arc");
  CHECK(w.Job().summary.scores[0].version == 0);
  Round(w);
  CHECK(w.Order("b").validate_version == kNoVersion);
  CHECK(w.Order("b").evaluations == kNone);
  Round(w);
  CHECK(w.Order("b").validate_version == 2);
  CHECK(w.Order("b").evaluations == kArc);
  CHECK(w.Order("a").evaluations == kNone);
  w.Do("worker b validates loss=4 score=0.5");
  CHECK(w.Job().summary.scores[0].version == 2);
  CHECK(w.Job().summary.scores[0].accuracy == 0.5);
  CHECK(w.Job().summary.validated_version == 2);
  CHECK(w.Order("b").evaluations == kNone);
}

TEST_CASE("an islands death delays the scores of a version to another islands and the next one") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "validate=0 evaluate=2 tokens=2000");
  w.DoLines({"worker a validates loss=5 score=0.25", "worker b ready speed=500"});
  Round(w);
  Round(w);
  REQUIRE(w.Order("b").evaluations == kArc);
  w.DoLines({"worker b dies", "wait 20"});
  w.Contribute("a", 4);
  w.DoLines({"wait 20", "servers answer"});
  REQUIRE(w.Job().summary.version == 3);
  CHECK(w.Order("a").validate_version == 3);
  CHECK(w.Order("a").evaluations == kArc);
  w.Do("worker a validates loss=4 score=0.75");
  CHECK(w.Job().summary.scores[0].version == 3);
  CHECK(w.Job().summary.scores[0].accuracy == 0.75);
}

TEST_CASE("the loss of a version is there before its scores, which come one by one") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "validate=0 evaluate=2,2 tokens=2000");
  w.Do("worker a validates loss=5");
  CHECK(w.Job().summary.validated_version == 0);
  CHECK(w.Order("a").validate_version == 0);
  CHECK(w.Order("a").evaluations == std::vector<int32_t>{0, 1});
  w.Do("worker a validates loss=5 score=0.25 tasks=1");
  CHECK(w.Job().summary.scores.size() == 1);
  CHECK(w.Order("a").evaluations == std::vector<int32_t>{1});
  w.Do("worker a validates loss=5 score=0.5");
  CHECK(w.Job().summary.scores.size() == 2);
  CHECK(w.Order("a").validate_version == kNoVersion);
}

TEST_CASE("a task that is due while another version is scored is scored in a later one") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "validate=0 evaluate=2,3 tokens=2000");
  w.DoLines({"worker a validates loss=5 score=0.25", "worker b ready speed=500"});
  Round(w);
  Round(w);
  REQUIRE(w.Order("b").evaluations == kArc);
  w.Do("worker b ready");  // it has version 2
  w.Contribute("a", 4);
  w.DoLines({"wait 20", "servers answer"});
  REQUIRE(w.Job().summary.version == 3);
  CHECK(w.Order("b").validate_version == 2);
  CHECK(w.Order("b").evaluations == kArc);  // and not yet what is due at version 3
  w.Do("worker b validates loss=4 score=0.5");
  const auto scores = w.Job().summary.scores;
  REQUIRE(scores.size() == 2);
  CHECK(scores[0].version == 2);
  CHECK(scores[1].version == 0);
  CHECK(w.Order("a").validate_version + w.Order("b").validate_version == 3 + kNoVersion);
  CHECK(w.Order("a").evaluations.size() + w.Order("b").evaluations.size() == 1);
}

TEST_CASE("one island scores a version in tasks where every site validates it") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches site=oslo", "worker c attaches site=rome",
             "submit min=2 sites=oslo,rome validate=0 evaluate=2 tokens=2000",
             "worker a prepared digest=1", "worker c prepared digest=2", "servers answer",
             "worker a pushes", "worker a stages", "servers answer", "worker a ready",
             "worker c ready"});
  CHECK(w.Order("a").validate_version == 0);
  CHECK(w.Order("c").validate_version == 0);
  CHECK(w.Order("a").evaluations == kArc);
  CHECK(w.Order("c").evaluations == kNone);
  w.DoLines({"worker a validates loss=5", "worker c validates loss=4"});
  CHECK(w.Order("a").evaluations == kArc);
  CHECK(w.Order("c").validate_version == kNoVersion);
  w.Do("worker a validates loss=5 score=0.25");
  CHECK(w.Job().summary.scores.size() == 1);
  CHECK(w.Order("a").validate_version == kNoVersion);
}

TEST_CASE("an island that never ends a task begins anew") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "steps=4 grace=10 validate=0 evaluate=2 tokens=1000000");
  REQUIRE(w.Order("a").evaluations == kArc);
  w.DoLines({"worker a validates loss=5", "worker a stands-still"});
  const Generation before = w.Island(0).generation;
  const auto train = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      w.Contribute("b", 4);
      w.DoLines({"servers answer", "wait 30", "servers answer"});
    }
  };
  train(100);
  CHECK(w.Island(0).generation == before);
  train(25);
  CHECK(w.Island(0).generation > before);
  CHECK(w.Job().summary.validated_version >= 0);
}

// A job with an island of worker a, and a spare worker c.
struct SpareWorld : World {
  SpareWorld() {
    StartJob({"ps-0"}, {"a"}, "max=1 validate=0 evaluate=2 tokens=2000");
    DoLines({"worker a validates loss=5 score=0.25", "worker c attaches", "worker c prepared"});
  }
  void Train(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      Contribute("a", 4);
      Do("servers answer");
    }
  }
};

TEST_CASE("a spare worker evaluates versions in place of islands, which train on") {
  SpareWorld w;
  CHECK(w.Order("c").job.empty());  // nothing is due
  CHECK_FALSE(w.Job().evaluator.empty());
  w.Train(2);
  CHECK(w.Order("a").validate_version == kNoVersion);
  CHECK(w.Order("a").evaluations == kNone);
  CHECK(w.Order("c").run == RunState::kPause);
  CHECK(w.Order("c").validate_version == 2);
  CHECK(w.Order("c").evaluations == kArc);
  CHECK(w.Order("c").pull_order.size() == w.Order("c").shards.size());
  CHECK(w.Job().islands.size() == 1);
  w.Do("worker c beats");  // it has version 2
  w.Train(1);
  CHECK(w.Order("c").validate_version == 2);
  CHECK(w.Order("c").committed_version == 2);
  w.Do("worker c validates loss=4 score=0.5");
  REQUIRE(w.Job().summary.scores.size() == 1);
  CHECK(w.Job().summary.scores[0].version == 2);
  CHECK(w.Job().summary.scores[0].accuracy == 0.5);
  CHECK(w.Job().summary.validated_version == 2);
  CHECK(w.Order("c").validate_version == kNoVersion);
  w.Train(1);
  CHECK(w.Order("c").validate_version == 4);
}

TEST_CASE("when the spare worker dies an island evaluates, and then the next spare worker") {
  SpareWorld w;
  w.Train(2);
  REQUIRE(w.Order("c").evaluations == kArc);
  w.Do("worker c dies");
  CHECK(w.Order("a").validate_version == 2);
  CHECK(w.Order("a").evaluations == kArc);
  w.Do("worker a validates loss=4 score=0.5");
  CHECK(w.Job().summary.scores[0].version == 2);
  w.DoLines({"worker d attaches", "worker d prepared"});
  w.Train(2);
  CHECK(w.Order("d").validate_version == 4);
  CHECK(w.Order("a").validate_version == kNoVersion);
}

TEST_CASE("a spare worker takes the place of an island's, which is evaluated by none meanwhile") {
  SpareWorld w;
  w.Train(2);
  REQUIRE(w.Order("c").island != 0);
  w.DoLines({"worker a dies", "worker c prepared", "worker c beats"});
  CHECK(w.Island(0).worker == "c");
  CHECK(w.Order("c").island == 0);
  CHECK(w.Order("c").run == RunState::kRun);
  CHECK(w.Job().evaluator.empty());
}

TEST_CASE("a spare worker that never pulls the version leaves it to an island") {
  SpareWorld w;
  w.Do("worker c lags");
  w.Train(2);
  REQUIRE(w.Order("c").validate_version == 2);
  w.Do("wait 200");
  CHECK(w.Order("a").validate_version == kNoVersion);
  w.Do("wait 200");
  CHECK(w.Order("a").validate_version == 2);
  CHECK(w.Order("c").job.empty());   // stopped
  CHECK(w.Job().evaluator.empty());  // it is not taken again
}

TEST_CASE("a spare worker that is slower than rounds has no more time than one that is idle") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "max=1 validate=0 evaluate=1 tokens=2000");
  w.DoLines({"worker a validates loss=5 score=0.25", "worker c attaches", "worker c prepared",
             "worker c lags"});
  for (int round = 1; round <= 6 && !w.Job().evaluator.empty(); ++round) {
    w.Contribute("a", 4);
    w.DoLines({"servers answer", "wait 60"});
  }
  CHECK(w.Job().evaluator.empty());
  CHECK(w.Order("a").validate_version == w.Job().summary.version);
}

TEST_CASE("a spare worker that has found other data evaluates nothing") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "max=1 validate=0 evaluate=2 tokens=2000");
  w.DoLines(
      {"worker a validates loss=5 score=0.25", "worker c attaches", "worker c prepared digest=9"});
  CHECK(w.Job().evaluator.empty());
  for (int i = 0; i < 2; ++i) {
    w.Contribute("a", 4);
    w.Do("servers answer");
  }
  CHECK(w.Order("a").validate_version == 2);
  CHECK(w.Order("c").job.empty());
}

TEST_CASE("the last version of a job is evaluated by its spare worker, which is then stopped") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "max=1 validate=0 evaluate=2 tokens=40");
  w.DoLines({"worker a validates loss=5 score=0.25", "worker c attaches", "worker c prepared"});
  w.Contribute("a", 4);
  w.Do("servers answer");
  REQUIRE(w.Job().summary.state == JobState::kFinishing);
  CHECK(w.Order("c").validate_version == 1);
  w.DoLines({"worker c beats", "worker c validates loss=4 score=0.75", "servers answer",
             "servers snapshot", "servers answer"});
  CHECK(w.Job().summary.scores[0].version == 1);
  CHECK(w.Job().summary.state == JobState::kDone);
  CHECK(w.Order("c").job.empty());  // stopped
}

TEST_CASE("a score that is no share and one of an unknown task are not taken") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "validate=0 evaluate=2 tokens=2000");
  w.Do("worker a validates loss=5 score=1.5");
  CHECK(w.Job().summary.validated_version == 0);
  CHECK(w.Job().summary.scores.empty());
}

}  // namespace
}  // namespace atl::coord

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

TEST_CASE("a score that is no share and one of an unknown task are not taken") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "validate=0 evaluate=2 tokens=2000");
  w.Do("worker a validates loss=5 score=1.5");
  CHECK(w.Job().summary.validated_version == 0);
  CHECK(w.Job().summary.scores.empty());
}

}  // namespace
}  // namespace atl::coord

// Rounds that average moments, in the World's commands: rounds have 4 steps.

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "coordinator/core/testing/world.h"

namespace atl::coord {
namespace {

using testing::World;

void BeginAveraging(World& w, int every_steps) {
  w.StartJob({"ps-0"}, {"a", "b"}, absl::StrCat("steps=4 tokens=10000 moments=", every_steps));
}

// Returns whether the newest decided version averages moments.
bool Averages(const World& w) { return w.Job().decisions.back().step.averages_moments; }

TEST_CASE("rounds_average_moments_so_many_steps_apart") {
  const auto [steps, period] = GENERATE(std::pair(8, 2), std::pair(9, 3), std::pair(3, 1));
  World w;
  BeginAveraging(w, steps);
  CHECK(w.Order("a").averaged_version == kNoVersion);
  for (Version version = 1; version <= 6; ++version) {
    CHECK(w.Order("a").moments_version == (version + period - 1) / period * period);
    w.Round({"a", "b"}, 4);
    REQUIRE(w.Order("a").committed_version == version);
    CHECK(Averages(w) == (version % period == 0));
    const Version newest = version / period * period;
    CHECK(w.Order("b").averaged_version == (newest == 0 ? kNoVersion : newest));
  }
}

TEST_CASE("a_round_without_moments_leaves_them_due") {
  World w;
  BeginAveraging(w, 4);
  for (const char* worker : {"a", "b"}) {
    w.DoLines({absl::StrCat("worker ", worker, " leases wanted=4"),
               absl::StrCat("worker ", worker, " pushes without-moments"),
               absl::StrCat("worker ", worker, " stages")});
  }
  w.Do("servers answer");
  CHECK_FALSE(Averages(w));
  CHECK(w.Order("a").moments_version == 1);
  w.Round({"a", "b"}, 4);
  CHECK(Averages(w));
  CHECK(w.Order("a").averaged_version == 2);
}

TEST_CASE("a_restarted_coordinator_knows_the_newest_average") {
  World w;
  BeginAveraging(w, 8);
  w.Round({"a", "b"}, 4);
  w.Round({"a", "b"}, 4);
  w.DoLines({"coordinator restarts", "server ps-0 attaches incarnation=1",
             "worker a attaches incarnation=1", "worker b attaches incarnation=1"});
  CHECK(w.Order("a").averaged_version == 2);
  CHECK(w.Order("a").averaged_steps == 8);
  CHECK(w.Order("a").moments_version == 4);
}

TEST_CASE("an_average_is_as_old_as_the_steps_of_its_rounds_however_long_rounds_are_now") {
  World w;
  BeginAveraging(w, 8);
  w.Round({"a", "b"}, 4);
  for (const char* worker : {"a", "b"}) {
    w.DoLines({absl::StrCat("worker ", worker, " leases wanted=2"),
               absl::StrCat("worker ", worker, " pushes steps=2"),
               absl::StrCat("worker ", worker, " stages")});
  }
  w.Do("servers answer");
  CHECK(w.Order("a").averaged_version == 2);
  CHECK(w.Order("a").averaged_steps == 6);
}

TEST_CASE("a_job_without_averages_has_none_in_orders_and_rounds") {
  World w;
  BeginAveraging(w, 0);
  w.Round({"a", "b"}, 4);
  CHECK(w.Order("a").moments_version == kNoVersion);
  CHECK(w.Order("a").averaged_version == kNoVersion);
  CHECK_FALSE(Averages(w));
}

}  // namespace
}  // namespace atl::coord

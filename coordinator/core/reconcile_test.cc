// How many jobs an event examines.

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "coordinator/core/testing/world.h"

namespace atl::testing {
namespace {

constexpr int kJobs = 12;

// Starts so many jobs, of a worker each; as many have ended.
void StartJobs(World& w) {
  w.Do("server ps-0 attaches");
  for (int i = 0; i < kJobs; ++i) {
    const std::string worker = absl::StrCat("w", 10 + i);
    w.DoLines(
        {"submit min=9 name=ended", absl::StrCat("cancel ended-", 2 * i + 1),
         absl::StrCat("worker ", worker, " attaches"), "submit min=1 max=1 name=lm tokens=100000",
         absl::StrCat("worker ", worker, " prepared"), "servers answer",
         absl::StrCat("worker ", worker, " pushes"), absl::StrCat("worker ", worker, " stages"),
         "servers answer", absl::StrCat("worker ", worker, " ready")});
    REQUIRE(w.Job(absl::StrCat("lm-", 2 * i + 2)).summary.state == JobState::kRunning);
  }
}

TEST_CASE("neither_a_workers_heartbeat_nor_its_deadline_examines_jobs_of_others") {
  World w;
  StartJobs(w);
  w.Do("wait 10");
  int64_t most = 0, steps = 0;
  CoordinatorEvent before = Tick{};
  w.on_event = [&](const CoordinatorEvent& next) {
    const bool of_server = std::holds_alternative<FromServer>(before);
    if (!of_server) most = std::max(most, w.core().JobsExamined());
    steps += of_server ? 0 : 1;
    before = next;
  };
  w.Do("wait 60");
  CHECK(steps > 60 * kJobs / 2);
  CHECK(most <= 1);
}

}  // namespace
}  // namespace atl::testing

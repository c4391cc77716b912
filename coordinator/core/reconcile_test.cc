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

// The most jobs that a Step examines while these lines are done, servers' answers and attaching
// left out.
int64_t MostExamined(World& w, const std::vector<std::string>& lines) {
  int64_t most = 0;
  w.after_event = [&](const CoordinatorEvent& event) {
    const bool loss =
        std::holds_alternative<ConnectionLost>(event) || std::holds_alternative<Tick>(event);
    if (loss) most = std::max(most, w.core().JobsExamined());
  };
  w.DoLines(lines);
  w.after_event = nullptr;
  return most;
}

TEST_CASE("the_loss_of_a_worker_examines_the_jobs_that_it_had_a_part_in") {
  World w;
  StartJobs(w);
  w.Do("wait 10");
  CHECK(MostExamined(w, {"worker w12 dies", "worker w13 goes-silent", "wait 12"}) == 1);
  CHECK(w.Job("lm-6").summary.active_islands == 0);
  CHECK(w.Job("lm-8").summary.active_islands == 0);
}

TEST_CASE("an_idle_worker_takes_the_place_of_one_that_is_lost") {
  World w;
  StartJobs(w);
  w.DoLines({"worker x attaches", "wait 10"});
  CHECK(w.Do("worker w12 dies").find("x: PrepareJob lm-6") != std::string::npos);
}

TEST_CASE("the_loss_of_a_server_examines_the_jobs_that_have_shards_on_it") {
  CoordinatorOptions options;
  options.rebalance_after = std::chrono::hours(1);
  World w(options);
  StartJobs(w);
  w.DoLines({"server ps-1 attaches", "worker x attaches",
             "submit min=1 max=1 servers=2 name=lm tokens=100000", "worker x prepared",
             "servers answer", "wait 10"});
  const auto has_part = [](const JobView& job) {
    return std::any_of(job.shards.begin(), job.shards.end(),
                       [](const ShardPlacement& shard) { return shard.server == "ps-1"; });
  };
  REQUIRE(has_part(w.Job(absl::StrCat("lm-", 2 * kJobs + 1))));
  CHECK(MostExamined(w, {"server ps-1 dies"}) == 1);
  CHECK(w.Job(absl::StrCat("lm-", 2 * kJobs + 1)).summary.waiting_for.find("ps-1") !=
        std::string::npos);
}

}  // namespace
}  // namespace atl::testing

// Jobs whose sites hold different data, and named validation sets, in the World's commands.

#include <catch2/catch.hpp>
#include <set>

#include "coordinator/core/testing/world.h"

namespace atl::testing {
namespace {

constexpr int64_t kRome = kAxisPositions;  // of sites=oslo,rome

// a and b at oslo, c at rome; version 0 is there and every island is ready.
void StartAtTwoSites(World& w, const std::string& submit = "") {
  w.DoLines({"server ps-0 attaches", "worker a attaches site=oslo", "worker b attaches site=oslo",
             "worker c attaches site=rome", "submit min=3 sites=oslo,rome " + submit,
             "worker a prepared digest=1", "worker b prepared digest=1",
             "worker c prepared digest=2 sequences=30", "servers answer", "worker a pushes",
             "worker a stages", "servers answer"});
  for (const char* name : {"a", "b", "c"}) w.Do(std::string("worker ") + name + " ready");
  REQUIRE(w.Job().summary.state == JobState::kRunning);
}

const ValidationLoss* FindValidationSet(const World& w, const std::string& name) {
  static std::vector<ValidationLoss> sets;
  sets = w.Job().summary.validation_sets;
  for (const ValidationLoss& set : sets) {
    if (set.name == name) return &set;
  }
  return nullptr;
}

TEST_CASE("a_worker_gets_the_paths_of_its_site_alone") {
  World w;
  StartAtTwoSites(w);
  CHECK(w.Order("a").spec.data.path == "text-oslo");
  CHECK(w.Order("b").spec.data.path == "text-oslo");
  CHECK(w.Order("c").spec.data.path == "text-rome");
  CHECK(w.Order("c").spec.data.sites.empty());
  CHECK(w.Job().spec.data.sites.size() == 2);
}

TEST_CASE("a_lease_gives_ranges_of_the_islands_site_alone_and_sites_share_the_budget") {
  World w;
  StartAtTwoSites(w, "tokens=120");
  w.DoLines({"worker a leases wanted=3", "worker c leases wanted=4", "worker b leases wanted=2"});
  CHECK(w.Leases("a") == std::vector<PositionRange>{{0, 3}});
  CHECK(w.Leases("b") == std::vector<PositionRange>{{3, 5}});
  CHECK(w.Leases("c") == std::vector<PositionRange>{{kRome, kRome + 4}});
  CHECK(w.Job().ledger.free == 3);
  w.Do("worker c leases wanted=9 request=2");
  CHECK(w.Leases("c").back() == PositionRange{kRome + 4, kRome + 7});
  CHECK(w.Job().ledger.free == 0);
}

TEST_CASE("ranges_outlive_the_coordinator_and_come_back_to_all_sites_when_their_island_is_lost") {
  World w;
  StartAtTwoSites(w, "tokens=120");
  w.DoLines({"worker c leases wanted=8", "coordinator restarts"});
  CHECK(w.Job().ledger.leased == 8);
  w.DoLines({"worker a attaches site=oslo", "worker b attaches site=oslo",
             "worker c attaches site=rome", "server ps-0 attaches", "servers answer"});
  CHECK(w.Job().ledger.leased == 0);  // each is a new process
  for (const char* name : {"a", "b", "c"}) {
    w.Do(std::string("worker ") + name + " prepared digest=" + (name[0] == 'c' ? "2" : "1") +
         " sequences=" + (name[0] == 'c' ? "30" : "1000"));
  }
  for (const char* name : {"a", "b", "c"}) w.Do(std::string("worker ") + name + " ready");
  w.Do("worker b leases wanted=12");
  CHECK(w.Leases("b") == std::vector<PositionRange>{{0, 12}});
  CHECK(w.Job().ledger.free == 0);
}

TEST_CASE("what_another_sites_island_trained_on_cannot_be_pushed") {
  World w;
  StartAtTwoSites(w);
  w.DoLines({"worker c leases wanted=4", "worker a leases wanted=4"});
  w.Do("worker a pushes consumed=" + std::to_string(kRome) + "-" + std::to_string(kRome + 4));
  CHECK(w.Job().ledger.pushed == 0);
  CHECK(w.Island(2).leased_sequences == 4);
}

TEST_CASE("a_worker_without_data_of_its_own_is_refused_and_says_which_sites_have") {
  World w;
  StartAtTwoSites(w);
  std::string output = w.Do("worker d attaches site=bern");
  output += w.Do("worker e attaches");
  CHECK(output.find("worker d cannot run the job") != std::string::npos);
  CHECK(output.find("worker e cannot run the job") != std::string::npos);
  CHECK(w.Job().islands.size() == 3);
}

TEST_CASE("workers_of_one_site_must_find_the_same_data") {
  World w;
  StartAtTwoSites(w);
  w.DoLines({"worker d attaches site=rome", "worker d prepared digest=2 sequences=30"});
  CHECK(w.Job().islands.size() == 4);
  w.Do("worker e attaches site=rome");
  const std::string other = w.Do("worker e prepared digest=1 sequences=30");
  CHECK(other.find("worker e cannot run the job") != std::string::npos);
  CHECK(w.Job().islands.size() == 4);
}

TEST_CASE("an_island_of_each_site_validates_and_the_loss_is_their_mean_by_tokens") {
  World w;
  StartAtTwoSites(w, "validate=1");
  const std::string oslos = w.Order("a").validate_version == 0 ? "a" : "b";
  REQUIRE(w.Order("a").validate_version + w.Order("b").validate_version == kNoVersion);
  REQUIRE(w.Order("c").validate_version == 0);
  w.Do("worker " + oslos + " validates loss=4 tokens=300");
  CHECK(w.Job().summary.validation_loss == 4);
  REQUIRE(w.Order("c").validate_version == 0);
  w.Do("worker c validates loss=2 tokens=100");
  CHECK(w.Job().summary.validation_loss == 3.5);
  CHECK(w.Job().summary.first_validation_loss == 3.5);
  CHECK(w.Order("c").validate_version == kNoVersion);
  REQUIRE(FindValidationSet(w, "oslo") != nullptr);
  CHECK(FindValidationSet(w, "oslo")->loss == 4);
  CHECK(FindValidationSet(w, "rome")->loss == 2);
  w.Do("worker c validates version=0 loss=7 tokens=100");  // said already
  CHECK(FindValidationSet(w, "rome")->loss == 2);
}

TEST_CASE("a_named_validation_set_is_kept_and_a_name_that_the_job_has_not_is_left_out") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "validate=1 set=held");
  w.Do("worker a validates loss=5 set=held set-loss=6");
  REQUIRE(FindValidationSet(w, "held") != nullptr);
  CHECK(FindValidationSet(w, "held")->loss == 6);
  CHECK(FindValidationSet(w, "held")->version == 0);
  CHECK(w.Job().summary.validation_loss == 5);
  w.Round({"a"}, 4);
  REQUIRE(w.Order("a").validate_version == 1);
  w.Do("worker a validates loss=4 set=other set-loss=1");
  CHECK(FindValidationSet(w, "other") == nullptr);
  CHECK(FindValidationSet(w, "held")->version == 0);
}

std::set<NodeId> ListIslandWorkers(const World& w, const JobId& job) {
  std::set<NodeId> workers;
  for (const IslandView& island : w.Job(job).islands) {
    for (const IslandWorkerView& m : island.workers) workers.insert(m.worker);
  }
  return workers;
}

TEST_CASE("workers_that_the_layout_leaves_out_have_no_assignment_now_or_later_and_run_other_jobs") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches site=oslo", "worker b attaches site=rome",
             "worker c attaches site=oslo", "worker d attaches",
             "worker e attaches site=oslo devices=2",
             "submit name=one island=all exclude=c,e/1,e/0 pinned=oslo", "worker a prepared",
             "servers answer"});
  CHECK(ListIslandWorkers(w, "one-1") == std::set<NodeId>{"a"});
  w.DoLines({"worker f attaches site=bern", "worker g attaches site=oslo", "worker g prepared"});
  CHECK(ListIslandWorkers(w, "one-1") == std::set<NodeId>{"a", "g"});
  w.DoLines({"submit name=two min=2 pinned=rome"});
  // It waits for a second worker at rome, and later jobs do not wait for it.
  CHECK(w.Job("two-2").summary.state == JobState::kQueued);
  CHECK_THAT(w.Job("two-2").summary.waiting_for, Catch::Contains("1 idle") &&
                                                     Catch::Contains("left out: ") &&
                                                     Catch::Contains("f: it is at site bern"));
  w.DoLines({"submit name=three"});
  CHECK(w.Job("three-3").summary.state == JobState::kPreparing);
}

}  // namespace
}  // namespace atl::testing

// Parameter servers of a site under the job's (site_jobs.h), in the World's commands: sequences are
// of 10 tokens, norms are 1.

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "coordinator/core/testing/world.h"

namespace atl::testing {
namespace {

// Worker a and b at east, where se-0 is for the site alone, c at west; version 0 of the job above
// is there, and the site's servers have it.
struct Sites {
  World w;
  JobId site;

  explicit Sites(const std::string& submit = "tokens=400 site-rounds=2") {
    w.DoLines({"server ps-0 attaches", "server se-0 attaches site=east site-only",
               "worker a attaches site=east", "worker b attaches site=east",
               "worker c attaches site=west", "submit min=3 " + submit, "worker a prepared",
               "worker b prepared", "worker c prepared", "servers answer", "worker a pushes",
               "worker a stages", "servers answer", "worker c ready", "worker a prepared",
               "worker b prepared", "servers answer", "worker a ready", "worker b ready"});
    site = Above().site_job;
  }

  JobView Site() { return w.Job(site); }
  SiteExchangeView Exchange() { return *Site().exchange; }
  IslandView Above() {
    const JobView job = w.Job();
    for (const IslandView& island : job.islands) {
      if (island.site == "east") return island;
    }
    return {};
  }
  bool HasSite() { return w.core().Job(w.now(), site).has_value(); }

  // A round of the site: a and b push what they have trained on.
  void Round(int64_t sequences = 2) { w.Round({"a", "b"}, sequences); }
};

TEST_CASE("a_site_with_servers_of_its_own_trains_as_a_job_below") {
  Sites s;
  CHECK(s.Site().summary.state == JobState::kRunning);
  CHECK(s.Site().summary.version == 0);
  CHECK(s.Exchange().base_version == 0);
  CHECK(s.Site().shards[0].server == "se-0");
  CHECK(s.w.Job().shards[0].server == "ps-0");
  CHECK(s.w.Order("a").job == s.site);
  CHECK(s.w.Order("c").job == "lm-1");
  CHECK(s.Above().site_job == s.site);
  CHECK(s.Above().ready);
  // One scale of learning rates for all: islands of workers, wherever they push to.
  CHECK(s.w.Order("a").active_islands == 3);
  CHECK(s.w.Order("c").active_islands == 3);
  CHECK(s.w.Order("a").island != s.w.Order("c").island);
}

TEST_CASE("the_job_above_places_nothing_on_a_sites_own_servers") {
  World w;
  w.DoLines({"server se-0 attaches site=east site-only", "worker a attaches site=east",
             "submit site-rounds=2", "worker a prepared"});
  CHECK(w.Job().shards.empty());
  w.DoLines({"server ps-0 attaches", "worker a prepared", "servers answer"});
  REQUIRE(!w.Job().shards.empty());
  const JobView job = w.Job();
  for (const ShardPlacement& shard : job.shards) CHECK(shard.server == "ps-0");
}

TEST_CASE("a_job_without_site_rounds_leaves_a_sites_servers_alone") {
  Sites s("tokens=400");
  CHECK(!s.HasSite());
  CHECK(s.w.Order("a").job == "lm-1");
}

TEST_CASE("a_site_that_takes_no_part_in_a_job_has_no_job_of_its_own") {
  World w;
  w.DoLines({"server ps-0 attaches", "server se-0 attaches site=east site-only",
             "worker a attaches site=east", "worker c attaches site=west",
             "submit min=1 tokens=400 site-rounds=2 pinned=west", "worker c prepared",
             "servers answer", "worker c pushes", "worker c stages", "servers answer"});
  REQUIRE(w.Job().summary.state == JobState::kRunning);
  CHECK(w.core().Jobs().jobs.size() == 1);
  CHECK(w.Order("a").job.empty());
}

TEST_CASE("a_site_whose_servers_have_too_little_room_says_so_once_and_trains_in_the_job_above") {
  World w;
  w.DoLines({"server ps-0 attaches", "server se-0 attaches site=east site-only memory=100",
             "worker a attaches site=east", "submit min=1 tokens=400 site-rounds=2",
             "worker a prepared", "servers answer", "worker a pushes", "worker a stages"});
  const std::string text = "site east has no job of its own";
  CHECK(w.Do("servers answer").find(text) != std::string::npos);
  CHECK(w.Do("wait 30").find(text) == std::string::npos);
  CHECK(w.Order("a").job == "lm-1");
}

TEST_CASE("after_its_rounds_a_site_contributes_what_they_have_changed") {
  Sites s;
  s.Round();
  CHECK(s.Site().summary.version == 1);
  CHECK(!s.Exchange().contributing);
  CHECK(s.w.Job().ledger.committed == 0);
  s.Round();
  // The second round is contributed; c has pushed nothing, so that the job above waits for it.
  REQUIRE(s.Exchange().contributing);
  CHECK(s.Exchange().contributed_at == 2);
  const auto pending = s.w.Job().round.contributions;
  REQUIRE(pending.size() == 1);
  CHECK(pending[0].tokens == 80);
  CHECK(s.w.Stored<ContributionRecord>().at(0).train_loss == 2);
  CHECK(pending[0].shards_staged == pending[0].shards);
  CHECK(s.w.Job().ledger.pushed == 8);
}

TEST_CASE("a_site_adopts_the_version_that_its_contribution_is_in") {
  Sites s;
  s.Round();
  s.Round();
  s.w.Round({"c"}, 4);
  CHECK(s.w.Job().summary.version == 1);
  CHECK(s.w.Job().summary.tokens_committed == 120);
  CHECK(s.Exchange().base_version == 1);
  CHECK(s.Exchange().based_at == 3);
  CHECK(!s.Exchange().contributing);
  CHECK(s.Site().summary.version == 3);
  CHECK(s.Site().summary.tokens_committed == 120);
  CHECK(s.Above().rounds_accepted == 1);
  // The site's own rounds go on from there.
  s.Round();
  CHECK(s.Site().summary.version == 4);
}

TEST_CASE("a_sites_rounds_go_on_during_an_exchange_up_to_three_times_as_many") {
  Sites s("tokens=4000 site-rounds=2 wait-for-all");
  for (int round = 0; round < 2; ++round) s.Round();
  REQUIRE(s.Exchange().contributing);
  for (int round = 0; round < 8; ++round) s.Round();
  CHECK(s.Site().summary.version == 2 + 6);
  CHECK(s.Site().round.phase == "window open");
  s.w.Round({"c"}, 4);
  CHECK(s.Exchange().base_version == 1);
  CHECK(s.Site().summary.version > 9);
}

TEST_CASE("a_job_ends_when_its_sites_have_contributed_everything") {
  Sites s("tokens=400 site-rounds=3");
  s.Round(10);  // 20 of 40 sequences
  s.w.Round({"c"}, 20);
  s.w.DoLines({"worker a leases wanted=1", "worker b leases wanted=1", "servers answer"});
  CHECK(s.w.Job().ledger.committed == 40);
  CHECK(s.w.Job().summary.state == JobState::kFinishing);
  CHECK(s.Exchange().base_version == s.w.Job().summary.version);
  const Version last = s.w.Job().summary.version;
  for (const char* name : {"a", "b", "c"}) {
    s.w.Do(std::string("worker ") + name + " ready");
    if (s.w.Order(name).validate_version != kNoVersion) {
      s.w.Do(std::string("worker ") + name + " validates loss=1.5");
    }
  }
  CHECK(s.w.Job().summary.validated_version == last);
  s.w.DoLines({"servers snapshot", "servers answer"});
  CHECK(s.w.Job().summary.state == JobState::kDone);
  CHECK(!s.HasSite());
}

TEST_CASE("after_the_last_validation_a_site_adopts_nothing") {
  Sites s("tokens=400 site-rounds=1 grace=0");
  s.Round(10);
  const Version base = s.Exchange().base_version;
  REQUIRE(base > 0);
  s.w.Do("server se-0 goes-silent");
  s.w.Contribute("c", 20);
  s.w.DoLines({"servers answer", "worker c ready"});
  REQUIRE(s.w.Job().summary.state == JobState::kFinishing);
  REQUIRE(s.w.Order("c").validate_version == base + 1);
  const Version before = s.Site().summary.version;
  s.w.DoLines({"worker c validates loss=1.5", "server se-0 attaches", "servers answer"});
  REQUIRE(s.w.Job().summary.state == JobState::kFinishing);
  CHECK(s.Exchange().base_version == base);
  CHECK(s.Site().summary.version == before);
}

TEST_CASE("sites_alone_train_and_evaluate_for_the_job_above") {
  World w;
  w.DoLines({"server ps-0 attaches", "server se-0 attaches site=east site-only",
             "worker a attaches site=east", "submit min=1 tokens=80 site-rounds=1 grace=0",
             "worker a prepared", "servers answer", "worker a pushes", "worker a stages",
             "servers answer", "worker a prepared", "servers answer", "worker a ready"});
  const JobId site = w.Order("a").job;
  REQUIRE(site != "lm-1");
  CHECK(w.Order("a").validate_version == 0);
  w.Do("worker a validates loss=5");
  CHECK(w.Job().summary.first_validation_loss == 5);
  w.Round({"a"}, 8);
  CHECK(w.Job().summary.version == 1);
  CHECK(w.Job().summary.state == JobState::kFinishing);
  w.Do("worker a ready");
  CHECK(w.Order("a").validate_version == w.Job(site).summary.version);
  w.DoLines({"worker a validates loss=4", "servers snapshot", "servers answer"});
  CHECK(w.Job().summary.validation_loss == 4);
  CHECK(w.Job().summary.validated_version == 1);
  CHECK(w.Job().summary.state == JobState::kDone);
}

TEST_CASE("an_evaluation_that_ends_after_the_next_adoption_counts_for_the_version_before_it") {
  World w;
  w.DoLines({"server ps-0 attaches", "server se-0 attaches site=east site-only",
             "worker a attaches site=east", "submit min=1 tokens=400 site-rounds=1",
             "worker a prepared", "servers answer", "worker a pushes", "worker a stages",
             "servers answer", "worker a prepared", "servers answer", "worker a ready"});
  REQUIRE(w.Order("a").validate_version == 0);
  w.Round({"a"}, 4);
  REQUIRE(w.Job(w.Order("a").job).exchange->base_version == 1);
  w.Do("worker a validates loss=5 version=0");
  CHECK(w.Job().summary.first_validation_loss == 5);
  CHECK(w.Job().summary.validated_version == 0);
}

TEST_CASE("a_sites_server_that_restarts_with_its_folder_goes_on") {
  Sites s;
  s.Round();
  s.w.DoLines({"server se-0 dies", "server se-0 attaches site=east site-only", "servers answer"});
  CHECK(s.Site().summary.state == JobState::kRunning);
  s.Round();
  CHECK(s.Exchange().contributing);
}

TEST_CASE("a_site_that_loses_a_server_ends_its_job_and_its_workers_join_the_job_above") {
  Sites s;
  s.Round();
  CHECK(s.Above().leased_sequences == 4);
  s.w.DoLines({"server se-0 dies", "wait 20"});
  CHECK(!s.HasSite());
  CHECK(s.Above().incarnation == 0);
  CHECK(s.Above().leased_sequences == 0);
  CHECK(s.w.Job().ledger.leased == 0);
  CHECK(s.w.Job().ledger.free == 40);
  s.w.DoLines({"worker a prepared", "worker b prepared"});
  CHECK(s.w.Order("a").job == "lm-1");
  CHECK(s.w.Order("b").job == "lm-1");
  CHECK(s.w.Order("a").active_islands == 3);
}

TEST_CASE("a_server_that_comes_back_empty_begins_another_job_of_the_site") {
  Sites s;
  s.Round();
  s.w.DoLines({"server se-0 dies", "server se-0 attaches site=east site-only empty",
               "servers answer", "wait 12", "worker a prepared", "worker b prepared",
               "servers answer"});
  CHECK(!s.HasSite());
  CHECK(s.Above().incarnation != 0);
  CHECK(!s.Above().site_job.empty());
  CHECK(s.Above().site_job != s.site);
  CHECK(s.w.Order("a").job == s.Above().site_job);
}

TEST_CASE("a_complete_contribution_of_a_lost_site_counts") {
  Sites s;
  s.Round();
  s.Round();
  REQUIRE(s.w.Job().ledger.pushed == 8);
  s.w.DoLines({"server se-0 dies", "wait 20"});
  REQUIRE(!s.HasSite());
  s.w.Round({"c"}, 4);
  CHECK(s.w.Job().ledger.committed == 12);
}

TEST_CASE("an_incomplete_contribution_of_a_lost_site_is_dropped") {
  Sites s;
  s.Round();
  s.w.Contribute("a", 2);
  s.w.Contribute("b", 2);
  s.w.DoLines({"servers answer once", "server se-0 dies"});  // its round is decided, not applied
  REQUIRE(s.w.Job().ledger.pushed == 8);
  s.w.Do("wait 20");
  REQUIRE(!s.HasSite());
  CHECK(s.w.Job().ledger.pushed == 0);
  CHECK(s.w.Job().ledger.free == 40);
}

TEST_CASE("a_coordinator_that_restarts_goes_on_with_its_sites") {
  Sites s;
  s.Round();
  const auto restart = [&] {
    s.w.DoLines({"coordinator restarts", "server ps-0 attaches incarnation=1",
                 "server se-0 attaches incarnation=1 site=east site-only",
                 "worker a attaches incarnation=1 site=east",
                 "worker b attaches incarnation=1 site=east",
                 "worker c attaches incarnation=1 site=west", "servers answer", "worker a ready",
                 "worker b ready", "worker c ready"});
  };
  restart();
  CHECK(s.Site().summary.version == 1);
  CHECK(s.Above().leased_sequences == 4);
  s.Round();
  REQUIRE(s.Exchange().contributing);
  restart();
  s.w.Contribute("c", 4);
  s.w.DoLines({"servers answer", "wait 2", "servers answer"});
  CHECK(s.w.Job().ledger.committed == 12);
  CHECK(s.Exchange().base_version == 1);
}

TEST_CASE("a_removed_job_takes_along_what_its_sites_servers_alone_know") {
  Sites s;
  const std::string attaches = "server se-0 attaches incarnation=1 site=east site-only";
  const bool before = GENERATE(true, false);
  s.w.DoLines({"coordinator is-lost", "server ps-0 attaches incarnation=1", "servers answer"});
  std::string output;
  if (before) s.w.DoLines({attaches, "servers answer"});
  output += s.w.Do("remove lm-1");
  if (!before) {
    s.w.Do(attaches);
    output += s.w.Do("servers answer");
  }
  CHECK(output.find("-> se-0: RemoveJob " + s.site) != std::string::npos);
}

TEST_CASE("a_site_follows_a_pause_and_an_end_of_the_job_above") {
  Sites s;
  s.w.Do("pause lm-1");
  CHECK(s.w.Order("a").run == RunState::kPause);
  s.w.Do("resume lm-1");
  CHECK(s.w.Order("a").run == RunState::kRun);
  s.w.Do("cancel " + s.site);
  CHECK(s.w.reply().code() == absl::StatusCode::kFailedPrecondition);
  s.w.DoLines({"cancel lm-1", "servers answer"});
  CHECK(!s.HasSite());
  CHECK(s.w.Order("a").job.empty());
}

}  // namespace
}  // namespace atl::testing

// Settings that a user changes while a job runs, in the World's commands.

#include <catch2/catch.hpp>
#include <functional>

#include "coordinator/core/testing/world.h"

namespace atl::testing {
namespace {

// A job of 40 sequences of 10 tokens on two workers, four sequences of it committed.
class Changing {
 public:
  explicit Changing(const std::string& submit = "tokens=400") {
    world_.StartJob({"ps-0", "ps-1"}, {"a", "b"}, submit);
    world_.Round({"a", "b"}, 2);
    for (const std::string worker : {"a", "b"}) world_.Do("worker " + worker + " ready");
  }

  absl::Status Change(const std::function<void(JobSpec&)>& edit, const JobId& job = "lm-1") {
    JobSpec spec = world_.Job().spec;
    edit(spec);
    world_.HandleEvent(ChangeSettings{1, job, spec, "changes"});
    return world_.reply();
  }
  absl::Status ChangeTokens(int64_t tokens) {
    return Change([&](JobSpec& spec) { spec.schedule.train_tokens = tokens; });
  }

  World& world() { return world_; }

 private:
  World world_;
};

TEST_CASE("changed_settings_reach_islands_and_servers_and_survive_a_restart") {
  Changing c;
  World& w = c.world();
  const auto rate = [](JobSpec& spec) { spec.inner.learning_rate = 3e-4; };
  REQUIRE(c.Change(rate).ok());
  CHECK(w.Order("a").spec.inner.learning_rate == 3e-4);
  CHECK(w.Order("b").spec.inner.learning_rate == 3e-4);
  w.Do("coordinator restarts");
  CHECK(w.Job().spec.inner.learning_rate == 3e-4);
  const int64_t sequence = w.Order("a").sequence;
  w.DoLines({"server ps-0 attaches incarnation=1", "server ps-1 attaches incarnation=1",
             "worker a attaches incarnation=1", "worker b attaches incarnation=1",
             "servers answer"});
  CHECK(w.Order("a").sequence > sequence);
  CHECK(w.Order("a").spec.inner.learning_rate == 3e-4);
}

TEST_CASE("a_round_goes_on_over_a_change") {
  Changing c;
  World& w = c.world();
  REQUIRE(w.Job().summary.version == 1);
  w.Contribute("a", 2);
  REQUIRE(c.Change([](JobSpec& spec) { spec.outer.grace_seconds = 5; }).ok());
  w.Round({"b"}, 2);
  CHECK(w.Job().summary.version == 2);
  CHECK(w.Job().summary.tokens_committed == 80);
}

TEST_CASE("more_tokens_let_an_island_go_on_that_had_none_left") {
  Changing c("tokens=80");
  World& w = c.world();
  w.Do("worker a leases wanted=4 request=5");
  REQUIRE(w.Job().ledger.leased == 4);
  REQUIRE(w.Do("worker b leases wanted=4 request=5").find("exhausted") != std::string::npos);
  REQUIRE(c.ChangeTokens(120).ok());
  CHECK(w.Job().ledger.budget == 12);
  CHECK(w.Do("worker b leases wanted=4 request=6").find("LeaseGrant 6: 8-12") != std::string::npos);
}

TEST_CASE("fewer_tokens_than_are_handed_out_are_refused") {
  Changing c;
  World& w = c.world();
  w.Do("worker a leases wanted=4 request=5");
  CHECK(c.ChangeTokens(70).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(w.Job().spec.schedule.train_tokens == 400);
  CHECK(c.ChangeTokens(80).ok());
  CHECK(w.Job().ledger.budget == 8);
}

TEST_CASE("a_job_does_not_end_by_fewer_tokens_without_its_last_validation") {
  Changing c;
  REQUIRE(c.world().Job().ledger.leased == 0);
  CHECK(c.ChangeTokens(40).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(c.ChangeTokens(50).ok());
}

TEST_CASE("steps_and_grace_of_the_round_under_way_change") {
  Changing c("tokens=400 steps=8 grace=1000");
  World& w = c.world();
  w.Contribute("a", 2);
  REQUIRE(c.Change([](JobSpec& spec) {
             spec.outer.steps_per_round = 2;
             spec.outer.grace_seconds = 1;
           }).ok());
  CHECK(w.Order("b").steps_this_round == 2);
  w.DoLines({"wait 2", "servers answer"});
  CHECK(w.Job().summary.version == 2);  // without b
}

TEST_CASE("a_push_trained_at_the_rate_before_is_no_outlier") {
  Changing c("tokens=4000");
  World& w = c.world();
  const auto pushes = [&] {
    w.Round({"a", "b"}, 2);
    for (const std::string worker : {"a", "b"}) w.Do("worker " + worker + " ready");
  };
  for (int round = 0; round < 15; ++round) pushes();  // the penalty has warmed up
  w.Do("worker a leases wanted=2 request=99");
  REQUIRE(c.Change([](JobSpec& spec) { spec.inner.learning_rate *= 0.01; }).ok());
  const Version before = w.Job().summary.version;
  w.DoLines({"worker a pushes", "worker a stages"});
  w.Round({"b"}, 2);
  CHECK(w.Job().summary.version == before + 1);
  CHECK(w.Island(0).rounds_rejected == 0);
  CHECK(w.Island(1).rounds_rejected == 0);
}

TEST_CASE("servers_know_a_later_end_than_a_store_that_is_restored") {
  Changing c("tokens=80");
  World& w = c.world();
  w.Do("coordinator is-backed-up");
  REQUIRE(c.ChangeTokens(400).ok());
  for (int round = 0; round < 3; ++round) {
    w.Do("servers answer");
    w.Round({"a", "b"}, 2);
    for (const std::string worker : {"a", "b"}) w.Do("worker " + worker + " ready");
  }
  REQUIRE(w.Job().ledger.committed == 16);
  w.Do("coordinator is-restored");
  w.DoLines({"server ps-0 attaches incarnation=1", "server ps-1 attaches incarnation=1",
             "worker a attaches incarnation=1", "worker b attaches incarnation=1",
             "servers answer"});
  CHECK(w.Job().spec.schedule.train_tokens == 400);
  CHECK(w.Job().ledger.budget == 40);
  CHECK(w.Job().ledger.committed == 16);
}

TEST_CASE("a_standby_that_missed_a_change_stays_one_when_the_job_is_rebuilt") {
  Changing c("tokens=400 servers=2 copies=2");
  World& w = c.world();
  w.Do("coordinator is-backed-up");
  const NodeId away = GENERATE("ps-0", "ps-1");
  w.Do("server " + away + " dies");
  REQUIRE(c.ChangeTokens(800).ok());
  w.DoLines({"servers answer", "coordinator is-restored", "server ps-0 attaches",
             "server ps-1 attaches", "worker a attaches incarnation=1",
             "worker b attaches incarnation=1", "servers answer"});
  CHECK(w.Job().spec.schedule.train_tokens == 800);
  CHECK(w.Job().summary.waiting_for.find("rebuilt") == std::string::npos);
  for (const ShardPlacement& copy : w.Job().copies) {
    INFO(copy.shard);
    CHECK_FALSE(copy.server.empty());
  }
}

TEST_CASE("a_chosen_number_of_steps_stays_chosen") {
  Changing c("tokens=400 steps=4");
  CHECK(c.Change([](JobSpec& spec) { spec.outer.steps_per_round = 8; }).ok());
  CHECK(c.Change([](JobSpec& spec) { spec.outer.steps_per_round = 0; }).code() ==
        absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("settings_of_an_ended_or_unknown_job_are_refused") {
  Changing c;
  CHECK(c.Change([](JobSpec&) {}, "lm-2").code() == absl::StatusCode::kNotFound);
  c.world().Do("cancel lm-1");
  CHECK(c.ChangeTokens(800).code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("settings_that_are_the_same_change_nothing") {
  Changing c;
  const int64_t sequence = c.world().Order("a").sequence;
  CHECK(c.Change([](JobSpec&) {}).ok());
  CHECK(c.world().Order("a").sequence == sequence);
}

}  // namespace
}  // namespace atl::testing

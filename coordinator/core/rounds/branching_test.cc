// Jobs that begin with another job's parameters, in the World's commands: 4 steps of 10 tokens.

#include <catch2/catch.hpp>

#include "coordinator/core/testing/world.h"

namespace atl::coord {
namespace {

using testing::World;

// lm-1 has version 1.
void Begin(World& w) {
  w.StartJob({"ps-0"}, {"a"}, "tokens=2000");
  w.Contribute("a", 4);
  w.Do("servers answer");
  REQUIRE(w.Job().summary.version == 1);
}

TEST_CASE("a job begins with the newest parameters of another one, and says which they were") {
  World w;
  Begin(w);
  w.DoLines({"cancel lm-1", "submit min=1 name=next from=lm-1 tokens=400", "worker a prepared",
             "servers answer"});
  const JobView next = w.Job("next-2");
  CHECK(next.summary.state == JobState::kRunning);
  CHECK(next.summary.version == 0);
  CHECK(next.summary.tokens_committed == 0);
  CHECK(next.spec.model.initial_job == "lm-1@1");
  CHECK_FALSE(w.Order("a").initialize);
  CHECK(w.Order("a").job == "next-2");
  CHECK(w.Order("a").committed_version == 0);
  CHECK(w.Order("a").spec.model.initial_job == "lm-1@1");
  w.Do("worker a ready");
  w.Contribute("a", 4);
  w.Do("servers answer");
  CHECK(w.Job("next-2").summary.version == 1);
}

TEST_CASE("a version that servers do not keep is refused by name") {
  World w;
  Begin(w);
  w.Do("submit name=next from=lm-1@0");
  CHECK(w.reply().code() == absl::StatusCode::kFailedPrecondition);
  w.Do("submit name=next from=lm-1@1");  // lm-1 trains on
  CHECK(w.reply().code() == absl::StatusCode::kFailedPrecondition);
  w.Do("submit name=next from=other-1");
  CHECK(w.reply().code() == absl::StatusCode::kNotFound);
  w.DoLines({"pause lm-1", "submit name=next from=lm-1@1"});
  CHECK(w.reply().ok());
  w.Do("submit name=next from=lm-1@x");
  CHECK(w.reply().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a_branch_beside_another_base_is_refused") {
  World w;
  Begin(w);
  w.DoLines({"pause lm-1", "submit name=next from=lm-1 nf4"});
  CHECK(w.reply().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a branch of a job that was removed before it has its parameters has failed") {
  World w;
  Begin(w);
  w.DoLines({"cancel lm-1", "submit min=1 name=next from=lm-1 tokens=400", "remove lm-1",
             "worker a prepared", "servers answer"});
  CHECK(w.Job("next-2").summary.state == JobState::kFailed);
}

TEST_CASE("a branch of a job with another model has failed") {
  World w;
  Begin(w);
  w.DoLines({"cancel lm-1", "submit min=1 name=next from=lm-1 tokens=400",
             "worker a prepared heads=4", "servers answer"});
  CHECK(w.Job("next-2").summary.state == JobState::kFailed);
}

TEST_CASE("a branch that cannot fetch a version before the next one is there has failed") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "max=1 tokens=20000");
  w.DoLines({"worker b attaches", "submit min=1 name=next from=lm-1 tokens=400",
             "server ps-0 fetches-nothing", "worker b prepared", "servers answer"});
  for (int i = 0; i < 8; ++i) {
    CHECK(w.Job("next-2").summary.state == (i < 3 ? JobState::kInitializing : JobState::kFailed));
    w.Contribute("a", 4);
    w.DoLines({"servers answer", "wait 5", "servers answer"});
  }
}

TEST_CASE("a branch waits until all servers of a job with quantised pulls have ended it") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "max=1 tokens=40 quantised-pulls");
  w.Do("worker b attaches");
  w.Contribute("a", 4);
  w.DoLines({"servers answer", "worker a validates loss=2",
             "submit min=1 name=next from=lm-1 tokens=400", "worker b prepared", "servers answer"});
  CHECK(w.Job("next-2").summary.version == kNoVersion);  // no heartbeat has said so
  w.DoLines({"wait 5", "servers answer", "wait 5", "servers answer"});
  CHECK(w.Job("next-2").summary.version == 0);
}

TEST_CASE("a branch that is cancelled as it begins names the version that it has") {
  World w;
  Begin(w);
  w.DoLines({"cancel lm-1", "submit min=1 name=next from=lm-1 tokens=400", "worker a prepared"});
  for (int i = 0; i < 9 && w.Job("next-2").decisions.empty(); ++i) w.Do("servers answer once");
  REQUIRE(w.Job("next-2").summary.version == kNoVersion);
  w.DoLines({"cancel next-2", "servers answer"});
  CHECK(w.Job("next-2").summary.version == 0);
  CHECK(w.Job("next-2").spec.model.initial_job == "lm-1@1");
}

TEST_CASE("a coordinator that restarts goes on with a branch") {
  World w;
  Begin(w);
  w.DoLines({"cancel lm-1", "submit min=1 name=next from=lm-1 tokens=400", "worker a prepared",
             "coordinator restarts", "server ps-0 attaches", "worker a attaches",
             "worker a prepared", "servers answer"});
  w.DoLines({"wait 4", "servers answer"});
  CHECK(w.Job("next-2").summary.version == 0);
  CHECK(w.Job("next-2").spec.model.initial_job == "lm-1@1");
}

}  // namespace
}  // namespace atl::coord

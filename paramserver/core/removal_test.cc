// A job that a user removes.

#include <catch2/catch.hpp>

#include "paramserver/core/server_story.h"

namespace atl::ps {
namespace {

TEST_CASE("a removed job is gone from memory at once, and told to be gone when the disk is") {
  ServerStory story;
  const ContributionId initial = story.By(0, kNoVersion);
  story.Assign();
  story.PushAll(initial, 1);
  story.Sync();
  story.Commit(0, {{initial, 1.0}});
  story.Sync();
  const Token waiting = story.Push(story.Id(0, 0, 0), {1, 2, 3, 4});
  story.told.clear();
  for (int again = 0; again < 2; ++again) story.Says(RemoveJob{kJob});
  REQUIRE(story.asked_erasures == std::vector<JobId>{kJob});
  REQUIRE(story.Answered(waiting, PushStatus::kRefused));
  REQUIRE(story.Told<JobRemoved>().empty());
  const auto admitted = story.core().gate()->Admit(story.Id(0, 0, 1), Encoding::kFloat32, 2);
  REQUIRE(absl::IsNotFound(admitted));
  REQUIRE(story.refusals.contains(story.Pull(0, 0)));
  story.Do(LogSynced{kJob, 100});  // of what was written before
  story.Wait(kHeartbeatInterval);
  REQUIRE(story.Told<ServerHeartbeat>().back().parameter_bytes == 0);
  story.Do(JobErased{kJob});
  REQUIRE(story.Told<JobRemoved>().size() == 1);
  story.Says(RemoveJob{kJob});  // it had not heard
  REQUIRE(story.Told<JobRemoved>().size() == 1);
  REQUIRE(story.asked_erasures.size() == 1);
}

}  // namespace
}  // namespace atl::ps

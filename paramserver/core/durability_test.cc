// Durability: what a server still has after crashes, with damaged snapshots and on disks that are
// full.

#include <catch2/catch.hpp>

#include "paramserver/core/testing/server_fixture.h"

namespace atl::ps {
namespace {

TEST_CASE("after a crash the server is where it was, bit for bit, and says so") {
  ServerFixture fixture, reference;
  fixture.Begin(2);
  reference.Begin(2);
  for (Version version = 1; version <= 7; ++version) {
    fixture.Round(version);
    reference.Round(version);
    fixture.Crash();
    REQUIRE(fixture.version() == version);
    REQUIRE(fixture.AllTheta() == reference.AllTheta());
  }
  fixture.PushAll(fixture.By(0, 7), 3);
  fixture.Sync();
  fixture.Push(fixture.Id(1, 7, 0), {1, 2, 3, 4});  // never synced
  fixture.sent.clear();
  fixture.Crash();
  const auto hello = fixture.TakeSent<ServerHello>();
  REQUIRE(hello[0].jobs.size() == 1);
  REQUIRE(hello[0].jobs[0].version == 7);
  REQUIRE(hello[0].jobs[0].staged.size() == 3);
  REQUIRE(
      fixture.Answered(fixture.Push(fixture.Id(0, 7, 0), {0, 0, 0, 0}), PushStatus::kDuplicate));
  REQUIRE(
      fixture.Answered(fixture.Push(fixture.Id(0, 3, 0), {0, 0, 0, 0}), PushStatus::kDuplicate));
}

TEST_CASE("the log is cut as far as the previous snapshot allows, so that one may be lost") {
  ServerFixture fixture, reference;
  fixture.Begin(2);
  reference.Begin();
  for (Version version = 1; version <= 9; ++version) {
    fixture.Round(version);
    reference.Round(version);
  }
  REQUIRE(fixture.log_records() < reference.log_records());
  fixture.LoseNewestSnapshot();
  fixture.Crash();
  REQUIRE(fixture.AllTheta() == reference.AllTheta());
}

TEST_CASE("a_log_of_half_the_state_makes_a_snapshot_however_many_rounds_there_may_be_between") {
  ServerFixture fixture, reference;
  for (ServerFixture* s : {&fixture, &reference}) s->Begin(1000);
  fixture.log_bytes_free = 0;
  fixture.Crash();
  for (Version version = 1; version <= 6; ++version) {
    fixture.Round(version);  // of 2 pushes a parameter; the state has 2 tensors
    reference.Round(version);
  }
  REQUIRE(fixture.log_records() < reference.log_records());
  fixture.Wait(kHeartbeatInterval);
  REQUIRE(fixture.TakeSent<ServerHeartbeat>().back().jobs[0].snapshot_version == 6);
  fixture.LoseNewestSnapshot();
  fixture.Crash();
  REQUIRE(fixture.AllTheta() == reference.AllTheta());
}

TEST_CASE("a staged push outlives snapshots: the log is kept for it") {
  ServerFixture fixture, reference;
  fixture.Begin(1);
  reference.Begin();
  for (ServerFixture* s : {&fixture, &reference})
    s->PushAll(s->By(2, 0), 77);  // late, for a later round
  for (Version version = 1; version <= 4; ++version) {
    fixture.Round(version);
    reference.Round(version);
  }
  fixture.Crash();
  for (ServerFixture* s : {&fixture, &reference}) {
    s->Commit(5, {{s->By(2, 0), 1.0}});
    s->Sync();
    REQUIRE(s->version() == 5);
  }
  REQUIRE(fixture.AllTheta() == reference.AllTheta());
}

TEST_CASE("a full disk is reported: nothing is acknowledged, pulls are served, and pushes resume") {
  ServerFixture fixture;
  fixture.Begin();
  const Token waiting = fixture.Push(fixture.Id(0, 0, 0), {1, 2, 3, 4});
  fixture.sent.clear();
  fixture.Do(LogFailed{kJob, "/state/job-1/log: no space left on device"});
  REQUIRE(fixture.TakeSent<ServerFault>()[0].reason.find("no space left") != std::string::npos);
  REQUIRE_FALSE(fixture.pushes.contains(waiting));
  REQUIRE(fixture.Answered(fixture.Push(fixture.Id(0, 0, 1), {1, 2}), PushStatus::kRefused));
  REQUIRE(fixture.replies.contains(fixture.Pull(0, 0)));
  fixture.Wait(kRetryInterval);
  REQUIRE(fixture.TakeSent<ServerFault>().size() == 1);
  fixture.Sync();
  REQUIRE(fixture.Answered(waiting, PushStatus::kStaged));
  fixture.Wait(10 * kRetryInterval);
  REQUIRE(fixture.TakeSent<ServerFault>().empty());
  fixture.Push(fixture.Id(0, 0, 1), {1, 2});
  fixture.Sync();
  REQUIRE(fixture.TakeSent<PushStaged>().size() == 1);
}

TEST_CASE("a failed snapshot is reported and retried") {
  ServerFixture fixture;
  fixture.Begin(1);
  fixture.PushAll(fixture.By(0, 0), 4);
  fixture.Sync();
  fixture.Commit(1, {{fixture.By(0, 0), 1.0}});
  fixture.sent.clear();
  fixture.Do(LogSynced{kJob, fixture.log_records()});
  REQUIRE(fixture.version() == 1);
  fixture.Do(SnapshotDone{kJob, 1, absl::ResourceExhaustedError("no space left on device")});
  REQUIRE(fixture.TakeSent<ServerFault>()[0].reason ==
          "snapshot of version 1: no space left on device");
  fixture.sent.clear();
  fixture.Wait(JobDriver::kSnapshotRetry);
  fixture.FinishSnapshots();
  fixture.Wait(kHeartbeatInterval);
  REQUIRE(fixture.TakeSent<ServerHeartbeat>().back().jobs[0].snapshot_version == 1);
}

}  // namespace
}  // namespace atl::ps

#include <catch2/catch.hpp>

#include "paramserver/storage/testing/disk_fixture.h"

namespace atl::ps {
namespace {

TEST_CASE(
    "killed at any operation of the disk, the server loses nothing and ends with the same bits") {
  const Encoding encoding = GENERATE(Encoding::kFloat32, Encoding::kInt8, Encoding::kTopK);
  DiskFixture uncrashed(0, encoding);
  uncrashed.Run(kRounds);
  REQUIRE(uncrashed.version() == kRounds);
  const std::vector<float> expected = uncrashed.Theta();
  const int64_t operations = uncrashed.disk.operations;
  REQUIRE(operations > 150);
  for (int64_t die_at = 1; die_at <= operations; ++die_at) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      INFO("die_at " << die_at << " seed " << seed);
      DiskFixture fixture(seed, encoding);
      fixture.disk.die_at = die_at;
      fixture.Run(kRounds);
      fixture.Crash();
      // And once more, while it recovers or soon after.
      Rng rng(seed, static_cast<uint64_t>(die_at));
      fixture.disk.die_at = fixture.disk.operations + 1 + static_cast<int64_t>(rng.Below(20));
      fixture.Run(kRounds);
      fixture.Crash();
      fixture.Run(kRounds);
      REQUIRE(fixture.version() == kRounds);
      REQUIRE(fixture.Theta() == expected);
    }
  }
}

TEST_CASE("killed at any operation of the disk, a job is there whole or removed for good") {
  DiskFixture whole(0);
  whole.Run(3);
  const std::vector<float> expected = whole.Theta();
  const int64_t before = whole.disk.operations;
  whole.Says(RemoveJob{kJob});
  whole.Work();
  REQUIRE(whole.TakeSent<JobRemoved>().size() == 1);
  REQUIRE(whole.disk.Paths().empty());
  const int64_t operations = whole.disk.operations - before;
  REQUIRE(operations > 5);
  int there = 0;
  for (int64_t die_at = 1; die_at <= operations + 1; ++die_at) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      INFO("die_at " << die_at << " seed " << seed);
      DiskFixture fixture(seed);
      fixture.Run(3);
      fixture.disk.die_at = fixture.disk.operations + die_at;
      fixture.Says(RemoveJob{kJob});
      fixture.Work();
      const bool sent = !fixture.TakeSent<JobRemoved>().empty();
      REQUIRE(sent == (die_at >= operations));  // the last one is not waited for
      fixture.disk.Restart();
      fixture.Start();
      if (fixture.version() != kNoVersion) {
        REQUIRE_FALSE(sent);
        REQUIRE(fixture.Theta() == expected);
        ++there;
      }
      fixture.Says(RemoveJob{kJob});
      fixture.Work();
      REQUIRE(fixture.TakeSent<JobRemoved>().size() == 1);
      REQUIRE(fixture.disk.Paths().empty());
    }
  }
  REQUIRE(there > 0);
}

TEST_CASE("a disk that deletes nothing: that is said once a reason, and tried again") {
  DiskFixture fixture(0);
  fixture.Run(2);
  fixture.disk.die_at = fixture.disk.operations + 4;  // the mark is written, nothing is deleted
  fixture.Says(RemoveJob{kJob});
  for (int again = 0; again < 5; ++again) fixture.Work();
  const auto faults = fixture.TakeSent<ServerFault>();
  REQUIRE(faults.size() == 2);  // it died, and it is dead
  REQUIRE(faults[0].passing);
  REQUIRE(faults[0].reason.find("cannot be removed yet: ") == 0);
  fixture.Start();
  REQUIRE(fixture.notes ==
          std::vector<std::string>{"s/jobs/job-1: to be deleted, the job was removed"});
  REQUIRE(fixture.version() == kNoVersion);
  fixture.disk.die_at = std::numeric_limits<int64_t>::max();
  fixture.Work();
  REQUIRE(fixture.disk.Paths().empty());
}

TEST_CASE("a_snapshot_keeps_the_exchange_of_a_sites_job") {
  SnapshotHead head;
  head.snapshot.job = kJob;
  head.snapshot.exchange = {9, 4, 6};
  const std::vector<std::byte> fields = *EncodeHead(head);
  const auto read = DecodeHead(fields);
  REQUIRE(read.ok());
  CHECK(read->snapshot.exchange == head.snapshot.exchange);
}

TEST_CASE("on a real disk, with the storage's own thread") {
  std::string folder = "/tmp/atoll-storage-XXXXXX";
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const int pushes = 200;
  {
    std::mutex mutex;
    std::condition_variable changed;
    LogSequence synced = 0;
    int events = 0;
    StorageThread thread(
        std::make_unique<Storage>(&RealFiles(), folder, RecoveredState{}, LogOptions{}),
        [&](Event event) {
          const std::lock_guard lock(mutex);
          synced = std::get<LogSynced>(event).sequence;
          ++events;
          changed.notify_all();
        });
    auto values = std::make_shared<std::vector<float>>(3);
    LogSequence next = 1;
    Actions first;
    first.log.push_back({kJob, next++, AssignedRecord{1, {kJob, kShards, 0.5, 0.9, 2}}});
    thread.Add(first);
    for (int i = 0; i < pushes; ++i) {
      Actions actions;
      actions.log.push_back({kJob, next++,
                             PushedRecord{{kJob, 0, 1, 1, i, 1},
                                          Encoding::kFloat32,
                                          {values, std::as_bytes(std::span(*values))}}});
      thread.Add(actions);
    }
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return synced == next - 1; }));
    REQUIRE(events <= pushes + 1);
  }
  ThreadPool pool(1);
  const auto recovered = RecoverState(RealFiles(), folder, {}, &pool);
  REQUIRE(recovered->jobs.at(0).state->Staged().size() == pushes);
}

// Operations of the real disk that fail in turn while a server starts.

}  // namespace
}  // namespace atl::ps

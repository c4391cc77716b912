// A parameter server's disk that is damaged, or cannot be read.

#include <catch2/catch.hpp>

#include "paramserver/storage/testing/disk_fixture.h"
#include "tests/faults/io_faults.h"

namespace atl::ps {
namespace {

TEST_CASE("a damaged newest snapshot, at any byte, is put aside; the one before it does") {
  DiskFixture whole(0);
  whole.Run(kRounds);
  const std::vector<float> expected = whole.Theta();
  const auto snapshots = ListSnapshots(whole.disk, "s/jobs/job-1");
  REQUIRE(snapshots->size() == 2);
  const std::string newest = snapshots->front();
  const size_t size = whole.disk.Bytes(newest).size();
  for (size_t at = 0; at < 2 * size; ++at) {
    DiskFixture fixture(0);
    fixture.Run(kRounds);
    auto& bytes = fixture.disk.Bytes(newest);
    if (at < size) {
      bytes[at] ^= std::byte(1 << (at % 8));
    } else {
      bytes.resize(at - size);
    }
    REQUIRE(ReadSnapshotFile(fixture.disk, newest).status().code() == absl::StatusCode::kDataLoss);
    if (at % 16 != 0) continue;
    fixture.Start();
    REQUIRE(fixture.notes.size() == 1);
    REQUIRE(fixture.notes[0].find(newest + ": damaged: ") == 0);
    REQUIRE(fixture.Theta() == expected);
    fixture.Run(kRounds + 4);  // later snapshots replace it
    fixture.Crash();
    REQUIRE(fixture.version() == kRounds + 4);
  }
}

TEST_CASE(
    "a full disk: a fault says so, nothing is acknowledged, and it goes on when there is room") {
  DiskFixture fixture(0);
  fixture.Run(2);
  fixture.TakeSent<PushStaged>();
  fixture.disk.space_bytes = 0;
  fixture.PushAll({0, 1, 1, 2});
  fixture.Work();
  const auto faults = fixture.TakeSent<ServerFault>();
  REQUIRE(faults.size() == 1);
  REQUIRE(faults[0].reason.find("no space left") != std::string::npos);
  REQUIRE(fixture.TakeSent<PushStaged>().empty());
  fixture.Work();
  fixture.disk.space_bytes = 1 << 20;
  fixture.Work();
  REQUIRE(fixture.TakeSent<PushStaged>().size() == 2);
  fixture.Run(5);
  REQUIRE(fixture.version() == 5);
}

TEST_CASE("damage to one job's log is that job's fault and names the place; others are served") {
  DiskFixture fixture(0);
  fixture.Run(1);
  SimulatedFiles& disk = fixture.disk;
  const auto copy = disk.Paths();
  ThreadPool pool(1);
  for (const std::string& path : copy) {
    auto file = disk.OpenAppend("s/jobs/job-2/" + path.substr(path.rfind('/') + 1));
    std::vector<std::byte> bytes = disk.Bytes(path);
    if (path == copy.front()) bytes[40] ^= std::byte(1);
    const ByteSpan buffer = bytes;
    REQUIRE((*file)->Append(std::span(&buffer, 1)).ok());
  }
  auto recovered = RecoverState(disk, "s", {200, 1 << 20}, &pool);
  REQUIRE(recovered->jobs.size() == 2);
  REQUIRE(recovered->jobs[0].damage.empty());
  REQUIRE(recovered->jobs[1].damage.find("s/jobs/job-2/log-00000000000000000001: damaged at "
                                         "offset 32") == 0);
  ServerCore core({"ps-1", 1, "t", "e", 1 << 20}, std::move(recovered->jobs), &pool);
  REQUIRE(core.version("job-1") == 1);
  core.Step({}, ConnectionUp{});
  const Actions actions =
      core.Step({}, FromCoordinator{{"ps-1", 1, 1, AssignShards{"job-2", kShards, 0.5, 0.9, 2}}});
  REQUIRE(std::get<ServerFault>(actions.to_coordinator.at(0)).job == "job-2");
}

TEST_CASE("a_damaged_job_whose_shards_are_filled_is_kept_aside_and_begins_anew") {
  DiskFixture fixture(0);
  fixture.Run(1);
  SimulatedFiles& disk = fixture.disk;
  const std::string log = disk.Paths().front();
  const std::vector<std::byte> before = disk.Bytes(log);
  std::vector<std::byte> bytes = before;
  bytes[40] ^= std::byte(1);
  const ByteSpan buffer = bytes;
  const std::string folder = GetParentFolder(log);
  REQUIRE(disk.Remove(log).ok());
  REQUIRE((*disk.OpenAppend(log))->Append(std::span(&buffer, 1)).ok());
  ThreadPool pool(1);
  auto recovered = RecoverState(disk, "s", {200, 1 << 20}, &pool);
  REQUIRE_FALSE(recovered->jobs.at(0).damage.empty());
  Storage storage(&disk, "s", *recovered, {200, 1 << 20});
  ServerCore core({"ps-1", 1, "t", "e", 1 << 20}, std::move(recovered->jobs), &pool);
  core.Step({}, ConnectionUp{});
  ReceiveShards receive{kJob, 1, 1, {{{1, 0, 2}, "other", "", /*fill=*/false}}};
  receive.newest = {kJob, 1, {{{0, 1, 1, 0}, 1.0}}, {}};
  // An error from elsewhere says nothing of what is here.
  REQUIRE(core.Step({}, FromCoordinator{{"ps-1", 1, 1, receive}}).erasures.empty());
  receive.sources[0].fill = true;
  const Actions actions = core.Step({}, FromCoordinator{{"ps-1", 1, 1, receive}});
  REQUIRE(actions.erasures.size() == 1);
  storage.Add(actions.erasures[0]);
  const std::vector<Event> events = storage.Work();
  REQUIRE(std::holds_alternative<JobErased>(events.at(0)));
  REQUIRE(disk.Bytes("s/damaged/job-1-1" + log.substr(folder.size())) == bytes);
  core.Step({}, events[0]);
  const Actions anew = core.Step({}, FromCoordinator{{"ps-1", 1, 1, receive}});
  REQUIRE(anew.log.size() == 1);
  REQUIRE(anew.log[0].sequence == 1);
  REQUIRE(RecoverState(disk, "s", {200, 1 << 20}, &pool)->jobs.empty());
}

TEST_CASE("a state that cannot be read now is no damage: the server does not start without it") {
  DiskFixture fixture(0);
  fixture.Run(kRounds);
  const std::vector<float> expected = fixture.Theta();
  ThreadPool pool(1);
  for (const std::string& path : fixture.disk.Paths()) {
    INFO(path);
    fixture.disk.unreadable = path;
    const auto recovered = RecoverState(fixture.disk, "s", {200, 1 << 20}, &pool);
    if (recovered.ok()) {  // an older snapshot, or a segment before the newest one
      REQUIRE(recovered->jobs.at(0).damage.empty());
      continue;
    }
    REQUIRE(absl::IsUnavailable(recovered.status()));
    REQUIRE(recovered.status().message().find(path + ": cannot read; start again") == 0);
  }
  const auto newest = ListSnapshots(fixture.disk, "s/jobs/job-1");
  fixture.disk.unreadable = newest->front();
  REQUIRE_FALSE(RecoverState(fixture.disk, "s", {200, 1 << 20}, &pool).ok());
  fixture.disk.unreadable.clear();
  fixture.Start();
  REQUIRE(fixture.version() == kRounds);
  REQUIRE(fixture.Theta() == expected);
}

TEST_CASE("a whole record that does not fit the job is damage, and the server starts") {
  DiskFixture fixture(0);
  fixture.Run(1);
  LogWriter log(&fixture.disk, "s/jobs/job-2", {}, {200, 1 << 20});
  REQUIRE(log.Append(1, CommittedRecord{5, {}, {}}).ok());
  REQUIRE(log.Sync().ok());
  ThreadPool pool(1);
  const auto recovered = RecoverState(fixture.disk, "s", {200, 1 << 20}, &pool);
  REQUIRE(recovered.ok());
  REQUIRE(recovered->jobs.size() == 2);
  REQUIRE(recovered->jobs[0].damage.empty());
  REQUIRE(recovered->jobs[1].damage.find("s/jobs/job-2/log-00000000000000000001: at offset 32") ==
          0);
}

TEST_CASE("a_folder_that_cannot_be_read_once_or_for_long_is_an_error_and_loses_nothing") {
  std::string state = "/tmp/atoll-storage-XXXXXX";
  REQUIRE(mkdtemp(state.data()) != nullptr);
  ThreadPool pool(1);
  const std::string folder = state + "/jobs/" + kJob;
  const auto recover = [&] { return RecoverState(RealFiles(), state, {200, 1 << 20}, &pool); };
  {
    DiskFixture fixture(0);
    fixture.Run(kRounds);
    REQUIRE(RealFiles().MakeFolder(folder).ok());
    for (const std::string& path : fixture.disk.Paths()) {
      const std::string to = folder + path.substr(path.rfind('/'));
      REQUIRE(WriteFileAtomically(RealFiles(), to, std::array{ByteSpan(fixture.disk.Bytes(path))})
                  .ok());
    }
  }
  const auto held = RealFiles().List(folder);
  REQUIRE(held->size() > 2);
  REQUIRE(recover()->jobs.size() == 1);
  for (const char* call : {"opendir", "readdir", "open", "fstat", "pread"}) {
    for (const long count : {1L, 1000L}) {  // once, and for as long as it tries
      for (long at = 1;; ++at) {
        INFO(call << " " << at);
        const InjectedFault fault({state, call, at % 2 == 0 ? EIO : EMFILE, at, count});
        const auto recovered = recover();
        if (fault.operations() < at) break;
        REQUIRE_FALSE(recovered.ok());
        REQUIRE_FALSE(recovered.status().message().empty());
      }
    }
  }
  REQUIRE(*RealFiles().List(folder) == *held);
  REQUIRE(recover()->jobs.size() == 1);
  std::filesystem::remove_all(state);
}

TEST_CASE("only_a_whole_order_to_remove_this_job_removes_it") {
  DiskFixture fixture(0);
  fixture.Run(kRounds);
  const auto write = [&](const std::string& text) {
    const auto file = fixture.disk.OpenAppend("s/jobs/job-1/removed");
    REQUIRE((*file)->Truncate(0).ok());
    REQUIRE((*file)->Append(std::array{AsBytes(text)}).ok());
  };
  for (const char* text : {"", "job job-", "job job-2\n", "job job-1\njob job-2\n"}) {
    write(text);
    fixture.Start();
    CHECK(fixture.version() == kRounds);
  }
  write("job job-1\n");
  fixture.Start();
  CHECK(fixture.version() == kNoVersion);
  CHECK(fixture.disk.Paths().empty());
}

}  // namespace
}  // namespace atl::ps

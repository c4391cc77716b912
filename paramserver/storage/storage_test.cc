#include "paramserver/storage/storage.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "common/testing/files_simulated.h"
#include "kernels/deltas.h"
#include "paramserver/storage/codec.h"
#include "paramserver/storage/snapshot.h"
#include "tests/faults/io_faults.h"

namespace atl::ps {
namespace {

const JobId kJob = "job-1";
const std::vector<OwnedShard> kShards = {{0, 0, 5}, {1, 1, 3}};
const ContributionId kInitial{0, 1, 1, kNoVersion};
constexpr Version kRounds = 7;

// A server on a simulated disk, and a coordinator and workers that retry until they succeed, as the
// real ones do. All rounds are decided beforehand, so every run that reaches the end must end with
// the same bits.
class DiskFixture {
 public:
  explicit DiskFixture(uint64_t seed, Encoding encoding = Encoding::kFloat32)
      : disk(seed), encoding_(encoding) {
    Start();
  }

  // Goes on until `rounds` are applied or the disk dies.
  void Run(Version rounds) {
    for (int turn = 0; turn < 100 && !dead() && core_->version(kJob) < rounds; ++turn) {
      Says(AssignShards{kJob, kShards, 0.5, 0.9, /*snapshot_every_rounds=*/2});
      const Version base = core_->version(kJob);
      const std::vector<RoundTerm> terms = Terms(base + 1);
      for (const RoundTerm& term : terms) PushAll(term.contribution);
      Work();
      if (!AllStaged(terms)) continue;
      decided_ = base + 1;
      Says(CommitRound{kJob, base + 1, terms, {}});
      Work();
    }
  }

  // The daemon and the machine die; the disk comes back as it may, and the daemon starts.
  void Crash() {
    core_.reset();
    storage_.reset();
    disk.Restart();
    Start();
    CheckInvariants();
  }

  void Start() {
    auto recovered = RecoverState(disk, "s", {200, 1 << 20}, &pool_);
    REQUIRE(recovered.ok());
    notes = recovered->notes;
    storage_ = std::make_unique<Storage>(&disk, "s", *recovered, LogOptions{200, 1 << 20});
    for (const RecoveredJob& job : recovered->jobs) {
      INFO(job.damage);
      REQUIRE(job.damage.empty());
    }
    core_ = std::make_unique<ServerCore>(ServerOptions{"ps-1", ++incarnation_, "t", "e", 1 << 20},
                                         std::move(recovered->jobs), &pool_);
    hello_.reset();
    Do(ConnectionUp{});
    Says(Welcome{});
  }

  bool dead() const { return disk.operations >= disk.die_at; }
  std::vector<float> Theta() const {
    std::vector<float> all;
    for (const OwnedShard& shard : kShards) {
      for (const float value : core_->Parameters(kJob, shard.shard)) all.push_back(value);
    }
    return all;
  }
  Version version() const { return core_->version(kJob); }

  void Work() {
    const std::vector<Event> events = storage_->Work();
    const std::vector<Storage::ReadySnapshot> snapshots = storage_->TakeReady();
    for (const Event& event : events) Do(event);
    for (const Storage::ReadySnapshot& ready : snapshots) {
      const SnapshotDone done = Storage::WriteReady(storage_->files(), ready);
      storage_->Written(done.job);
      Do(done);
    }
  }
  void PushAll(const ContributionId& by) {
    for (const OwnedShard& shard : kShards) {
      Rng rng(static_cast<uint64_t>(10 * by.base_version + by.island + 100),
              static_cast<uint64_t>(shard.shard));
      std::vector<float> values(static_cast<size_t>(shard.elements));
      for (float& value : values) value = static_cast<float>(rng.Normal());
      // Initial weights, and one island's quantised pushes next to another's that are not.
      const Encoding encoding = by.base_version == kNoVersion ? Encoding::kFloat32
                                : by.island == 0              ? encoding_
                                                              : Encoding::kFloat32;
      auto bytes = std::make_shared<std::vector<std::byte>>(EncodedBytes(encoding, shard.elements));
      if (IsQuantized(encoding)) {
        EncodeDelta(encoding, values, {}, *bytes, pool_);
      } else {
        std::memcpy(bytes->data(), values.data(), bytes->size());
      }
      Do(PushArrived{{kJob, by.island, by.generation, by.incarnation, by.base_version, shard.shard},
                     encoding,
                     shard.elements,
                     {bytes, *bytes},
                     ++token_});
    }
  }
  void Says(ToServerMessage message) {
    Do(FromCoordinator{{"ps-1", incarnation_, 1, std::move(message)}});
  }
  template <class Message>
  std::vector<Message> TakeSent() {
    std::vector<Message> found;
    for (const ServerMessage& message : std::exchange(sent_, {})) {
      if (const auto* m = std::get_if<Message>(&message)) found.push_back(*m);
    }
    return found;
  }

  SimulatedFiles disk;
  std::vector<std::string> notes;

 private:
  static std::vector<RoundTerm> Terms(Version version) {
    if (version == 0) return {{kInitial, 1.0}};
    return {{{0, 1, 1, version - 1}, 0.75}, {{1, 1, 1, version - 1}, 0.25}};
  }
  bool AllStaged(const std::vector<RoundTerm>& terms) const {
    for (const RoundTerm& term : terms) {
      for (const OwnedShard& shard : kShards) {
        const ContributionId& by = term.contribution;
        if (!staged_.contains(
                {kJob, by.island, by.generation, by.incarnation, by.base_version, shard.shard})) {
          return false;
        }
      }
    }
    return true;
  }
  // N1: what was reported to the coordinator survives the crash.
  void CheckInvariants() {
    REQUIRE(version() >= applied_);
    REQUIRE(version() <= decided_);
    if (!hello_ || hello_->jobs.empty()) {
      REQUIRE(staged_.empty());
      return;
    }
    const auto& held = hello_->jobs[0].staged;
    for (const PushId& push : staged_) {
      if (push.base_version + 1 <= version()) continue;  // applied
      REQUIRE(std::find(held.begin(), held.end(), push) != held.end());
    }
  }
  void Do(const Event& event) {
    Instant next = Turn(core_->Step(kNow, event));
    while (next <= kNow) next = Turn(core_->Step(kNow, Tick{}));
  }
  // When it wants the next call.
  Instant Turn(Actions actions) {
    for (AppendLog& append : actions.log) storage_->Add(std::move(append));
    for (WriteSnapshot& write : actions.snapshots) storage_->Add(std::move(write));
    for (TruncateLog& truncate : actions.truncations) storage_->Add(truncate);
    for (const EraseJob& erase : actions.erasures) storage_->Add(erase);
    for (const ServerMessage& message : actions.to_coordinator) {
      sent_.push_back(message);
      if (const auto* staged = std::get_if<PushStaged>(&message)) staged_.insert(staged->push);
      if (const auto* applied = std::get_if<RoundApplied>(&message)) {
        applied_ = std::max(applied_, applied->version);
      }
      if (const auto* hello = std::get_if<ServerHello>(&message)) {
        hello_ = *hello;
        for (const HeldJob& job : hello->jobs) {
          staged_.insert(job.staged.begin(), job.staged.end());
        }
      }
    }
    return actions.next_deadline;
  }

  static constexpr Instant kNow{std::chrono::seconds(1)};
  const Encoding encoding_;
  ThreadPool pool_{1};
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<ServerCore> core_;
  Incarnation incarnation_ = 0;
  Token token_ = 0;
  std::set<PushId> staged_;  // reported to the coordinator
  Version applied_ = kNoVersion, decided_ = kNoVersion;
  std::optional<ServerHello> hello_;
  std::vector<ServerMessage> sent_;
};

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

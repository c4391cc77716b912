// A parameter server on a simulated disk, which tests kill.

#ifndef ATOLL_PARAMSERVER_STORAGE_TESTING_DISK_FIXTURE_H_
#define ATOLL_PARAMSERVER_STORAGE_TESTING_DISK_FIXTURE_H_

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
#include "paramserver/storage/storage.h"

namespace atl::ps {

inline const JobId kJob = "job-1";
inline const std::vector<OwnedShard> kShards = {{0, 0, 5}, {1, 1, 3}};
inline const ContributionId kInitial{0, 1, 1, kNoVersion};
inline constexpr Version kRounds = 7;

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

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_STORAGE_TESTING_DISK_FIXTURE_H_

#include "coordinator/trust/access_control.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/trust/records.h"
#include "kernels/testing/gate.h"

namespace atl {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLifetimeS = 86400;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "atoll_access_test_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  std::unique_ptr<AccessControl> Open() const {
    return AccessControl::Open(path_.string(), {}, kLifetimeS).value();
  }
  fs::path registry() const { return path_ / "registry"; }

 private:
  fs::path path_;
};

Caller Worker(const std::string& name) {
  Caller caller;
  caller.identity = Identity{Role::kWorker, name};
  return caller;
}

const std::string kKey(40, 'a'), kOtherKey(40, 'b');

TEST_CASE("a noted CURVE key is in use at once, and stored with others by one StoreNotes") {
  Folder folder;
  const auto access = folder.Open();
  int changes = 0;
  access->on_keys = [&] { ++changes; };
  access->NoteCurveKey(Worker("w1"), kKey);
  access->NoteCurveKey(Worker("w2"), kOtherKey);
  access->NoteCurveKey(Worker("w2"), kOtherKey);  // nothing new
  CHECK(changes == 2);
  CHECK(access->keys().allowed_size() == 2);
  CHECK(folder.Open()->keys().allowed_size() == 0);
  REQUIRE(access->StoreNotes().ok());
  CHECK(folder.Open()->keys().allowed_size() == 2);
}

TEST_CASE("without a note nothing is written, and another change stores notes with it") {
  Folder folder;
  const auto access = folder.Open();
  REQUIRE(access->StoreNotes().ok());
  CHECK_FALSE(fs::exists(folder.registry()));
  access->NoteCurveKey(Worker("w1"), kKey);
  v1::RevokeRequest revoke;
  revoke.set_role("worker");
  revoke.set_name("w2");
  REQUIRE(access->Revoke(Worker("w1"), revoke).ok());
  CHECK(folder.Open()->keys().allowed_size() == 1);
  fs::remove(folder.registry());
  REQUIRE(access->StoreNotes().ok());  // stored already
  CHECK_FALSE(fs::exists(folder.registry()));
}

TEST_CASE("notes that cannot be stored are stored later") {
  Folder folder;
  const auto access = folder.Open();
  access->NoteCurveKey(Worker("w1"), kKey);
  fs::create_directory(folder.registry());  // no file can replace it
  fs::create_directory(folder.registry() / "x");
  CHECK_FALSE(access->StoreNotes().ok());
  CHECK(access->keys().allowed_size() == 1);
  fs::remove_all(folder.registry());
  REQUIRE(access->StoreNotes().ok());
  CHECK(folder.Open()->keys().allowed_size() == 1);
}

// Counts the revoked members in a registry.
int CountRevoked(const v1::TrustRecords& records) {
  return static_cast<int>(std::count_if(records.members().begin(), records.members().end(),
                                        [](const auto& m) { return m.revoked_unix_s() != 0; }));
}

// Its writes pass a gate.
class SlowStore : public SharedValue {
 public:
  absl::StatusOr<std::optional<std::string>> Read() override { return stored_; }
  absl::Status Write(const std::string& bytes) override {
    ++writes;
    gate.Pass();
    const std::lock_guard lock(mutex_);
    if (outcome.ok()) stored_ = bytes;
    return outcome;
  }
  int Revoked() const {
    const std::lock_guard lock(mutex_);
    return CountRevoked(DecodeTrustRecords("the test's store", stored_.value()).value());
  }

  testing::Gate gate;
  std::atomic<int> writes = 0;
  absl::Status outcome;  // of all writes

 private:
  mutable std::mutex mutex_;
  std::optional<std::string> stored_;
};

absl::Status Revoke(AccessControl& access, int worker) {
  v1::RevokeRequest request;
  request.set_role("worker");
  request.set_name(absl::StrCat("w", worker));
  return access.Revoke(Worker("admin"), request).status();
}

constexpr int kTogether = 8;

// One change is being written, and kTogether others wait. Returns the threads' results at the end.
template <class Meanwhile>
std::vector<absl::Status> RevokeWhileAnotherIsWritten(AccessControl& access, SlowStore& store,
                                                      Meanwhile meanwhile) {
  std::vector<absl::Status> results(1 + kTogether);
  std::vector<std::thread> threads;
  threads.emplace_back([&] { results[0] = Revoke(access, 0); });
  store.gate.AwaitStall();
  for (int i = 1; i <= kTogether; ++i) {
    threads.emplace_back([&, i] {
      results[static_cast<size_t>(i)] = Revoke(access, i);
      if (results[static_cast<size_t>(i)].ok() && store.Revoked() < 1 + kTogether) {
        results[static_cast<size_t>(i)] = absl::InternalError("it returned before it was stored");
      }
    });
  }
  const absl::Time limit = absl::Now() + absl::Seconds(60);
  while (access.changes_that_wait() < kTogether && absl::Now() < limit) {
    std::this_thread::yield();
  }
  CHECK(access.changes_that_wait() == kTogether);
  meanwhile();
  store.gate.Open();
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST_CASE("changes_that_come_while_one_is_written_are_written_together_and_decisions_do_not_wait") {
  Folder folder;
  const auto access = folder.Open();
  SlowStore store;
  REQUIRE(access->Share(&store).ok());
  store.writes = 0;
  store.gate.Close();
  const auto results = RevokeWhileAnotherIsWritten(*access, store, [&] {
    CHECK(CountRevoked(access->records()) == 0);
    access->NoteCurveKey(Worker("x"), kKey);
    CHECK(access->keys().allowed_size() == 1);
  });
  for (const absl::Status& result : results) CHECK(result.ToString() == "OK");
  CHECK(store.writes == 2);
  CHECK(CountRevoked(access->records()) == 1 + kTogether);
  CHECK(access->keys().allowed_size() == 1);  // noted meanwhile
  REQUIRE(access->StoreNotes().ok());         // after the first write took it, or now
  const auto other = folder.Open();
  REQUIRE(other->Share(&store).ok());
  CHECK(other->keys().allowed_size() == 1);
  CHECK(CountRevoked(other->records()) == 1 + kTogether);
}

TEST_CASE("changes_whose_common_write_fails_did_not_happen") {
  Folder folder;
  const auto access = folder.Open();
  SlowStore store;
  REQUIRE(access->Share(&store).ok());
  store.outcome = absl::FailedPreconditionError("another coordinator leads");
  store.gate.Close();
  const auto results = RevokeWhileAnotherIsWritten(*access, store, [] {});
  for (const absl::Status& result : results) {
    CHECK(result.code() == absl::StatusCode::kFailedPrecondition);
  }
  CHECK(CountRevoked(access->records()) == 0);
  CHECK(store.Revoked() == 0);
  store.outcome = absl::OkStatus();
  REQUIRE(Revoke(*access, 1).ok());
  CHECK(store.Revoked() == 1);
}

TEST_CASE("a_change_that_is_refused_is_not_written") {
  Folder folder;
  const auto access = folder.Open();
  v1::RevokeRequest unknown;
  unknown.set_name("w1");  // has joined in no role
  CHECK_FALSE(access->Revoke(Worker("admin"), unknown).ok());
  CHECK_FALSE(access->DeleteToken(Worker("admin"), "0123").ok());
  CHECK_FALSE(fs::exists(folder.registry()));
}

}  // namespace
}  // namespace atl

#include "coordinator/trust/access_control.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/trust/records.h"

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
  fs::create_directory(folder.registry());  // no file can take its place
  fs::create_directory(folder.registry() / "x");
  CHECK_FALSE(access->StoreNotes().ok());
  CHECK(access->keys().allowed_size() == 1);
  fs::remove_all(folder.registry());
  REQUIRE(access->StoreNotes().ok());
  CHECK(folder.Open()->keys().allowed_size() == 1);
}

// A store whose writes last until it is opened.
class SlowStore : public SharedValue {
 public:
  absl::StatusOr<std::optional<std::string>> Read() override { return stored_; }
  absl::Status Write(const std::string& bytes) override {
    std::unique_lock lock(mutex_);
    ++writes_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    if (!outcome_.ok()) return outcome_;
    stored_ = bytes;
    return absl::OkStatus();
  }
  void Close(absl::Status outcome = absl::OkStatus()) {
    const std::lock_guard lock(mutex_);
    open_ = false;
    outcome_ = outcome;
    writes_ = 0;
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void WaitForAWrite() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return writes_ > 0; });
  }
  int writes() const {
    const std::lock_guard lock(mutex_);
    return writes_;
  }
  // Of members in what is stored.
  int Revoked() const {
    const std::lock_guard lock(mutex_);
    const auto records = DecodeTrustRecords("the test's store", stored_.value()).value();
    return static_cast<int>(std::count_if(records.members().begin(), records.members().end(),
                                          [](const auto& m) { return m.revoked_unix_s() != 0; }));
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int writes_ = 0;
  absl::Status outcome_;
  std::optional<std::string> stored_;
};

int Revoked(const AccessControl& access) {
  const v1::TrustRecords records = access.records();
  return static_cast<int>(std::count_if(records.members().begin(), records.members().end(),
                                        [](const auto& m) { return m.revoked_unix_s() != 0; }));
}

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
  store.WaitForAWrite();
  for (int i = 1; i <= kTogether; ++i) {
    threads.emplace_back([&, i] {
      results[static_cast<size_t>(i)] = Revoke(access, i);
      if (results[static_cast<size_t>(i)].ok() && store.Revoked() < 1 + kTogether) {
        results[static_cast<size_t>(i)] = absl::InternalError("it returned before it was stored");
      }
    });
  }
  while (access.changes_that_wait() < kTogether) std::this_thread::yield();
  meanwhile();
  store.Open();
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST_CASE("changes_that_come_while_one_is_written_are_written_together_and_decisions_do_not_wait") {
  Folder folder;
  const auto access = folder.Open();
  SlowStore store;
  REQUIRE(access->Share(&store).ok());
  store.Close();
  const auto results = RevokeWhileAnotherIsWritten(*access, store, [&] {
    CHECK(Revoked(*access) == 0);
    access->NoteCurveKey(Worker("x"), kKey);
    CHECK(access->keys().allowed_size() == 1);
  });
  for (const absl::Status& result : results) CHECK(result.ToString() == "OK");
  CHECK(store.writes() == 2);
  CHECK(Revoked(*access) == 1 + kTogether);
  CHECK(access->keys().allowed_size() == 1);  // noted meanwhile
  REQUIRE(access->StoreNotes().ok());         // after the first write took it, or now
  const auto other = folder.Open();
  REQUIRE(other->Share(&store).ok());
  CHECK(other->keys().allowed_size() == 1);
  CHECK(Revoked(*other) == 1 + kTogether);
}

TEST_CASE("changes_whose_common_write_fails_did_not_happen") {
  Folder folder;
  const auto access = folder.Open();
  SlowStore store;
  REQUIRE(access->Share(&store).ok());
  store.Close(absl::FailedPreconditionError("another coordinator leads"));
  const auto results = RevokeWhileAnotherIsWritten(*access, store, [] {});
  for (const absl::Status& result : results) {
    CHECK(result.code() == absl::StatusCode::kFailedPrecondition);
  }
  CHECK(Revoked(*access) == 0);
  CHECK(store.Revoked() == 0);
  store.Close();
  store.Open();
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

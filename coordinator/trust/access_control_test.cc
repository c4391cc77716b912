#include "coordinator/trust/access_control.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>

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

}  // namespace
}  // namespace atl

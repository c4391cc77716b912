#include "worker/data/token_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "tests/faults/io_faults.h"

namespace atl {
namespace {

namespace fs = std::filesystem;

class Cache {
 public:
  explicit Cache(int64_t bytes_max) {
    std::string name = (fs::temp_directory_path() / "atoll_token_cache_test_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
    cache_.emplace(name, bytes_max);
  }
  ~Cache() { fs::remove_all(path_); }

  // Gets an entry of 1,000 bytes that was used `ago_s` seconds ago.
  std::string Get(uint64_t key, int ago_s = 0) {
    const auto folder = cache_->GetOrMake(key, [&](const std::string& made) {
      std::ofstream(made + "/tokens-00000.bin") << std::string(990, 'x');
      std::ofstream(made + "/index.json") << std::string(10, 'x');
      ++made_;
      return absl::OkStatus();
    });
    REQUIRE(folder.ok());
    fs::last_write_time(*folder + "/index.json",
                        fs::file_time_type::clock::now() - std::chrono::seconds(ago_s));
    return *folder;
  }
  absl::StatusOr<std::string> TryGet(uint64_t key) {
    return cache_->GetOrMake(key, [](const std::string&) { return absl::OkStatus(); });
  }
  absl::Status Fail(uint64_t key) {
    return cache_->GetOrMake(key, [](const std::string&) { return absl::DataLossError("no text"); })
        .status();
  }
  int made() const { return made_; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  std::optional<TokenCache> cache_;
  int made_ = 0;
};

TEST_CASE("shards are made once") {
  Cache cache(1 << 20);
  const std::string one = cache.Get(1);
  CHECK(fs::exists(one + "/tokens-00000.bin"));
  CHECK(cache.Get(1) == one);
  CHECK(cache.Get(2) != one);
  CHECK(cache.made() == 2);
}

TEST_CASE("those that were not used for the longest time go first, and what is used never does") {
  Cache cache(2000);
  const std::string one = cache.Get(1, 30), two = cache.Get(2, 20);
  cache.Get(1, 10);
  const std::string three = cache.Get(3, 5), four = cache.Get(4);
  CHECK(fs::exists(one));
  CHECK_FALSE(fs::exists(two));
  CHECK(fs::exists(three));
  CHECK(fs::exists(four));
  Cache small(10);
  CHECK(fs::exists(small.Get(1) + "/index.json"));
}

TEST_CASE("what could not be made leaves nothing") {
  Cache cache(1 << 20);
  CHECK(absl::IsDataLoss(cache.Fail(1)));
  CHECK(fs::is_empty(cache.path()));
}

TEST_CASE("a_folder_that_cannot_be_read_costs_nothing_of_what_is_kept") {
  Cache cache(2500);
  cache.Get(1, 100);
  cache.Get(2, 50);
  for (const char* call : {"readdir", "stat"}) {
    for (int at = 1; at <= 9; ++at) {
      const InjectedFault fault({cache.path().string(), call, EIO, at});
      CHECK(cache.TryGet(2).ok() == (std::string(call) == "readdir" || at > 1));
    }
  }
  CHECK(fs::exists(cache.path() / "tokens-0000000000000001/index.json"));
  {
    const InjectedFault fault({cache.path().string(), "readdir", EIO, 1, 1000});
    cache.Get(3);  // there is no room for it, and none is made
  }
  CHECK(fs::exists(cache.path() / "tokens-0000000000000001/index.json"));
  cache.Get(4);  // now it is made
  CHECK_FALSE(fs::exists(cache.path() / "tokens-0000000000000001/index.json"));
}

TEST_CASE("what_another_worker_makes_is_not_removed_however_old_it_looks") {
  Cache cache(1 << 20);
  const fs::path other = cache.path() / "making-other", dead = cache.path() / "making-dead";
  fs::create_directories(other);
  fs::create_directories(dead);
  const int held = open(other.c_str(), O_RDONLY | O_DIRECTORY);
  REQUIRE(flock(held, LOCK_EX) == 0);
  const auto years = fs::file_time_type::clock::now() - std::chrono::hours(87'600);
  fs::last_write_time(other, years);
  cache.Get(1);
  CHECK(fs::exists(other));
  CHECK_FALSE(fs::exists(dead));  // its maker died
  close(held);
}

}  // namespace
}  // namespace atl

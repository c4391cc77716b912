#include "common/state_folder.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"

namespace atl {
namespace {

namespace fs = std::filesystem;

TEST_CASE("Every start has a larger incarnation, and no two daemons share a folder") {
  std::string name = (fs::temp_directory_path() / "state-XXXXXX").string();
  const std::string root = mkdtemp(name.data());
  const std::string path = root + "/sites/w1";
  Incarnation first = 0;
  {
    const auto state = StateFolder::Open(path);
    REQUIRE(state.ok());
    first = *(*state)->NextIncarnation();
    const auto second = StateFolder::Open(path);
    REQUIRE_FALSE(second.ok());
    CHECK(second.status().message() ==
          absl::StrCat("--state-dir ", path, ": process ", getpid(),
                       " runs on it; give every process a folder of its own"));
  }
  const auto next = [&] { return *(*StateFolder::Open(path))->NextIncarnation(); };
  CHECK(next() > first);
  // A clock that was far ahead once does not let the number go back.
  std::ofstream(path + "/incarnation") << "9000000000000000\n";
  CHECK(next() == 9000000000000001);
  std::ofstream(path + "/incarnation") << "damaged";
  CHECK(next() > first);
  std::ofstream(path + "/incarnation") << std::string(1000, '9');
  CHECK(next() > first);
  {
    std::fstream file(path + "/incarnation");
    file.seekp(4);
    file.put('0');  // and its complement says otherwise
    file.seekp(0);
    file.put('9');
  }
  CHECK(next() < 9000000000000);
  std::ofstream(root + "/file") << "not a folder";
  const auto file = StateFolder::Open(root + "/file");
  REQUIRE_FALSE(file.ok());
  CHECK(absl::StartsWith(file.status().message(), absl::StrCat("--state-dir ", root, "/file: ")));
  fs::remove_all(root);
}

TEST_CASE("lock_that_is_a_link_is_refused_and_its_target_stays_as_it_is") {
  std::string name = (fs::temp_directory_path() / "state-XXXXXX").string();
  const std::string root = mkdtemp(name.data());
  std::ofstream(root + "/precious") << "data";
  SECTION("symbolic") { fs::create_symlink(root + "/precious", root + "/lock"); }
  SECTION("hard") { fs::create_hard_link(root + "/precious", root + "/lock"); }
  SECTION("to nothing") { fs::create_symlink(root + "/nothing", root + "/lock"); }
  const auto state = StateFolder::Open(root);
  REQUIRE_FALSE(state.ok());
  CHECK(absl::StrContains(state.status().message(), root + "/lock"));
  CHECK(fs::file_size(root + "/precious") == 4);
  CHECK_FALSE(fs::exists(root + "/nothing"));
  fs::remove_all(root);
}

TEST_CASE("incarnation_that_no_clock_shows_is_forgotten") {
  std::string name = (fs::temp_directory_path() / "state-XXXXXX").string();
  const std::string root = mkdtemp(name.data());
  std::ofstream(root + "/incarnation") << "9223372036854775807\n";
  const Incarnation next = *(*StateFolder::Open(root))->NextIncarnation();
  CHECK(next > 1'500'000'000'000);
  CHECK(next < kClockIncarnationMax);
  fs::remove_all(root);
}

}  // namespace
}  // namespace atl

#include "worker/state_dir.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace atl::worker {
namespace {

namespace fs = std::filesystem;

TEST_CASE("Every start has a larger incarnation, and no two workers share a folder") {
  std::string name = (fs::temp_directory_path() / "state-XXXXXX").string();
  const std::string root = mkdtemp(name.data());
  const std::string path = root + "/w1";
  Incarnation first = 0;
  {
    const auto state = StateDir::Open(path);
    REQUIRE(state.ok());
    first = (*state)->incarnation();
    const auto second = StateDir::Open(path);
    REQUIRE_FALSE(second.ok());
    CHECK(std::string(second.status().message()).find("another worker uses it") !=
          std::string::npos);
  }
  CHECK((*StateDir::Open(path))->incarnation() > first);
  // A clock that was far ahead once does not let the number go back.
  std::ofstream(path + "/incarnation") << "9000000000000000\n";
  CHECK((*StateDir::Open(path))->incarnation() == 9000000000000001);
  std::ofstream(path + "/incarnation") << "damaged";
  CHECK((*StateDir::Open(path))->incarnation() > first);
  std::ofstream(root + "/file") << "not a folder";
  CHECK_FALSE(StateDir::Open(root + "/file").ok());
  fs::remove_all(root);
}

}  // namespace
}  // namespace atl::worker

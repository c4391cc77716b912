#include "common/machine/room.h"

#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace atl {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST_CASE("daemon_that_does_not_fit_into_its_control_group_is_refused_by_the_groups_name") {
  std::string root = (std::filesystem::temp_directory_path() / "atoll_room_XXXXXX").string();
  REQUIRE(mkdtemp(root.data()) != nullptr);
  const auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  };
  write("/proc/self/cgroup", "0::/a\n");
  write("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  write("/proc/meminfo", "MemTotal:       16777216 kB\n");
  write("/sys/fs/cgroup/a/memory.max", std::to_string(512 * kMiB) + "\n");
  CHECK(CheckRoom(256 * kMiB, root).ok());
  const absl::Status refused = CheckRoom(512 * kMiB, root);
  CHECK(absl::IsResourceExhausted(refused));
  CHECK(refused.message().find("control group /sys/fs/cgroup/a (memory.max)") != std::string::npos);
  // The memory that a running daemon has taken counts: 400 MiB.
  write("/proc/self/statm",
        "200000 " + std::to_string(400 * kMiB / sysconf(_SC_PAGESIZE)) + " 1\n");
  CHECK(CheckRoomLeft(100 * kMiB, root).ok());
  const absl::Status full = CheckRoomLeft(120 * kMiB, root);
  CHECK(absl::IsResourceExhausted(full));
  CHECK(full.message().find("leaves this process 112.0 MiB") != std::string::npos);
  std::filesystem::remove_all(root);
}

TEST_CASE("daemon_under_a_small_limit_of_its_address_space_is_refused_by_that_name") {
  rlimit before;
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  if (before.rlim_cur != RLIM_INFINITY) return;
  CHECK(CheckRoom(0).ok());
  const rlimit small{static_cast<rlim_t>(700 * kMiB), before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_AS, &small) == 0);
  const absl::Status refused = CheckRoom(0);
  REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
  CHECK(absl::IsResourceExhausted(refused));
  CHECK(refused.message().find("ulimit -v") != std::string::npos);
}

}  // namespace
}  // namespace atl

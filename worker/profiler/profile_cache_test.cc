#include "worker/profiler/profile_cache.h"

#include <catch2/catch.hpp>

#include "common/testing/files_simulated.h"

namespace atl::worker {
namespace {

DeviceProfile Some() {
  DeviceProfile profile{"w1/0", "cpu, 2 threads", "1.0", 42, {}};
  profile.layers.push_back({LayerKind::kBlock, 1, 2, 10, 20, 30, 40, 0.01, 50, 60, 70, 80});
  return profile;
}

struct Disk {
  SimulatedFiles files{1};
  ProfileCache cache{files, "/state/profiles"};
};

TEST_CASE("a profile is found again for the same device, model and version alone") {
  Disk disk;
  CHECK_FALSE(disk.cache.Find("w1/0", "cpu, 2 threads", 42, "1.0").has_value());
  REQUIRE(disk.cache.Store(Some()).ok());
  const auto found = disk.cache.Find("w1/0", "cpu, 2 threads", 42, "1.0");
  REQUIRE(found.has_value());
  CHECK(*found == Some());
  CHECK_FALSE(disk.cache.Find("w1/1", "cpu, 2 threads", 42, "1.0").has_value());
  CHECK_FALSE(disk.cache.Find("w1/0", "cpu, 4 threads", 42, "1.0").has_value());
  CHECK_FALSE(disk.cache.Find("w1/0", "cpu, 2 threads", 43, "1.0").has_value());
  CHECK_FALSE(disk.cache.Find("w1/0", "cpu, 2 threads", 42, "1.1").has_value());
}

TEST_CASE("a damaged profile is as good as none, and a new one replaces it") {
  Disk disk;
  REQUIRE(disk.cache.Store(Some()).ok());
  const auto names = disk.files.List("/state/profiles");
  REQUIRE(names.ok());
  REQUIRE(names->size() == 1);
  const std::string path = "/state/profiles/" + names->front();
  const std::string junk = "\xff\xff\xff no profile";
  const ByteSpan buffers[] = {AsBytes(junk)};
  REQUIRE(WriteFileAtomically(disk.files, path, buffers).ok());
  CHECK_FALSE(disk.cache.Find("w1/0", "cpu, 2 threads", 42, "1.0").has_value());
  REQUIRE(disk.cache.Store(Some()).ok());
  CHECK(disk.cache.Find("w1/0", "cpu, 2 threads", 42, "1.0").has_value());
}

TEST_CASE("cleared, nothing is found") {
  Disk disk;
  CHECK(disk.cache.Clear().ok());  // of a folder that is not there, too
  REQUIRE(disk.cache.Store(Some()).ok());
  REQUIRE(disk.cache.Clear().ok());
  CHECK_FALSE(disk.cache.Find("w1/0", "cpu, 2 threads", 42, "1.0").has_value());
}

}  // namespace
}  // namespace atl::worker

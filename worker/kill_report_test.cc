#include "worker/kill_report.h"

#include <catch2/catch.hpp>

#include "common/testing/files_simulated.h"

namespace atl::worker {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("worker_that_was_ended_for_memory_says_so_at_its_next_start_alone") {
  SimulatedFiles files(1);
  REQUIRE(files.MakeFolder("w").ok());
  const auto start = [&](const std::string& group, int64_t count) {
    const auto text = ReportMemoryKills(files, "w", {group, count}, {.memory_bytes = 1 << 20});
    REQUIRE(text.ok());
    return *text;
  };
  CHECK(start("/g", 2).empty());
  CHECK(start("/g", 2).empty());
  CHECK_THAT(start("/g", 3), Contains("ended 1 process of its control group /g"));
  CHECK(start("/g", 3).empty());
  CHECK(start("/h", 9).empty());
  CHECK_THAT(start("/h", 11), Contains("2 processes"));
}

}  // namespace
}  // namespace atl::worker

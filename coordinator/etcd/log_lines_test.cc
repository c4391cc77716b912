#include "coordinator/etcd/log_lines.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

LogEntry Line(int64_t sequence) { return {{sequence, "a", Severity::kInfo, "text"}, 1}; }

TEST_CASE("oldest_groups_go_and_at_least_the_kept_lines_stay") {
  LogLines log;
  for (int64_t first = 1; first < 100; first += 3) {
    log.Add({Line(first), Line(first + 1), Line(first + 2)});
  }
  REQUIRE(log.size() == 99);
  CHECK_FALSE(log.Trim(97));
  CHECK(log.Trim(20) == 79);
  CHECK(log.size() == 21);
  CHECK(log.Find({}, 100).front().event.sequence == 79);
  CHECK(log.Trim(0) == 97);
  CHECK(log.size() == 3);
}

}  // namespace
}  // namespace atl

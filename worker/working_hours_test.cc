#include "worker/working_hours.h"

#include <catch2/catch.hpp>

namespace atl::worker {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr int At(int hour, int minute, int second = 0) {
  return 3600 * hour + 60 * minute + second;
}

TEST_CASE("machine_works_over_midnight") {
  const WorkingHours night = *ParseWorkingHours("22:00-06:00");
  CHECK(GetWorkingTime(night, At(21, 59, 59)) == Duration(0));
  CHECK(GetWorkingTime(night, At(22, 0)) == hours(8));
  CHECK(GetWorkingTime(night, At(23, 59, 59)) == hours(6) + seconds(1));
  CHECK(GetWorkingTime(night, At(0, 0)) == hours(6));
  CHECK(GetWorkingTime(night, At(5, 55)) == kLeavingLead);
  CHECK(GetWorkingTime(night, At(6, 0)) == Duration(0));
  CHECK(GetWorkingTime(night, At(12, 0)) == Duration(0));
}

TEST_CASE("machine_works_within_a_day_or_always") {
  const WorkingHours noon = *ParseWorkingHours("12:15-12:45");
  CHECK(GetWorkingTime(noon, At(12, 14, 59)) == Duration(0));
  CHECK(GetWorkingTime(noon, At(12, 30)) == minutes(15));
  CHECK(GetWorkingTime(noon, At(12, 45)) == Duration(0));
  CHECK(GetWorkingTime(*ParseWorkingHours("00:00-00:00"), At(0, 0)) == hours(24));
}

TEST_CASE("what_are_no_hours_is_refused") {
  for (const char* text : {"", "22-6", "22:00-6:00", "24:00-06:00", "22:60-06:00", "22:00 06:00",
                           "22:00-06:00 ", "2a:00-06:00", "-1:00-06:00", "22:00-22:10"}) {
    CAPTURE(text);
    CHECK(absl::IsInvalidArgument(ParseWorkingHours(text).status()));
  }
}

}  // namespace
}  // namespace atl::worker

#include "worker/working_hours.h"

#include <algorithm>
#include <ctime>

#include "absl/strings/str_cat.h"

namespace atl::worker {
namespace {

constexpr int kMinutesOfDay = 24 * 60;
constexpr int kLeastMinutes = 15;

// The minute of the day of "22:05" at `at`; -1: there is no time.
int ParseMinute(const std::string& text, size_t at) {
  const auto digit = [&](size_t i) {
    const char c = text[at + i];
    return c >= '0' && c <= '9' ? c - '0' : 1000;
  };
  const int hour = 10 * digit(0) + digit(1);
  const int minute = 10 * digit(3) + digit(4);
  return text[at + 2] == ':' && hour < 24 && minute < 60 ? 60 * hour + minute : -1;
}

int CountMinutes(const WorkingHours& hours) {
  return (hours.end - hours.begin + kMinutesOfDay - 1) % kMinutesOfDay + 1;
}

}  // namespace

absl::StatusOr<WorkingHours> ParseWorkingHours(const std::string& text) {
  WorkingHours hours{-1, -1};
  if (text.size() == 11 && text[5] == '-') hours = {ParseMinute(text, 0), ParseMinute(text, 6)};
  if (hours.begin < 0 || hours.end < 0 || CountMinutes(hours) < kLeastMinutes) {
    return absl::InvalidArgumentError(absl::StrCat("must be like \"22:00-06:00\", and at least ",
                                                   kLeastMinutes, " minutes long"));
  }
  return hours;
}

Duration GetWorkingTime(const WorkingHours& hours, int second_of_day) {
  constexpr int kDay = kMinutesOfDay * 60;
  const int since_begin = (second_of_day - 60 * hours.begin + kDay) % kDay;
  return std::chrono::seconds(std::max(0, 60 * CountMinutes(hours) - since_begin));
}

int GetSecondOfDay() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return 3600 * local.tm_hour + 60 * local.tm_min + std::min(local.tm_sec, 59);
}

}  // namespace atl::worker

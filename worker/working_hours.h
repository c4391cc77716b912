// The hours of the day at which a machine works for the cluster, in its local time.
//
//   const WorkingHours hours = *ParseWorkingHours("22:00-06:00");
//   if (GetWorkingTime(hours, GetSecondOfDay()) <= kLeavingLead) ...   // not now, or about to end
//
// Pure but for GetSecondOfDay.

#ifndef ATOLL_WORKER_WORKING_HOURS_H_
#define ATOLL_WORKER_WORKING_HOURS_H_

#include <string>

#include "common/status.h"
#include "common/time.h"

namespace atl::worker {

// A worker begins to leave so long before the hours end.
inline constexpr Duration kLeavingLead = std::chrono::minutes(5);

// Minutes of the day; they end on the next day where `end` is not after `begin`.
struct WorkingHours {
  int begin = 0;
  int end = 0;
};

// "22:00-06:00"; at least 15 minutes long. The error says what is expected.
absl::StatusOr<WorkingHours> ParseWorkingHours(const std::string& text);

// Returns how much longer the machine works; 0: it does not.
Duration GetWorkingTime(const WorkingHours& hours, int second_of_day);

// By the machine's clock and time zone.
int GetSecondOfDay();

}  // namespace atl::worker

#endif  // ATOLL_WORKER_WORKING_HOURS_H_

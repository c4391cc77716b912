// The hours of the day at which a machine is lent to the cluster, in its local time.
//
//   const LentHours hours = *ParseLentHours("22:00-06:00");
//   if (GetLentTime(hours, GetSecondOfDay()) <= kLentLead) ...   // not now, or about to end
//
// Pure but for GetSecondOfDay.

#ifndef ATOLL_WORKER_LENT_HOURS_H_
#define ATOLL_WORKER_LENT_HOURS_H_

#include <string>

#include "common/status.h"
#include "common/time.h"

namespace atl::worker {

// A worker begins to leave so long before the hours end.
inline constexpr Duration kLentLead = std::chrono::minutes(5);

// Minutes of the day; they end on the next day where `end` is not after `begin`.
struct LentHours {
  int begin = 0;
  int end = 0;
};

// "22:00-06:00"; at least 15 minutes long. The error says what is expected.
absl::StatusOr<LentHours> ParseLentHours(const std::string& text);

// Returns how long the machine is still lent; 0: it is not.
Duration GetLentTime(const LentHours& hours, int second_of_day);

// By the machine's clock and time zone.
int GetSecondOfDay();

}  // namespace atl::worker

#endif  // ATOLL_WORKER_LENT_HOURS_H_

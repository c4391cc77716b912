// The coordinator's stored state: records.proto as plain structs, each under one key. The whole set
// of records gives back the whole durable state (CoordinatorCore::Recover).
//
// The shell keeps them in any store that can put and delete by key and apply many of both in one
// transaction. Instants are not stored: they mean nothing in another process. A caller that needs
// wall time (of EventRecords, say) adds it when it stores them.

#ifndef ATOLL_COORDINATOR_CORE_RECORDS_H_
#define ATOLL_COORDINATOR_CORE_RECORDS_H_

#include <cstdint>
#include <string>
#include <variant>

#include "common/ids.h"
#include "common/protocol/job_spec.h"
#include "coordinator/core/records.plain.h"

namespace atl {

// Returns the epoch of a store that is known to lack changes (it is restored from a backup, or
// begun anew under the old cluster's id): an epoch and a sequence beyond all that members can have
// seen.
EpochRecord AfterLoss(EpochRecord known, int64_t unix_time_ms);

inline constexpr int kValidationLossesMax = kValidationSetsMax + kDataSitesMax;

// A failed one may be resumed.
inline bool HasEnded(JobState state) {
  return state == JobState::kDone || state == JobState::kFailed || state == JobState::kCancelled;
}

inline constexpr size_t kLostMembersKept = 8;  // in IslandRecord::lost

enum class Severity { kDebug = -1, kInfo, kWarning, kError };

// A line of the log, which stores keep in their own way. Never read back by the core: a store may
// forget old ones. Key: sequence.
struct EventRecord {
  int64_t sequence = 0;  // grows, across restarts too; with gaps
  JobId job;             // empty: the cluster's
  Severity severity = Severity::kInfo;
  std::string text;

  bool operator==(const EventRecord&) const = default;
};

using StoreRecord = std::variant<EpochRecord, MemberRecord, JobRecord, ProgressRecord, IslandRecord,
                                 ContributionRecord, DecisionRecord, PenaltyRecord, LedgerRecord,
                                 EventRecord, PlanRecord, LinkRecord, DeviceRecord, RemovedRecord>;

// Put `record` under its key (replacing what is there), or delete what is under its key. To delete,
// only the fields of the key mean anything.
struct StoreWrite {
  StoreRecord record;
  bool erase = false;
};

// Sorts like the record's kind and key fields; the same for records that replace each other.
// "job/lm-1", "island/lm-1/000002", "ledger/lm-1/0000000000000004096".
std::string MakeRecordKey(const StoreRecord& record);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_RECORDS_H_

// Combines the descriptions of a job by the servers that hold it (adoption.h). Private to the core,
// and pure.

#ifndef ATOLL_COORDINATOR_CORE_SHARDS_WHOLE_JOB_H_
#define ATOLL_COORDINATOR_CORE_SHARDS_WHOLE_JOB_H_

#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/control.h"
#include "coordinator/core/records.h"

namespace atl::coord {

// Descriptions by server; what they point to outlives them.
using Descriptions = std::map<NodeId, const JobDescribed*>;

// The job that the servers' descriptions add up to.
struct WholeJob {
  const JobDefinition* definition = nullptr;
  std::vector<ShardDescriptor> shards;  // as in JobRecord, without servers' addresses
  Version version = kNoVersion;         // newest that a server has applied
  const CommitRound* newest = nullptr;  // that made it; null in version kNoVersion
  Generation generation = 0;            // newest that any server knows
  bool ended = false;
  int64_t placement = 0;
};

absl::Status Lacks(absl::string_view what);  // a failed precondition

// Selects the servers that hold shards, by what all report.
Descriptions SelectHolders(const WholeJob& whole, const Descriptions& by_server);

// An error names what is missing, contradicts itself, or is beyond what a job can have come to:
// what is added up can be stored, and counted on from.
absl::StatusOr<WholeJob> AddUp(const Descriptions& described);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_WHOLE_JOB_H_

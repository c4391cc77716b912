// Between the state and its records.

#ifndef ATOLL_COORDINATOR_CORE_FLUSH_H_
#define ATOLL_COORDINATOR_CORE_FLUSH_H_

#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/state.h"

namespace atl::coord {

// Adds a write for everything stored that changed in this Step.
void Flush(State& s);

// Adds the records of a job that go when it is removed: all but its own and that of its progress.
void AppendParts(const Job& job, std::vector<StoreRecord>* records);
// Every record, in the order of keys.
std::vector<StoreRecord> AllRecords(const State& s);

// The state that these records make, members not attached. See CoordinatorCore::Recover.
absl::Status Load(State& s, const std::vector<StoreRecord>& records);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_FLUSH_H_

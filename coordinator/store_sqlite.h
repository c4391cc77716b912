// The store in one SQLite file, "coordinator.db" of a state directory. Write-ahead log and
// synchronous=FULL: what Apply has returned OK for survives a power cut.
//
// One process at a time owns a state directory (a lock file says so). Files that are not ours,
// are damaged or were written by a newer Atoll are refused and left as they are; store_seal.h says
// how damage is found.

#ifndef ATOLL_COORDINATOR_STORE_SQLITE_H_
#define ATOLL_COORDINATOR_STORE_SQLITE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/store.h"

namespace atl {

inline constexpr int kStoreSchemaVersion = 4;

// Makes the directory (not its parents) and the file if they are missing. Reads everything:
// DataLoss, naming the file, the row and the remedy, where any byte differs from what was
// written, or changes that had been made are missing. A damaged line of the log is only warned
// of. `max_pages` limits the file (0: only the disk does); tests fill it.
absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& directory,
                                                       int64_t max_pages = 0);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_STORE_SQLITE_H_

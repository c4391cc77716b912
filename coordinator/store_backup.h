// Copies of a store: a backup is one SQLite file, which shows by itself that it is whole.

#ifndef ATOLL_COORDINATOR_STORE_BACKUP_H_
#define ATOLL_COORDINATOR_STORE_BACKUP_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl {

// Copies the database that a running Store has open (Store::path) to the new file `to`, as it is
// between two changes, and returns the number of the newest one. The store's own thread is not held
// up. On an error nothing is left at `to`. Any thread.
absl::StatusOr<int64_t> BackUpStore(const std::string& database, const std::string& to);

// Makes the state directory of `backup`: checks every byte of it, and takes an epoch that no
// coordinator has had since it was made, so that members listen to the restored one. The directory
// must hold no coordinator's state; on an error it is as it was.
absl::Status RestoreStore(const std::string& backup, const std::string& directory);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_STORE_BACKUP_H_

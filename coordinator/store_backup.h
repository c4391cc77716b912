// Copies of a store (backup and restore): a backup is one SQLite file, which shows by itself that
// it is whole.

#ifndef ATOLL_COORDINATOR_STORE_BACKUP_H_
#define ATOLL_COORDINATOR_STORE_BACKUP_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/store.h"

namespace atl {

// Copies the database that a running SQLite store has open to the new file `to` (Store::BackUp).
absl::StatusOr<int64_t> CopyDatabase(const std::string& database, const std::string& to);

// Makes such a file of these contents, at `to`.
absl::Status MakeBackup(const StoreContents& contents, const std::string& to);

// Reads the contents of a restored store: checks every byte of `backup`, and takes an epoch that no
// coordinator has had since it was made, so that members listen to the restored one. `scratch` is a
// folder that does not exist; it does not exist afterwards.
absl::StatusOr<StoreContents> ReadBackup(const std::string& backup, const std::string& scratch);

// Makes the state directory of `backup`, whose contents are as ReadBackup says. The directory must
// hold no coordinator's state; on an error it is as it was.
absl::Status RestoreStore(const std::string& backup, const std::string& directory);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_STORE_BACKUP_H_

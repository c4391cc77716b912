// `atoll backup`: the coordinator's state into a file, while it serves.

#ifndef ATOLL_CLI_BACKUP_H_
#define ATOLL_CLI_BACKUP_H_

#include <string>

#include "cli/commands.h"

namespace atl::cli {

// Writes FILE, which must not be there; it appears when it is whole and on the disk. Returns the
// exit code: 0 done, 1 failed.
int Backup(const Global& global, const std::string& path);

}  // namespace atl::cli

#endif  // ATOLL_CLI_BACKUP_H_

// The daemons' programs on this machine.

#ifndef ATOLL_CLI_RUN_PROGRAM_H_
#define ATOLL_CLI_RUN_PROGRAM_H_

#include <string>

#include "common/status.h"

namespace atl::cli {

// Path of "atoll-worker", for example: beside this program, else in $PATH.
absl::StatusOr<std::string> FindProgram(const std::string& name);

// Replaces this process by it. Returns only when that fails: the exit code.
int RunDaemon(const std::string& name, char** arguments);

}  // namespace atl::cli

#endif  // ATOLL_CLI_RUN_PROGRAM_H_

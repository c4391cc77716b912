// Shell completion for a program of CLI11, generated from its command tree: commands, flags, and
// the jobs of the coordinator where a command takes JOB.

#ifndef ATOLL_CLI_COMPLETION_H_
#define ATOLL_CLI_COMPLETION_H_

#include <CLI/CLI.hpp>
#include <string>

#include "common/status.h"

namespace atl::cli {

// The script to install for `shell`: bash, zsh or fish. The error names what else was requested.
absl::StatusOr<std::string> CompletionScript(const CLI::App& app, const std::string& shell);

}  // namespace atl::cli

#endif  // ATOLL_CLI_COMPLETION_H_

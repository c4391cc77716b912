// Messages for wrong command lines, in one form for all programs:
//
//   atoll-worker: there is no flag --thraeds; did you mean --threads?
//   atoll show: JOB is required; see atoll show --help

#ifndef ATOLL_COMMON_USAGE_H_
#define ATOLL_COMMON_USAGE_H_

#include <CLI/CLI.hpp>
#include <string>

namespace atl {

// The line above, without its end. `app` has just thrown `error`, and has the program's name.
std::string UsageError(const CLI::App& app, const CLI::ParseError& error);

// `--version` prints "PROGRAM VERSION" and ends the program.
void AddVersionFlag(CLI::App& app);

// Prints it on standard error, or the help or version that was requested on standard output. The
// exit code: 2 after a mistake, 0 after help.
int ExplainUsage(const CLI::App& app, const CLI::ParseError& error);

}  // namespace atl

#endif  // ATOLL_COMMON_USAGE_H_

// Where a program's flags come from: its command line, else the environment (ATOLL_PEER_ENDPOINT
// for
// --peer-endpoint), else a TOML file with a line a flag (peer-endpoint = "tcp://10.0.0.7:7200").
//
//   try {
//     ParseFlags(app, argc, argv, "/etc/atoll/worker.toml");
//   } catch (const CLI::ParseError& error) {
//     return ExplainUsage(app, error);
//   }

#ifndef ATOLL_COMMON_FLAG_SOURCES_H_
#define ATOLL_COMMON_FLAG_SOURCES_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "common/status.h"

namespace atl {

// Returns the flags that the command line lacks, as words to put before it. `environment` is
// getenv; `toml` the text of the file `path`, whose errors name the line. Covers `app`'s own flags,
// not its commands'.
absl::StatusOr<std::vector<std::string>> FlagsFromElsewhere(
    const CLI::App& app, const std::vector<std::string>& given,
    const std::function<const char*(const char*)>& environment, const std::string& path,
    const std::string& toml);

// Parses all of them, and of commands' flags what the environment has (ATOLL_SUBMIT_WATCH=true for
// `submit --watch`). Adds --config FILE (or ATOLL_CONFIG), which is read instead of
// `default_config`; that one need not be there. Empty: no file is read and the flag is not added.
// Every program begins here: the variables of its proxy are prepared too (proxy.h).
void ParseFlags(CLI::App& app, int argc, const char* const* argv,
                const std::string& default_config);

}  // namespace atl

#endif  // ATOLL_COMMON_FLAG_SOURCES_H_

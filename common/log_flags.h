// Flags of every daemon's log (logging.h): what is written, and in which form.
//
// `--log-format json` writes an object a line: {"time": "2026-11-21T06:20:07.125Z", "severity":
// "warning", "part": "store", "text": "disk is nearly full"}. Under systemd a line of either form
// begins with its priority, which the journal takes off (sd-daemon(3)).

#ifndef ATOLL_COMMON_LOG_FLAGS_H_
#define ATOLL_COMMON_LOG_FLAGS_H_

#include <CLI/CLI.hpp>

namespace atl {

// The flags take effect where they are parsed. The names are checked there.
void AddLogFlags(CLI::App& app);

}  // namespace atl

#endif  // ATOLL_COMMON_LOG_FLAGS_H_

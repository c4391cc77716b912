// The confirmation of a command whose effect cannot be undone.

#ifndef ATOLL_CLI_CONFIRM_H_
#define ATOLL_CLI_CONFIRM_H_

#include <string>

#include "common/status.h"

namespace atl::cli {

// OK: `yes` (--yes) is given, or the user at the terminal types y. `what` says what the command
// will do: "deletes lm-1 (done, round 162)". Without a terminal on standard input --yes is
// required: INVALID_ARGUMENT. ABORTED: the user declines.
absl::Status Confirm(const std::string& command, const std::string& what, bool yes);

// `App` is CLI::App.
template <class App>
void AddYesFlag(App& app, bool* yes) {
  app.add_flag("--yes", *yes, "do it without a confirmation; required where no terminal is");
}

// 2 after INVALID_ARGUMENT, which is wrong usage, else 1.
int ConfirmExitCode(const absl::Status& refused);

}  // namespace atl::cli

#endif  // ATOLL_CLI_CONFIRM_H_

#include "cli/confirm.h"

#include <unistd.h>

#include <iostream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace atl::cli {

absl::Status Confirm(const std::string& command, const std::string& what, bool yes) {
  if (yes) return absl::OkStatus();
  if (isatty(STDIN_FILENO) != 1 || isatty(STDERR_FILENO) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(command, " ", what, "; add --yes, since no terminal is there to confirm it"));
  }
  std::cerr << "atoll: " << command << " " << what << "\nGo on? [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  answer = absl::AsciiStrToLower(absl::StripAsciiWhitespace(answer));
  if (answer == "y" || answer == "yes") return absl::OkStatus();
  return absl::AbortedError("nothing was changed");
}

int ConfirmExitCode(const absl::Status& refused) {
  return absl::IsInvalidArgument(refused) ? 2 : 1;
}

}  // namespace atl::cli

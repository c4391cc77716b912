// Two examples of each command, for its help and its manual page.

#ifndef ATOLL_CLI_EXAMPLES_H_
#define ATOLL_CLI_EXAMPLES_H_

#include <string>

#include "absl/strings/string_view.h"

namespace atl::cli {

// "Examples:\n  atoll submit job.toml --watch\n  ..."; empty: the command has none.
std::string ExamplesText(absl::string_view command);

}  // namespace atl::cli

#endif  // ATOLL_CLI_EXAMPLES_H_

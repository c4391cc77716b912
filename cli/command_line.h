// The arguments of `atoll`: its commands and their flags.

#ifndef ATOLL_CLI_COMMAND_LINE_H_
#define ATOLL_CLI_COMMAND_LINE_H_

namespace atl::cli {

// Parses and runs one command. The process's exit code: 0 done, 1 failed, 2 usage.
int RunCommandLine(int argc, char** argv);

}  // namespace atl::cli

#endif  // ATOLL_CLI_COMMAND_LINE_H_

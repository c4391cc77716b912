// The `atoll` command: see README.md. Exit codes: 0 done, 1 failed, 2 usage.

#include "cli/command_line.h"

int main(int argc, char** argv) { return atl::cli::RunCommandLine(argc, argv); }

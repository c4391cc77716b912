// `atoll verify`: whether a job's decisions follow each other as they were made, and whether their
// contributions are signed by members of the cluster.

#ifndef ATOLL_CLI_TRUST_VERIFY_H_
#define ATOLL_CLI_TRUST_VERIFY_H_

#include <string>

#include "cli/commands.h"

namespace atl::cli {

struct VerifyFlags {
  std::string job;     // its id, or its beginning
  std::string backup;  // a file of `atoll backup`; empty: what the coordinator hands out
};
// Exit code 1: a round does not fit; standard error names the first one.
int VerifyCommand(const Global& global, const VerifyFlags& flags);

}  // namespace atl::cli

#endif  // ATOLL_CLI_TRUST_VERIFY_H_

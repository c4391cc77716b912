// The command line of atoll-paramserver.

#ifndef ATOLL_PARAMSERVER_FLAGS_H_
#define ATOLL_PARAMSERVER_FLAGS_H_

#include <optional>

#include "paramserver/server.h"

namespace atl::ps {

// The options, or the code to exit with: 0 after --help, 2 after a usage error, which has been
// explained on standard error.
struct ParsedFlags {
  std::optional<DaemonOptions> options;
  int exit_code = 2;
};
ParsedFlags ParseFlags(int argc, const char* const* argv);

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_FLAGS_H_

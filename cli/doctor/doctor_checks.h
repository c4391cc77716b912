// Checks of `atoll doctor` on this machine. Each check measures, and returns what it found with a
// remedy where something will go wrong. Nothing is left behind; every wait is bounded by a few
// seconds.

#ifndef ATOLL_CLI_DOCTOR_DOCTOR_CHECKS_H_
#define ATOLL_CLI_DOCTOR_DOCTOR_CHECKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/machine/limits.h"
#include "common/net/control/tls.h"
#include "common/status.h"

namespace atl::cli {

enum class Level { kOk, kWarning, kProblem };

struct Finding {
  Level level = Level::kOk;
  std::string check;   // what was looked at, a word or two
  std::string found;   // what was seen, with its figures
  std::string remedy;  // empty where level is kOk
};

// Cores that a daemon may use, and the vector instructions that the kernels use.
Finding CheckCpu(const MachineLimits& limits);
Finding CheckMemory(const MachineLimits& limits);
Finding CheckFileLimit();  // open files

// Free space, and how long a write takes to be durable; makes and removes a file there.
Finding CheckFolder(const std::string& folder);

// Checks whether a daemon could listen at "HOST:PORT".
Finding CheckListen(const std::string& address);

// The certificates' files, and their dates at `now_unix_s`. `check` names them.
Finding CheckTls(const std::string& check, const TlsOptions& tls, const std::string& address,
                 int64_t now_unix_s);

// Checks the identities that daemons keep in a folder of state: a member's identity, a
// coordinator's authority.
std::vector<Finding> CheckIdentities(const std::string& state_dir, int64_t now_unix_s);

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};
// "HOST:PORT" or "[HOST]:PORT". The error says what the port must be.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);

// Resolves the host and connects by TCP five times: the shortest time, and the path's MTU.
Finding CheckRoute(const std::string& what, const std::string& address);

}  // namespace atl::cli

#endif  // ATOLL_CLI_DOCTOR_DOCTOR_CHECKS_H_

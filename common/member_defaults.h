// Defaults of a member's flags.

#ifndef ATOLL_COMMON_MEMBER_DEFAULTS_H_
#define ATOLL_COMMON_MEMBER_DEFAULTS_H_

#include <unistd.h>

#include <array>
#include <string>

namespace atl {

inline constexpr char kDefaultCoordinator[] = "127.0.0.1:7000";

// A member's name. Empty where the system does not say it.
inline std::string HostName() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace atl

#endif  // ATOLL_COMMON_MEMBER_DEFAULTS_H_

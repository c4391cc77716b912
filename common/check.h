// ATOLL_CHECK: for what cannot happen unless Atoll has a bug. It stays in release builds. What can
// happen (bad input, a dead peer, a full disk) is an absl::Status instead.

#ifndef ATOLL_COMMON_CHECK_H_
#define ATOLL_COMMON_CHECK_H_

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace atl::internal {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition,
                                     const std::string& detail) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s%s%s\n", file, line, condition,
               detail.empty() ? "" : ": ", detail.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace atl::internal

// ATOLL_CHECK(condition) or ATOLL_CHECK(condition, parts of a message...).
#define ATOLL_CHECK(condition, ...)                                                              \
  do {                                                                                           \
    if (!(condition)) [[unlikely]] {                                                             \
      ::atl::internal::CheckFailed(__FILE__, __LINE__, #condition, ::absl::StrCat(__VA_ARGS__)); \
    }                                                                                            \
  } while (false)

#endif  // ATOLL_COMMON_CHECK_H_

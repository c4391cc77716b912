// Names what a thread is at, for the mark of a crash (crash_mark.h).

#ifndef ATOLL_COMMON_CRASH_SCOPE_H_
#define ATOLL_COMMON_CRASH_SCOPE_H_

#include <array>

#include "absl/strings/string_view.h"

namespace atl {

// Until it ends; the innermost one counts. At most 256 bytes of it.
class CrashScope {
 public:
  explicit CrashScope(absl::string_view what);
  ~CrashScope();
  CrashScope(const CrashScope&) = delete;
  CrashScope& operator=(const CrashScope&) = delete;

  // Returns the innermost scope's name on this thread; null: there is none. Async-signal-safe.
  static const char* current();

 private:
  std::array<char, 257> what_;
  const char* before_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_CRASH_SCOPE_H_

// Remembers the input that a process was handling when it ended, for its next start, so that a
// stored input which ends the process when it is handled does not end it at each start.
//
//   const std::string before = WatchCrashes(folder).value();   // is to be set aside
//   { const CrashScope scope("lm-1"); ... }                    // handles it
//
// The name is written before the handling and removed after it (crash_scope.h), so that no kind of
// end escapes: a signal, a stack that is too deep, the kernel's choice when memory is short. A
// crash (a fatal signal of the process itself, a failed check) is certain to be of what its thread
// was at. Any other end may be an operator's or a machine's: what a process was at counts when it
// is found so three starts in a row.

#ifndef ATOLL_COMMON_CRASH_MARK_H_
#define ATOLL_COMMON_CRASH_MARK_H_

#include <string>

#include "absl/status/statusor.h"

namespace atl {

inline constexpr int kDeathsUntilBlamed = 3;

// Returns the name of what ended the process before, or the last three; empty: nothing that has a
// name. From here on the file `crashed-at` in this folder says what this process is at. Once a
// process; a later call replaces the folder.
absl::StatusOr<std::string> WatchCrashes(const std::string& folder);

}  // namespace atl

#endif  // ATOLL_COMMON_CRASH_MARK_H_

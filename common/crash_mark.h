// Records the input that a process was handling when it crashed, for its next start, so that a
// stored input which ends the process when it is handled does not end it at each start.
//
//   const std::string before = TakeCrashMark(folder).value();  // is to be set aside
//   WatchCrashes(folder);
//   { const CrashScope scope("lm-1"); ... }                    // handles it
//
// Nothing is written but by a crash (a fatal signal of the process itself, a failed check), in the
// thread that crashes: a process that is killed was at nothing.

#ifndef ATOLL_COMMON_CRASH_MARK_H_
#define ATOLL_COMMON_CRASH_MARK_H_

#include <string>

#include "absl/status/statusor.h"

namespace atl {

// From here on a crash writes the file `crashed-at` in this folder. Once a process; a later call
// replaces the folder. Where that is not possible it logs why.
void WatchCrashes(const std::string& folder);

// Returns the name of what the process before was handling when it crashed, and deletes the file.
// Empty: it did not crash, or it was handling nothing that has a name.
absl::StatusOr<std::string> TakeCrashMark(const std::string& folder);

}  // namespace atl

#endif  // ATOLL_COMMON_CRASH_MARK_H_

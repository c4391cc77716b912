// Names what a thread is at, for the mark of a crash (crash_mark.h).

#ifndef ATOLL_COMMON_CRASH_SCOPE_H_
#define ATOLL_COMMON_CRASH_SCOPE_H_

#include <array>
#include <cstddef>

#include "absl/strings/string_view.h"

namespace atl {

// The file of names has so many slots of so many bytes, each with a name that a zero ends. The
// first is for who crashes, the others are for threads; a thread that finds none free has no mark.
inline constexpr int kCrashSlots = 33;
inline constexpr size_t kCrashSlotBytes = 256;

// Until it ends; the innermost one counts. At most 255 bytes of it. Where WriteCrashNames was
// called, the name is in the file before the constructor returns: whatever ends the process then,
// the file says what it was at. That is one write to the system's memory, and one when it ends;
// none for an empty name, or where the scope around it has the same.
class CrashScope {
 public:
  explicit CrashScope(absl::string_view what);
  ~CrashScope();
  CrashScope(const CrashScope&) = delete;
  CrashScope& operator=(const CrashScope&) = delete;

 private:
  std::array<char, kCrashSlotBytes> what_;
  const char* before_;
};

// From here on names are written to this file, which stays open. What cannot be written there has
// no mark, and is handled all the same.
void WriteCrashNames(int fd);

// Writes the innermost scope's name of this thread, if any, into the first slot.
// Async-signal-safe.
void WriteCrashedName();

}  // namespace atl

#endif  // ATOLL_COMMON_CRASH_SCOPE_H_

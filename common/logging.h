// One line per event on standard error:
//
//   2026-11-21T06:20:07.125Z WARN  store   disk is nearly full: 12 MiB left in /var/lib/atoll
//
// Usage: LogInfo("attach", "connected to ", address). Arguments are as for absl::StrCat. Control
// characters in the text are shown as \xNN, so that bytes from the network cannot forge lines.
// Thread-safe; a line is one write(2).

#ifndef ATOLL_COMMON_LOGGING_H_
#define ATOLL_COMMON_LOGGING_H_

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status.h"

namespace atl {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// "debug", "info", "warning" or "error"; what is below is not written. The default is info.
absl::Status SetLogLevel(absl::string_view name);
bool Logs(LogLevel level);

// `part` names the component, in a word.
void Log(LogLevel level, absl::string_view part, absl::string_view text);

// The line as Log writes it, without the time; for tests.
std::string LogText(LogLevel level, absl::string_view part, absl::string_view text);

template <class... Args>
void LogDebug(absl::string_view part, const Args&... args) {
  if (Logs(LogLevel::kDebug)) Log(LogLevel::kDebug, part, absl::StrCat(args...));
}
template <class... Args>
void LogInfo(absl::string_view part, const Args&... args) {
  if (Logs(LogLevel::kInfo)) Log(LogLevel::kInfo, part, absl::StrCat(args...));
}
template <class... Args>
void LogWarning(absl::string_view part, const Args&... args) {
  if (Logs(LogLevel::kWarning)) Log(LogLevel::kWarning, part, absl::StrCat(args...));
}
template <class... Args>
void LogError(absl::string_view part, const Args&... args) {
  if (Logs(LogLevel::kError)) Log(LogLevel::kError, part, absl::StrCat(args...));
}

}  // namespace atl

#endif  // ATOLL_COMMON_LOGGING_H_

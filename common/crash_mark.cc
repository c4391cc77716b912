#include "common/crash_mark.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/crash_scope.h"
#include "common/files.h"
#include "common/logging.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr char kName[] = "/crashed-at";
constexpr size_t kPathBytesMax = 4096;
constexpr int64_t kMarkBytesMax = 256;

char mark_path[kPathBytesMax];  // read by the handler

// Async-signal-safe. The signal's own effect follows: the handler is reset by then.
void WriteMark(int) {
  const char* const what = CrashScope::current();
  if (what == nullptr || *what == '\0') return;
  const int kept = errno;
  const int fd = open(mark_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd >= 0) {
    const ssize_t written = write(fd, what, strlen(what));
    static_cast<void>(written);  // the process ends: there is nothing else to try
    close(fd);
  }
  errno = kept;
}

}  // namespace

void WatchCrashes(const std::string& folder) {
  const std::string path = folder + kName;
  if (path.size() >= kPathBytesMax) {
    return LogWarning("crashes", path, ": is too long a path, no crash is marked");
  }
  std::copy_n(path.c_str(), path.size() + 1, mark_path);
  struct sigaction action = {};
  action.sa_handler = WriteMark;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    if (sigaction(signal, &action, nullptr) != 0) {
      LogWarning("crashes", "signal ", signal, " cannot be watched: ", strerror(errno));
    }
  }
}

absl::StatusOr<std::string> TakeCrashMark(const std::string& folder) {
  const std::string path = folder + kName;
  const auto bytes = RealFiles().Read(path, kMarkBytesMax);
  if (absl::IsNotFound(bytes.status())) return std::string();
  ATOLL_RETURN_IF_ERROR(bytes.status());
  ATOLL_RETURN_IF_ERROR(RealFiles().Remove(path));
  return std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size());
}

}  // namespace atl

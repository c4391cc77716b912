#include "common/crash_mark.h"

#include <fcntl.h>
#include <signal.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/crash_scope.h"
#include "common/files.h"
#include "common/logging.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr char kName[] = "/crashed-at";
constexpr size_t kSlotsBytes = kCrashSlots * kCrashSlotBytes;
// Behind the slots, a line for each name that a process was at when it ended: "<deaths> <name>".
constexpr int64_t kBytesMax = 2 * static_cast<int64_t>(kSlotsBytes) + 4096;

// By name: processes in a row that ended while they were at it.
using Deaths = std::map<std::string, int>;

std::string NameIn(absl::string_view file, int slot) {
  const absl::string_view text =
      file.substr(static_cast<size_t>(slot) * kCrashSlotBytes, kCrashSlotBytes);
  return std::string(text.substr(0, text.find('\0')));
}

// Returns what ended the process that left this file; `deaths` are those to write into the next.
std::string FindCulprit(const std::string& file, Deaths& deaths) {
  if (file.size() < kSlotsBytes) return NameIn(file, 0);  // of an earlier version, or none
  Deaths before;
  for (const absl::string_view line : absl::StrSplit(file.substr(kSlotsBytes), '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    int count = 0;
    if (absl::SimpleAtoi(parts.first, &count)) before[std::string(parts.second)] = count;
  }
  std::string blamed = NameIn(file, 0);
  for (int slot = 1; slot < kCrashSlots; ++slot) {
    const std::string name = NameIn(file, slot);
    if (name.empty() || name.find('\n') != std::string::npos) continue;
    const auto found = before.find(name);
    deaths[name] = found == before.end() ? 1 : found->second + 1;
    if (blamed.empty() && deaths[name] >= kDeathsUntilBlamed) blamed = name;
  }
  deaths.erase(blamed);
  return blamed;
}

// Async-signal-safe. The signal's own effect follows: the handler is reset by then.
void OnCrash(int) { WriteCrashedName(); }

}  // namespace

absl::StatusOr<std::string> WatchCrashes(const std::string& folder) {
  const std::string path = folder + kName;
  std::string file;
  const auto bytes = RealFiles().Read(path, kBytesMax);
  if (bytes.ok()) file.assign(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  if (!bytes.ok() && !absl::IsNotFound(bytes.status())) return bytes.status();
  Deaths deaths;
  std::string blamed = FindCulprit(file, deaths);
  file.assign(kSlotsBytes, '\0');
  for (const auto& [name, count] : deaths) absl::StrAppend(&file, count, " ", name, "\n");
  ATOLL_RETURN_IF_ERROR(
      WriteFileAtomically(RealFiles(), path, std::vector<ByteSpan>{AsBytes(file)}));
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  WriteCrashNames(fd);
  struct sigaction action = {};
  action.sa_handler = OnCrash;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    if (sigaction(signal, &action, nullptr) != 0) {
      LogWarning("crashes", "signal ", signal, " cannot be watched: ", strerror(errno));
    }
  }
  return blamed;
}

}  // namespace atl

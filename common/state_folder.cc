#include "common/state_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "absl/strings/numbers.h"
#include "common/files.h"
#include "common/logging.h"

namespace atl {
namespace {

absl::Status CannotWrite() {
  return absl::UnavailableError(absl::StrCat("cannot be written: ", std::strerror(errno)));
}

absl::StatusOr<int> OpenLock(const std::string& folder) {
  ATOLL_RETURN_IF_ERROR(RealFiles().MakeFolder(folder));
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const int lock = open((folder + "/lock").c_str(), kFlags, 0644);
  if (lock < 0 && errno != ELOOP) return CannotWrite();
  struct stat info;
  // Whatever else stands there, or has another name too, is not ours to write.
  if (lock < 0 || fstat(lock, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink != 1) {
    if (lock >= 0) close(lock);
    return absl::FailedPreconditionError(
        absl::StrCat(folder, "/lock: is a link or no regular file; remove it"));
  }
  return lock;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateFolder>> StateFolder::Open(const std::string& path) {
  const std::string flag = absl::StrCat("--state-dir ", path);
  const absl::StatusOr<int> lock = OpenLock(path);
  if (!lock.ok()) return Annotate(lock.status(), flag);
  std::unique_ptr<StateFolder> folder(new StateFolder(path, *lock));
  ATOLL_RETURN_IF_ERROR(Annotate(folder->Lock(), flag));
  return folder;
}

StateFolder::~StateFolder() { close(lock_); }

absl::Status StateFolder::Lock() {
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    std::array<char, 24> holder = {};
    if (pread(lock_, holder.data(), holder.size() - 1, 0) < 0) holder[0] = '\0';
    return absl::FailedPreconditionError(absl::StrCat(
        "process ", holder.data(), " runs on it; give every process a folder of its own"));
  }
  const std::string pid = std::to_string(getpid());
  if (ftruncate(lock_, 0) != 0 || pwrite(lock_, pid.data(), pid.size(), 0) < 0) {
    return CannotWrite();
  }
  return absl::OkStatus();
}

namespace {

// The number and its complement, which shows that both are as they were written.
std::string FormatIncarnation(Incarnation incarnation) {
  return absl::StrCat(incarnation, " ", ~incarnation, "\n");
}

// 0: it is damaged. A number alone is of an earlier version.
Incarnation ParseIncarnation(absl::string_view text) {
  Incarnation found = 0;
  const absl::string_view number = text.substr(0, text.find_first_of(" \n"));
  if (!absl::SimpleAtoi(number, &found) || found < 0 || found > kClockIncarnationMax) return 0;
  const bool whole = text == FormatIncarnation(found) || text == absl::StrCat(found, "\n");
  return whole ? found : 0;
}

}  // namespace

absl::StatusOr<Incarnation> StateFolder::NextIncarnation() {
  const std::string path = path_ + "/incarnation";
  Incarnation last = 0;  // stays where the file is missing or damaged: then the clock serves alone
  const auto bytes = RealFiles().Read(path, 64);
  if (bytes.ok() || absl::IsOutOfRange(bytes.status())) {  // longer than any number
    if (bytes.ok()) {
      last = ParseIncarnation({reinterpret_cast<const char*>(bytes->data()), bytes->size()});
    }
    if (last == 0) LogWarning("state", path, ": is damaged; the clock gives the incarnation alone");
  } else if (!absl::IsNotFound(bytes.status())) {
    return bytes.status();
  }
  const auto clock = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  const Incarnation next = std::max<Incarnation>(last + 1, clock.count());
  const std::string text = FormatIncarnation(next);
  ATOLL_RETURN_IF_ERROR(WriteFileAtomically(RealFiles(), path, std::array{AsBytes(text)}));
  return next;
}

}  // namespace atl

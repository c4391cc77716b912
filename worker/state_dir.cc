#include "worker/state_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace atl::worker {
namespace {

absl::Status Errno(absl::string_view what, const std::string& path) {
  const int error = errno;
  return absl::UnavailableError(absl::StrCat("cannot ", what, " ", path, ": ", strerror(error)));
}

absl::Status SyncPath(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags);
  if (fd < 0) return Errno("open", path);
  const bool ok = fsync(fd) == 0;
  const absl::Status status = ok ? absl::OkStatus() : Errno("sync", path);
  close(fd);
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateDir>> StateDir::Open(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--state-dir ", path, ": cannot be made: ", error.message()));
  }
  const std::string lock = path + "/lock";
  const int fd = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return Annotate(Errno("open", lock), "--state-dir");
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    close(fd);
    return absl::FailedPreconditionError(absl::StrCat(
        "--state-dir ", path, ": another worker uses it; give each worker a folder of its own"));
  }
  std::unique_ptr<StateDir> state(new StateDir(path, fd));
  ATOLL_RETURN_IF_ERROR(Annotate(state->TakeIncarnation(), "--state-dir"));
  return state;
}

StateDir::~StateDir() { close(lock_fd_); }

absl::Status StateDir::TakeIncarnation() {
  const std::string path = path_ + "/incarnation";
  Incarnation last = 0;
  std::ifstream(path) >> last;  // unreadable or damaged: the clock serves alone
  const auto clock = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  incarnation_ = std::max<Incarnation>(last + 1, clock.count());
  std::ofstream out(path + ".new", std::ios::trunc);
  out << incarnation_ << "\n";
  out.close();
  if (!out) return Errno("write", path + ".new");
  ATOLL_RETURN_IF_ERROR(SyncPath(path + ".new", O_RDONLY));
  if (rename((path + ".new").c_str(), path.c_str()) != 0) return Errno("rename", path + ".new");
  return SyncPath(path_, O_RDONLY | O_DIRECTORY);
}

}  // namespace atl::worker

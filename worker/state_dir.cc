#include "worker/state_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/files.h"

namespace atl::worker {
namespace {

absl::Status Errno(absl::string_view what, const std::string& path) {
  const int error = errno;
  return absl::UnavailableError(absl::StrCat("cannot ", what, " ", path, ": ", strerror(error)));
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
  const std::string text = absl::StrCat(incarnation_, "\n");
  return WriteFileAtomically(RealFiles(), path, std::array{AsBytes(text)});
}

}  // namespace atl::worker

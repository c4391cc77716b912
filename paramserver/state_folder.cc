#include "paramserver/state_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/files.h"
#include "common/status.h"

namespace atl::ps {

absl::StatusOr<std::unique_ptr<StateFolder>> StateFolder::Open(const std::string& path) {
  ATOLL_RETURN_IF_ERROR(RealFiles().MakeFolder(path));
  const std::string lock_path = path + "/lock";
  const int lock = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock < 0) {
    return absl::UnavailableError(
        absl::StrCat("--state-dir ", path, ": cannot be written: ", std::strerror(errno)));
  }
  auto folder = std::unique_ptr<StateFolder>(new StateFolder(path, lock));
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    char holder[24] = {};
    if (pread(lock, holder, sizeof(holder) - 1, 0) < 0) holder[0] = '\0';
    return absl::FailedPreconditionError(
        absl::StrCat("--state-dir ", path, ": process ", holder,
                     " uses it; every parameter server needs a folder of its own"));
  }
  const std::string pid = std::to_string(getpid());
  if (ftruncate(lock, 0) != 0 || pwrite(lock, pid.data(), pid.size(), 0) < 0) {
    return absl::UnavailableError(
        absl::StrCat("--state-dir ", path, ": cannot be written: ", std::strerror(errno)));
  }
  return folder;
}

StateFolder::~StateFolder() { close(lock_); }

absl::StatusOr<Incarnation> StateFolder::NextIncarnation() {
  const std::string path = path_ + "/incarnation";
  Incarnation last = 0;
  const auto bytes = RealFiles().Read(path, 64);
  if (bytes.ok()) {
    const absl::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    if (!absl::SimpleAtoi(text, &last)) {
      return absl::DataLossError(absl::StrCat(path, ": is not a number; remove the file"));
    }
  } else if (bytes.status().code() != absl::StatusCode::kNotFound) {
    return bytes.status();
  }
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  const Incarnation next = std::max<Incarnation>(
      last + 1, std::chrono::duration_cast<std::chrono::milliseconds>(wall).count());
  const std::string text = absl::StrCat(next, "\n");
  const ByteSpan piece = AsBytes(text);
  ATOLL_RETURN_IF_ERROR(WriteFileAtomically(RealFiles(), path, std::span(&piece, 1)));
  return next;
}

}  // namespace atl::ps

#include "worker/data/token_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/files.h"
#include "common/logging.h"
#include "common/paths.h"
#include "common/status.h"

namespace atl {
namespace {

namespace fs = std::filesystem;

constexpr char kWhole[] = "tokens-", kUnfinished[] = "making-";

absl::StatusOr<int64_t> CountBytes(const std::string& folder) {
  int64_t bytes = 0;
  ATOLL_ASSIGN_OR_RETURN(const auto names, RealFiles().List(folder));
  for (const std::string& name : names) {
    ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath(absl::StrCat(folder, "/", name)));
    if (found) bytes += found->identity.bytes;
  }
  return bytes;
}

// Holds a folder's lock while it exists: a maker those of what it makes, and for a moment the
// cache's while it makes or removes folders. The kernel releases a dead process's.
class FolderLock {
 public:
  FolderLock(const std::string& folder, int operation)
      : fd_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    while (fd_ >= 0 && !(held_ = flock(fd_, operation) == 0) && errno == EINTR) continue;
  }
  ~FolderLock() {
    if (fd_ >= 0) close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  bool held() const { return held_; }

 private:
  const int fd_;
  bool held_ = false;
};

// The cache goes on: it only becomes larger than it should be.
void WarnAbout(const absl::Status& room) {
  if (!room.ok()) LogWarning("data", "the cache of tokens makes no room: ", room.message());
}

}  // namespace

TokenCache::TokenCache(std::string folder, int64_t bytes_max)
    : folder_(std::move(folder)), bytes_max_(bytes_max) {}

absl::StatusOr<std::string> TokenCache::GetOrMake(
    uint64_t key, const std::function<absl::Status(const std::string&)>& make) {
  const fs::path whole = fs::path(folder_) / absl::StrFormat("%s%016x", kWhole, key);
  std::error_code error;
  ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath((whole / kCacheIndexName).string()));
  if (found) {
    fs::last_write_time(whole / kCacheIndexName, fs::file_time_type::clock::now(), error);
    return whole.string();
  }
  // Made beside and renamed: several workers of this machine may come here at once.
  fs::create_directories(folder_, error);
  std::string made = (fs::path(folder_) / absl::StrCat(kUnfinished, "XXXXXX")).string();
  std::optional<FolderLock> making;
  {
    const FolderLock lock(folder_, LOCK_EX);
    if (mkdtemp(made.data()) == nullptr) {
      return absl::ErrnoToStatus(
          errno, absl::StrCat("data cache ", folder_, " (set ATOLL_DATA_CACHE to another folder)"));
    }
    making.emplace(made, LOCK_EX);
  }
  WarnAbout(MakeRoom(whole.string()));
  const absl::Status status = make(made);
  if (status.ok()) fs::rename(made, whole, error);
  if (!status.ok() || error) fs::remove_all(made, error);
  ATOLL_RETURN_IF_ERROR(status);
  // Where the rename failed, another worker must have been faster.
  ATOLL_ASSIGN_OR_RETURN(const auto there, FindPath((whole / kCacheIndexName).string()));
  if (!there)
    return absl::UnavailableError(absl::StrCat("data cache ", whole.string(), ": cannot be made"));
  WarnAbout(MakeRoom(whole.string()));
  return whole.string();  // ours, or that of a worker that was faster
}

absl::Status TokenCache::MakeRoom(const std::string& used) const {
  struct Kept {
    int64_t used_ns;
    int64_t bytes;
    std::string path;
  };
  std::vector<Kept> kept;
  int64_t bytes = 0;
  std::error_code error;
  const FolderLock lock(folder_, LOCK_EX);
  if (!lock.held()) return absl::UnavailableError(absl::StrCat(folder_, ": cannot be locked"));
  ATOLL_ASSIGN_OR_RETURN(const auto names, RealFiles().List(folder_));
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(folder_, "/", name);
    if (absl::StartsWith(name, kUnfinished)) {
      if (FolderLock(path, LOCK_EX | LOCK_NB).held())
        fs::remove_all(path, error);  // its maker died
      continue;
    }
    if (!absl::StartsWith(name, kWhole) || path == used) continue;
    ATOLL_ASSIGN_OR_RETURN(const auto index, FindPath(absl::StrCat(path, "/", kCacheIndexName)));
    ATOLL_ASSIGN_OR_RETURN(const int64_t held, CountBytes(path));
    kept.push_back({index ? index->identity.modified_ns : 0, held, path});
    bytes += held;
  }
  std::sort(kept.begin(), kept.end(),
            [](const Kept& a, const Kept& b) { return a.used_ns < b.used_ns; });
  for (const Kept& old : kept) {
    if (bytes <= bytes_max_) break;
    fs::remove_all(old.path, error);
    if (!error) bytes -= old.bytes;
  }
  return absl::OkStatus();
}

}  // namespace atl

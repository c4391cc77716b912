#include "common/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "common/status.h"

namespace atl {
namespace {

absl::Status SystemError(absl::string_view what, const std::string& path, int error) {
  const std::string message = absl::StrCat(path, ": cannot ", what, ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) {
    return absl::ResourceExhaustedError(absl::StrCat(message, "; free some space"));
  }
  return error == ENOENT ? absl::NotFoundError(message) : absl::UnavailableError(message);
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : fd_(open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  const int fd_;
};

class RealAppendFile : public AppendFile {
 public:
  explicit RealAppendFile(const std::string& path)
      : path_(path), file_(path, O_WRONLY | O_CREAT | O_APPEND) {}

  absl::Status Open() {
    if (!file_.ok()) return SystemError("open", path_, errno);
    struct stat info;
    if (fstat(file_.get(), &info) != 0) return SystemError("stat", path_, errno);
    size_ = info.st_size;
    return absl::OkStatus();
  }

  absl::Status Append(std::span<const ByteSpan> pieces) override {
    std::vector<iovec> left;
    for (const ByteSpan piece : pieces) {
      if (!piece.empty()) left.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
    }
    constexpr size_t kPiecesAtOnce = 512;
    for (size_t next = 0; next < left.size();) {
      const size_t count = std::min(kPiecesAtOnce, left.size() - next);
      const ssize_t written = writev(file_.get(), &left[next], static_cast<int>(count));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return SystemError("write", path_, errno);
      size_ += written;
      size_t done = static_cast<size_t>(written);
      while (next < left.size() && done >= left[next].iov_len) done -= left[next++].iov_len;
      if (done > 0) {
        left[next].iov_base = static_cast<char*>(left[next].iov_base) + done;
        left[next].iov_len -= done;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    return fdatasync(file_.get()) == 0 ? absl::OkStatus() : SystemError("sync", path_, errno);
  }

  absl::Status Truncate(int64_t size) override {
    if (ftruncate(file_.get(), size) != 0) return SystemError("truncate", path_, errno);
    size_ = size;
    return absl::OkStatus();
  }

  int64_t size() const override { return size_; }

 private:
  const std::string path_;
  const Descriptor file_;
  int64_t size_ = 0;
};

class RealFileSystem : public Files {
 public:
  absl::StatusOr<std::unique_ptr<AppendFile>> OpenAppend(const std::string& path) override {
    auto file = std::make_unique<RealAppendFile>(path);
    ATOLL_RETURN_IF_ERROR(file->Open());
    return file;
  }

  absl::StatusOr<std::vector<std::byte>> Read(const std::string& path, int64_t bytes_max) override {
    const Descriptor file(path, O_RDONLY);
    if (!file.ok()) return SystemError("open", path, errno);
    struct stat info;
    if (fstat(file.get(), &info) != 0) return SystemError("stat", path, errno);
    if (!S_ISREG(info.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": is not a file"));
    }
    if (info.st_size > bytes_max) {
      return absl::OutOfRangeError(absl::StrCat(path, ": has ", info.st_size, " bytes; at most ",
                                                bytes_max, " are expected"));
    }
    std::vector<std::byte> bytes(static_cast<size_t>(info.st_size));
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t got = read(file.get(), bytes.data() + done, bytes.size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return SystemError("read", path, errno);
      if (got == 0) return absl::DataLossError(absl::StrCat(path, ": shrank while it was read"));
      done += static_cast<size_t>(got);
    }
    return bytes;
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    std::vector<std::string> names;
    DIR* const handle = opendir(folder.c_str());
    if (handle == nullptr) {
      if (errno == ENOENT) return names;
      return SystemError("list", folder, errno);
    }
    while (const dirent* entry = readdir(handle)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    closedir(handle);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status MakeFolder(const std::string& folder) override {
    if (mkdir(folder.c_str(), 0755) == 0) return SyncFolder(FolderOf(folder));
    if (errno == ENOENT && FolderOf(folder) != folder) {
      ATOLL_RETURN_IF_ERROR(MakeFolder(FolderOf(folder)));
      if (mkdir(folder.c_str(), 0755) == 0) return SyncFolder(FolderOf(folder));
    }
    const int error = errno;
    struct stat info;
    if (error == EEXIST && stat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
      return absl::OkStatus();
    }
    return SystemError("make the folder", folder, error);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    return rename(from.c_str(), to.c_str()) == 0 ? absl::OkStatus()
                                                 : SystemError("rename", from, errno);
  }

  absl::Status Remove(const std::string& path) override {
    return remove(path.c_str()) == 0 ? absl::OkStatus() : SystemError("remove", path, errno);
  }

  absl::Status SyncFolder(const std::string& folder) override {
    const Descriptor handle(folder, O_RDONLY | O_DIRECTORY);
    if (!handle.ok()) return SystemError("open", folder, errno);
    return fsync(handle.get()) == 0 ? absl::OkStatus() : SystemError("sync", folder, errno);
  }
};

}  // namespace

Files& RealFiles() {
  static RealFileSystem* const files = new RealFileSystem;
  return *files;
}

absl::Status WriteFileAtomically(Files& files, const std::string& path,
                                 std::span<const ByteSpan> pieces) {
  const std::string beside = path + ".tmp";
  const auto write = [&]() -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(const auto file, files.OpenAppend(beside));
    ATOLL_RETURN_IF_ERROR(file->Truncate(0));
    ATOLL_RETURN_IF_ERROR(file->Append(pieces));
    return file->Sync();
  };
  if (const absl::Status status = write(); !status.ok()) {
    (void)files.Remove(beside);  // gives its space back; the next attempt truncates it anyway
    return status;
  }
  ATOLL_RETURN_IF_ERROR(files.Rename(beside, path));
  return files.SyncFolder(FolderOf(path));
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace atl

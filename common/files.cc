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

#include "common/paths.h"
#include "common/status.h"

namespace atl {
namespace {

absl::Status SystemError(absl::string_view what, const std::string& path, int error) {
  const std::string message = absl::StrCat(path, ": cannot ", what, ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) {
    return absl::ResourceExhaustedError(absl::StrCat(message, "; free some space"));
  }
  if (error == EFBIG) {
    return absl::ResourceExhaustedError(
        absl::StrCat(message, "; raise the limit on the size of files (ulimit -f)"));
  }
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  return error == ENOENT || error == ENOTDIR ? absl::NotFoundError(message)
                                             : absl::UnavailableError(message);
}

const char* DescribeFileType(mode_t mode) {
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISDIR(mode)) return "a folder";
  return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "something else";
}

absl::Status NotRegular(const std::string& path, const char* kind) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": is ", kind, ", not a regular file; name a file"));
}

int64_t Nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

FileIdentity MakeIdentity(const struct stat& info) {
  return {info.st_dev, info.st_ino, info.st_size, Nanoseconds(info.st_mtim),
          Nanoseconds(info.st_ctim)};
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

  absl::Status Append(std::span<const ByteSpan> buffers) override {
    std::vector<iovec> left;
    for (const ByteSpan buffer : buffers) {
      if (!buffer.empty()) left.push_back({const_cast<std::byte*>(buffer.data()), buffer.size()});
    }
    constexpr size_t kMaxBuffersPerWrite = 512;
    for (size_t next = 0; next < left.size();) {
      const size_t count = std::min(kMaxBuffersPerWrite, left.size() - next);
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
    if (fdatasync(file_.get()) != 0) return SystemError("sync", path_, errno);
    return CheckNamed();
  }

  absl::Status Truncate(int64_t size) override {
    if (ftruncate(file_.get(), size) != 0) return SystemError("truncate", path_, errno);
    size_ = size;
    return absl::OkStatus();
  }

  int64_t size() const override { return size_; }

 private:
  // A file that was deleted still takes writes.
  absl::Status CheckNamed() const {
    struct stat own, named;
    if (fstat(file_.get(), &own) != 0) return SystemError("stat", path_, errno);
    const int found = stat(path_.c_str(), &named);
    if (found == 0 && own.st_dev == named.st_dev && own.st_ino == named.st_ino) {
      return absl::OkStatus();
    }
    if (found != 0 && errno != ENOENT && errno != ENOTDIR) {
      return SystemError("stat", path_, errno);
    }
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": was deleted, moved or replaced while it was written; put it back"));
  }

  const std::string path_;
  const Descriptor file_;
  int64_t size_ = 0;
};

absl::Status CheckSize(const InputFile& file, int64_t bytes_max) {
  if (file.bytes() <= bytes_max) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(file.path(), ": has ", file.bytes(), " bytes; at most ",
                                            bytes_max, " are expected"));
}

class RealFileSystem : public Files {
 public:
  absl::StatusOr<std::unique_ptr<AppendFile>> OpenAppend(const std::string& path) override {
    auto file = std::make_unique<RealAppendFile>(path);
    ATOLL_RETURN_IF_ERROR(file->Open());
    return file;
  }

  absl::StatusOr<std::vector<std::byte>> Read(const std::string& path, int64_t bytes_max) override {
    ATOLL_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
    ATOLL_RETURN_IF_ERROR(CheckSize(file, bytes_max));
    std::vector<std::byte> bytes(static_cast<size_t>(file.bytes()));
    ATOLL_RETURN_IF_ERROR(file.Read(0, bytes.data(), file.bytes()));
    return bytes;
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    std::vector<std::string> names;
    DIR* const handle = opendir(folder.c_str());
    if (handle == nullptr) {
      if (errno == ENOENT) return names;
      return SystemError("list", folder, errno);
    }
    int error = 0;
    while (true) {
      errno = 0;  // the end and an error look alike but for this
      const dirent* const entry = readdir(handle);
      error = errno;
      if (entry == nullptr) break;
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    closedir(handle);
    if (error != 0) return SystemError("list", folder, error);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status MakeFolder(const std::string& folder) override {
    if (mkdir(folder.c_str(), 0755) == 0) return SyncFolder(GetParentFolder(folder));
    if (errno == ENOENT && GetParentFolder(folder) != folder) {
      ATOLL_RETURN_IF_ERROR(MakeFolder(GetParentFolder(folder)));
      if (mkdir(folder.c_str(), 0755) == 0) return SyncFolder(GetParentFolder(folder));
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

absl::StatusOr<std::optional<PathInfo>> FindPath(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0) {
    return PathInfo{S_ISREG(info.st_mode), S_ISDIR(info.st_mode), MakeIdentity(info)};
  }
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  return SystemError("look at", path, errno);
}

absl::StatusOr<InputFile> InputFile::Open(const std::string& path) {
  InputFile file;
  file.path_ = path;
  // A FIFO would keep a blocking open waiting until another process writes.
  file.fd_ = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (file.fd_ < 0) {
    if (errno == ENXIO) return NotRegular(path, "a socket or a device");
    return SystemError("open", path, errno);
  }
  struct stat info;
  if (fstat(file.fd_, &info) != 0) return SystemError("stat", path, errno);
  if (!S_ISREG(info.st_mode)) return NotRegular(path, DescribeFileType(info.st_mode));
  file.identity_ = MakeIdentity(info);
  return file;
}

InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept { *this = std::move(other); }

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(identity_, other.identity_);
  return *this;
}

absl::Status InputFile::Read(int64_t offset, void* out, int64_t bytes) const {
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = pread(fd_, to, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(absl::StrCat("read at byte ", offset), path_, errno);
    if (got == 0) {
      return absl::DataLossError(
          absl::StrCat(path_, ": ends at byte ", offset, ": it was cut short while it was open"));
    }
    to += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> InputFile::ReadAll(int64_t bytes_max) const {
  ATOLL_RETURN_IF_ERROR(CheckSize(*this, bytes_max));
  std::string text(static_cast<size_t>(bytes()), '\0');
  ATOLL_RETURN_IF_ERROR(Read(0, text.data(), bytes()));
  return text;
}

Files& RealFiles() {
  static RealFileSystem* const files = new RealFileSystem;
  return *files;
}

namespace {

// Bytes of a large file between two syncs. Other files' syncs wait meanwhile for as much of it as
// is not on the disk yet.
constexpr size_t kSyncBytes = size_t{8} << 20;

// Durable when OK.
absl::Status AppendInSteps(AppendFile& file, std::span<const ByteSpan> buffers) {
  std::vector<ByteSpan> step;
  size_t bytes = 0;
  for (ByteSpan rest : buffers) {
    while (bytes + rest.size() > kSyncBytes) {
      step.push_back(rest.first(kSyncBytes - bytes));
      rest = rest.subspan(step.back().size());
      ATOLL_RETURN_IF_ERROR(file.Append(step));
      ATOLL_RETURN_IF_ERROR(file.Sync());
      step.clear();
      bytes = 0;
    }
    step.push_back(rest);
    bytes += rest.size();
  }
  ATOLL_RETURN_IF_ERROR(file.Append(step));
  return file.Sync();
}

}  // namespace

absl::Status WriteFileAtomically(Files& files, const std::string& path,
                                 std::span<const ByteSpan> buffers) {
  const std::string temporary = path + ".tmp";
  const auto write = [&]() -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(const auto file, files.OpenAppend(temporary));
    ATOLL_RETURN_IF_ERROR(file->Truncate(0));
    return AppendInSteps(*file, buffers);
  };
  if (const absl::Status status = write(); !status.ok()) {
    (void)files.Remove(temporary);  // gives its space back; the next attempt truncates it anyway
    return status;
  }
  ATOLL_RETURN_IF_ERROR(files.Rename(temporary, path));
  return files.SyncFolder(GetParentFolder(path));
}

std::string GetParentFolder(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace atl

// Files that survive crashes: what is written is on the disk when a call says so.
//
// `Files` has a real body, and in tests a simulated one that loses what was not synced
// (files_simulated.h). Errors name the path and what the system said; a full disk is
// ResourceExhausted, a missing file NotFound.

#ifndef ATOLL_COMMON_FILES_H_
#define ATOLL_COMMON_FILES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl {

using ByteSpan = std::span<const std::byte>;

// A file that grows at its end. One thread at a time.
class AppendFile {
 public:
  virtual ~AppendFile() = default;
  // The parts one after the other. After an error any prefix of them may be in the file.
  virtual absl::Status Append(std::span<const ByteSpan> buffers) = 0;
  // Everything appended is durable when this returns OK. After an error nothing is known of what
  // was appended since the last OK: truncate and append it again. FailedPrecondition: the file, or
  // the folder that it is in, was deleted or moved, so that nothing of it would be found again.
  virtual absl::Status Sync() = 0;
  virtual absl::Status Truncate(int64_t size) = 0;
  virtual int64_t size() const = 0;
};

// Distinguishes one content of a path from another, without reading it.
struct FileIdentity {
  uint64_t device = 0, inode = 0;
  int64_t bytes = 0;
  int64_t modified_ns = 0, changed_ns = 0;  // since 1970

  bool operator==(const FileIdentity&) const = default;
};

// A regular file open for reading: how every path is opened that a job or a user names. Const calls
// are thread-safe.
class InputFile {
 public:
  // Never waits. InvalidArgument, which says what the path is: a FIFO, a socket, a device or a
  // folder. NotFound: nothing is there.
  static absl::StatusOr<InputFile> Open(const std::string& path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;

  const std::string& path() const { return path_; }
  const FileIdentity& identity() const { return identity_; }  // when it was opened
  int64_t bytes() const { return identity_.bytes; }

  // All of [offset, offset + bytes). DataLoss: the file ends before.
  absl::Status Read(int64_t offset, void* out, int64_t bytes) const;
  // The whole file. Larger than `bytes_max`: OutOfRange, before memory is taken.
  absl::StatusOr<std::string> ReadAll(int64_t bytes_max) const;

 private:
  InputFile() = default;

  std::string path_;
  int fd_ = -1;
  FileIdentity identity_;
};

// Thread-safe. Paths are the system's.
class Files {
 public:
  virtual ~Files() = default;
  // Makes the file if it is not there; its name is durable after SyncFolder of its folder.
  virtual absl::StatusOr<std::unique_ptr<AppendFile>> OpenAppend(const std::string& path) = 0;
  // The whole file. Larger than `bytes_max`: an error, before memory is taken.
  virtual absl::StatusOr<std::vector<std::byte>> Read(const std::string& path,
                                                      int64_t bytes_max) = 0;
  // Names in the folder, sorted. A folder that is not there has none.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& folder) = 0;
  // Makes a folder with its parents; all durable.
  virtual absl::Status MakeFolder(const std::string& folder) = 0;
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;  // a file, or an empty folder
  virtual absl::Status SyncFolder(const std::string& folder) = 0;
};

Files& RealFiles();

// The file is, after any crash, either as it was or has all the parts: written beside, synced,
// renamed, the folder synced.
absl::Status WriteFileAtomically(Files& files, const std::string& path,
                                 std::span<const ByteSpan> buffers);

// The folder of a path: "a/b" for "a/b/c".
std::string GetParentFolder(const std::string& path);

inline ByteSpan AsBytes(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace atl

#endif  // ATOLL_COMMON_FILES_H_

#include "coordinator/store_seal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>

#include "common/status.h"

namespace atl {
namespace {

// The checksum of parts, which includes their lengths.
class Checksum {
 public:
  void Add(int64_t value) { state_ = XXH3_64bits_withSeed(&value, sizeof value, state_); }
  void Add(absl::string_view text) {
    Add(static_cast<int64_t>(text.size()));
    state_ = XXH3_64bits_withSeed(text.data(), text.size(), state_);
  }
  uint64_t Get() const { return state_; }

 private:
  uint64_t state_ = 0x61746f6c6c;
};

// The content of the file.
struct Stored {
  int64_t sequence;
  uint64_t checksum;
};

uint64_t ComputeSequenceChecksum(int64_t sequence) {
  Checksum sum;
  sum.Add(sequence);
  return sum.Get();
}

absl::Status Fault(const std::string& path, absl::string_view operation) {
  return absl::UnavailableError(
      absl::StrCat(path, ": cannot be ", operation, ": ", std::strerror(errno)));
}

}  // namespace

uint64_t ComputeChecksum(const StoreTotals& totals) {
  Checksum sum;
  sum.Add(totals.sequence);
  sum.Add(totals.records);
  sum.Add(static_cast<int64_t>(totals.digest));
  return sum.Get();
}

uint64_t ComputeRecordChecksum(absl::string_view key, absl::string_view value) {
  Checksum sum;
  sum.Add(key);
  sum.Add(value);
  return sum.Get();
}

uint64_t ComputeLineChecksum(int64_t sequence, int64_t unix_time_ms, absl::string_view job,
                             int64_t severity, absl::string_view text) {
  Checksum sum;
  sum.Add(sequence);
  sum.Add(unix_time_ms);
  sum.Add(job);
  sum.Add(severity);
  sum.Add(text);
  return sum.Get();
}

SequenceFile::~SequenceFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status SequenceFile::Open(const std::string& path) {
  path_ = path;
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
  struct stat info;
  if (fd_ < 0 || fstat(fd_, &info) != 0) return Fault(path_, "opened");
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path_, ": is not a regular file"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int64_t>> SequenceFile::Read() const {
  Stored stored;
  auto* const bytes = reinterpret_cast<char*>(&stored);
  size_t done = 0;
  while (done < sizeof stored) {
    const ssize_t got = pread(fd_, bytes + done, sizeof stored - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Fault(path_, "read");
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  if (done == 0) return std::nullopt;
  if (done != sizeof stored || stored.checksum != ComputeSequenceChecksum(stored.sequence)) {
    return absl::DataLossError(absl::StrCat(path_, ": is damaged"));
  }
  return stored.sequence;
}

absl::Status SequenceFile::Write(int64_t sequence) {
  const Stored stored{sequence, ComputeSequenceChecksum(sequence)};
  const auto* const bytes = reinterpret_cast<const char*>(&stored);
  for (size_t done = 0; done < sizeof stored;) {
    const ssize_t written =
        pwrite(fd_, bytes + done, sizeof stored - done, static_cast<off_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Fault(path_, "written");
    done += static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

}  // namespace atl

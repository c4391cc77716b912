#include "cli/backup.h"

#include <xxhash.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <utility>

#include "cli/client.h"
#include "cli/text/output.h"
#include "common/bytes_text.h"
#include "common/files.h"

namespace atl::cli {
namespace {

// Takes the parts of a backup into a file.
class Writer {
 public:
  explicit Writer(std::unique_ptr<AppendFile> file) : file_(std::move(file)) {
    XXH3_64bits_reset(checksum_);
  }
  ~Writer() { XXH3_freeState(checksum_); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  bool Take(const v1::BackupPart& part) {
    if (part.last()) {
      whole_ =
          part.total_bytes() == file_->size() && part.checksum() == XXH3_64bits_digest(checksum_);
      sequence_ = part.sequence();
      return true;
    }
    XXH3_64bits_update(checksum_, part.data().data(), part.data().size());
    const ByteSpan buffer = AsBytes(part.data());
    status_ = file_->Append(std::span(&buffer, 1));
    return status_.ok();
  }
  absl::Status Finish() {
    ATOLL_RETURN_IF_ERROR(status_);
    if (!whole_) return absl::DataLossError("it did not arrive whole; try again");
    return file_->Sync();
  }
  int64_t bytes() const { return file_->size(); }
  int64_t sequence() const { return sequence_; }

 private:
  const std::unique_ptr<AppendFile> file_;
  XXH3_state_t* const checksum_ = XXH3_createState();
  absl::Status status_;
  bool whole_ = false;
  int64_t sequence_ = 0;
};

absl::Status Run(const Global& global, const std::string& path, int64_t* bytes, int64_t* sequence) {
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(path, error))) {
    return absl::AlreadyExistsError(
        absl::StrCat("--to ", path, ": is there already; name a new file"));
  }
  ATOLL_ASSIGN_OR_RETURN(const auto client, Client::Dial(global.tls, global.coordinator));
  const std::string temporary = path + ".tmp";
  ATOLL_ASSIGN_OR_RETURN(auto file, RealFiles().OpenAppend(temporary));
  const auto write = [&]() -> absl::Status {
    ATOLL_RETURN_IF_ERROR(file->Truncate(0));
    Writer writer(std::move(file));
    ATOLL_RETURN_IF_ERROR(
        client->Backup([&](const v1::BackupPart& part) { return writer.Take(part); }));
    ATOLL_RETURN_IF_ERROR(writer.Finish());
    *bytes = writer.bytes();
    *sequence = writer.sequence();
    ATOLL_RETURN_IF_ERROR(RealFiles().Rename(temporary, path));
    return RealFiles().SyncFolder(GetParentFolder(path));
  };
  const absl::Status status = write();
  if (!status.ok()) RealFiles().Remove(temporary).IgnoreError();
  return Annotate(status, absl::StrCat("--to ", path));
}

}  // namespace

int Backup(const Global& global, const std::string& path) {
  int64_t bytes = 0, sequence = 0;
  const absl::Status status = Run(global, path, &bytes, &sequence);
  if (!status.ok()) return Fail(status);
  if (global.structured) {
    std::cout << DocumentLine({{"bytes", bytes}, {"sequence", sequence}});
  } else {
    std::cout << path << ": " << BytesText(bytes) << ", the state after change " << sequence
              << "\n";
  }
  return 0;
}

}  // namespace atl::cli

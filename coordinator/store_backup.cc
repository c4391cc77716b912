#include "coordinator/store_backup.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/protocol/limits.h"
#include "common/state_folder.h"
#include "common/status.h"
#include "coordinator/sqlite.h"
#include "coordinator/store_sqlite.h"

namespace atl {
namespace {

constexpr char kDatabase[] = "coordinator.db";

class Database {
 public:
  Database(const std::string& path, int flags) {
    result_ = sqlite3_open_v2(path.c_str(), &db_, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  }
  ~Database() { sqlite3_close(db_); }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  sqlite3* get() const { return db_; }
  bool ok() const { return result_ == SQLITE_OK; }
  absl::Status Fault(const std::string& path) const {
    const std::string text = absl::StrCat(path, ": cannot be copied: ", sqlite3_errmsg(db_));
    return (sqlite3_errcode(db_) & 0xff) == SQLITE_FULL ? absl::ResourceExhaustedError(text)
                                                        : absl::UnavailableError(text);
  }

 private:
  sqlite3* db_ = nullptr;
  int result_;
};

absl::StatusOr<int64_t> Copy(const std::string& database, const std::string& to) {
  const Database source(database, SQLITE_OPEN_READONLY);
  const Database target(to, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  if (!source.ok()) return source.Fault(database);
  if (!target.ok()) return target.Fault(to);
  sqlite3_backup* const backup = sqlite3_backup_init(target.get(), "main", source.get(), "main");
  if (backup == nullptr) return target.Fault(to);
  const int copied = sqlite3_backup_step(backup, -1);  // all of one state
  sqlite3_backup_finish(backup);
  // One file by itself, without a write-ahead log.
  const bool single =
      copied == SQLITE_DONE && sqlite3_exec(target.get(), "PRAGMA journal_mode=DELETE", nullptr,
                                            nullptr, nullptr) == SQLITE_OK;
  Statement newest(target.get(), "SELECT sequence FROM totals WHERE id=1");
  if (!single || newest.Step() != SQLITE_ROW) return target.Fault(to);
  return newest.Int(0);
}

absl::Status CopyFile(const std::string& from, const std::string& to) {
  ATOLL_ASSIGN_OR_RETURN(const InputFile source, InputFile::Open(from));
  ATOLL_ASSIGN_OR_RETURN(const auto target, RealFiles().OpenAppend(to));
  ATOLL_RETURN_IF_ERROR(target->Truncate(0));
  std::vector<std::byte> block(1 << 20);
  for (int64_t done = 0; done < source.bytes();) {
    const auto count = std::min<int64_t>(source.bytes() - done, static_cast<int64_t>(block.size()));
    ATOLL_RETURN_IF_ERROR(source.Read(done, block.data(), count));
    const ByteSpan buffer(block.data(), static_cast<size_t>(count));
    ATOLL_RETURN_IF_ERROR(target->Append(std::span(&buffer, 1)));
    done += count;
  }
  return target->Sync();
}

// Opens the copy, which checks it, and gives it an epoch of its own.
absl::Status Renew(const std::string& folder) {
  ATOLL_ASSIGN_OR_RETURN(const auto store, OpenSqliteStore(folder));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<StoreRecord> records, store->ReadAll());
  for (const StoreRecord& record : records) {
    if (const auto* found = std::get_if<EpochRecord>(&record)) {
      if (found->epoch < 0 || found->epoch >= kMaxEpoch) {  // there is no later one
        return absl::DataLossError(absl::StrCat("it is damaged: its epoch is ", found->epoch));
      }
      const auto now = std::chrono::system_clock::now().time_since_epoch();
      const int64_t now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
      return store->Apply({{AfterLoss(*found, now_ms)}}, now_ms);
    }
  }
  return absl::InvalidArgumentError("it holds no coordinator's state");
}

void RemoveFolder(const std::string& folder) {
  const auto names = RealFiles().List(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    RealFiles().Remove(absl::StrCat(folder, "/", name)).IgnoreError();
  }
  RealFiles().Remove(folder).IgnoreError();
}

}  // namespace

absl::StatusOr<int64_t> CopyDatabase(const std::string& database, const std::string& to) {
  const auto sequence = Copy(database, to);
  if (!sequence.ok()) {
    for (const char* end : {"", "-journal", "-wal"}) std::remove(absl::StrCat(to, end).c_str());
  }
  return sequence;
}

absl::Status MakeBackup(const StoreContents& contents, const std::string& to) {
  const std::string temporary = absl::StrCat(to, ".made");
  RemoveFolder(temporary);
  const auto make = [&]() -> absl::Status {
    ATOLL_RETURN_IF_ERROR(RealFiles().MakeFolder(temporary));
    ATOLL_ASSIGN_OR_RETURN(const auto store, OpenSqliteStore(temporary));
    ATOLL_RETURN_IF_ERROR(store->Fill(contents));
    return store->BackUp(to).status();
  };
  const absl::Status made = make();
  RemoveFolder(temporary);
  return made;
}

absl::StatusOr<StoreContents> ReadBackup(const std::string& backup, const std::string& scratch) {
  const auto read = [&]() -> absl::StatusOr<StoreContents> {
    ATOLL_RETURN_IF_ERROR(RealFiles().MakeFolder(scratch));
    ATOLL_RETURN_IF_ERROR(CopyFile(backup, absl::StrCat(scratch, "/", kDatabase)));
    ATOLL_RETURN_IF_ERROR(Renew(scratch));
    ATOLL_ASSIGN_OR_RETURN(const auto store, OpenSqliteStore(scratch));
    StoreContents contents;
    ATOLL_ASSIGN_OR_RETURN(contents.records, store->ReadAll());
    ATOLL_ASSIGN_OR_RETURN(contents.lines, store->ReadLog({}, std::numeric_limits<int64_t>::max()));
    return contents;
  };
  auto contents = read();
  RemoveFolder(scratch);
  if (!contents.ok()) return Annotate(contents.status(), absl::StrCat("--restore ", backup));
  return contents;
}

absl::Status RestoreStore(const std::string& backup, const std::string& directory) {
  ATOLL_ASSIGN_OR_RETURN(const auto held, StateFolder::Open(directory));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> names, RealFiles().List(directory));
  for (const std::string& name : names) {
    if (name.rfind(kDatabase, 0) != 0 && name != "sequence") continue;
    return absl::FailedPreconditionError(absl::StrCat("--state-dir ", directory, ": holds ", name,
                                                      " already; --restore wants an empty one"));
  }
  const std::string temporary = absl::StrCat(directory, "/restore.tmp");
  RemoveFolder(temporary);
  const auto make = [&]() -> absl::Status {
    ATOLL_RETURN_IF_ERROR(RealFiles().MakeFolder(temporary));
    ATOLL_RETURN_IF_ERROR(CopyFile(backup, absl::StrCat(temporary, "/", kDatabase)));
    ATOLL_RETURN_IF_ERROR(Annotate(Renew(temporary), absl::StrCat("--restore ", backup)));
    ATOLL_RETURN_IF_ERROR(RealFiles().Rename(absl::StrCat(temporary, "/", kDatabase),
                                             absl::StrCat(directory, "/", kDatabase)));
    return RealFiles().SyncFolder(directory);
  };
  const absl::Status made = make();
  RemoveFolder(temporary);
  return made;
}

}  // namespace atl

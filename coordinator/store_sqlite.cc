#include "coordinator/store_sqlite.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/logging.h"
#include "common/paths.h"
#include "common/state_folder.h"
#include "common/status.h"
#include "coordinator/sqlite.h"
#include "coordinator/store_backup.h"
#include "coordinator/store_seal.h"
#include "coordinator/wire.h"

namespace atl {
namespace {

constexpr int kApplicationId = 0x61746f6c;  // "atol"
constexpr int64_t kLinesBetweenTrims = 1024;

constexpr char kRemedy[] =
    "; nothing was changed. Restore an `atoll backup` into an empty --state-dir with "
    "atoll-coordinator --restore FILE";

constexpr char kTables[] =
    "CREATE TABLE IF NOT EXISTS records(key TEXT PRIMARY KEY, value BLOB NOT NULL,"
    " checksum INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS log(sequence INTEGER PRIMARY KEY, unix_time_ms INTEGER,"
    " job TEXT, severity INTEGER, text TEXT, checksum INTEGER NOT NULL);"
    "CREATE INDEX IF NOT EXISTS log_by_job ON log(job, sequence);"
    "CREATE TABLE IF NOT EXISTS totals(id INTEGER PRIMARY KEY, sequence INTEGER, records INTEGER,"
    " digest INTEGER, checksum INTEGER);";

uint64_t ComputeLogRowChecksum(Statement& row) {
  return ComputeLineChecksum(row.Int(0), row.Int(1), row.Bytes(2), row.Int(3), row.Bytes(4));
}

class SqliteStore : public Store {
 public:
  ~SqliteStore() override {
    for (auto* statement : {&put_, &erase_, &log_, &checksum_, &seal_}) statement->reset();
    if (db_ != nullptr) sqlite3_close(db_);
  }

  absl::Status Open(const std::string& directory, int64_t max_pages) {
    ATOLL_ASSIGN_OR_RETURN(folder_, StateFolder::Open(directory));
    path_ = absl::StrCat(directory, "/coordinator.db");
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(path_.c_str(), &db_, flags, nullptr) != SQLITE_OK) return Error("open");
    sqlite3_limit(db_, SQLITE_LIMIT_LENGTH, static_cast<int>(kMaxRecordBytes));
    // A refused store stays as it is, its write-ahead log too.
    sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
    ATOLL_RETURN_IF_ERROR(newest_.Open(absl::StrCat(directory, "/sequence")));
    ATOLL_ASSIGN_OR_RETURN(const int64_t version, CheckWhoseItIs());
    if (version == kStoreSchemaVersion) ATOLL_RETURN_IF_ERROR(Verify());
    ATOLL_RETURN_IF_ERROR(CheckNewest());
    ATOLL_RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"));
    if (version != kStoreSchemaVersion) ATOLL_RETURN_IF_ERROR(MakeTables());
    ATOLL_RETURN_IF_ERROR(RealFiles().SyncFolder(directory));
    ATOLL_ASSIGN_OR_RETURN(const InputFile own, InputFile::Open(path_));
    identity_ = own.identity();
    sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, nullptr);
    if (max_pages > 0) {
      ATOLL_RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA max_page_count=", max_pages)));
    }
    put_ = std::make_unique<Statement>(db_, "INSERT OR REPLACE INTO records VALUES(?,?,?)");
    erase_ = std::make_unique<Statement>(db_, "DELETE FROM records WHERE key=?");
    log_ = std::make_unique<Statement>(db_, "INSERT OR REPLACE INTO log VALUES(?,?,?,?,?,?)");
    checksum_ = std::make_unique<Statement>(db_, "SELECT checksum FROM records WHERE key=?");
    seal_ = std::make_unique<Statement>(db_, "INSERT OR REPLACE INTO totals VALUES(1,?,?,?,?)");
    return absl::OkStatus();
  }

  int64_t sequence() const override { return totals_.sequence; }
  const std::string& name() const override { return path_; }

  absl::StatusOr<std::vector<StoreRecord>> ReadAll() override {
    std::vector<StoreRecord> records;
    Statement select(db_, "SELECT key, value FROM records ORDER BY key");
    int result;
    while ((result = select.Step()) == SQLITE_ROW) {
      auto record = DecodeRecord(select.Bytes(1));
      if (!record.ok() || MakeRecordKey(*record) != select.Bytes(0)) {
        return absl::DataLossError(absl::StrCat(
            path_, ": record \"", select.Bytes(0), "\" is damaged: ",
            record.ok() ? "it belongs under another key" : record.status().message(), kRemedy));
      }
      records.push_back(*std::move(record));
    }
    if (result != SQLITE_DONE) return Error("read");
    return records;
  }

  absl::Status Apply(const std::vector<StoreWrite>& writes, int64_t unix_time_ms) override {
    if (writes.empty()) return absl::OkStatus();
    return Change([&]() -> absl::Status {
      for (const StoreWrite& write : writes) {
        ATOLL_RETURN_IF_ERROR(Write(write, unix_time_ms));
      }
      return absl::OkStatus();
    });
  }

  absl::Status Fill(const StoreContents& contents) override {
    if (totals_.records > 0) {
      return absl::FailedPreconditionError(absl::StrCat(path_, ": holds records already"));
    }
    return Change([&]() -> absl::Status {
      for (const LogEntry& line : contents.lines) {
        ATOLL_RETURN_IF_ERROR(Write({line.event}, line.unix_time_ms));
      }
      for (const StoreRecord& record : contents.records) {
        ATOLL_RETURN_IF_ERROR(Write({record}, 0));
      }
      return absl::OkStatus();
    });
  }

  absl::StatusOr<std::vector<LogEntry>> ReadLog(const LogQuery& query, int64_t limit) override {
    Statement select(db_, absl::StrCat("SELECT * ", FromLog(query), " ORDER BY sequence LIMIT ?6"));
    Bind(query, &select).Bind(limit);
    std::vector<LogEntry> lines;
    int result;
    while ((result = select.Step()) == SQLITE_ROW) {
      LogEntry line;
      line.event.sequence = select.Int(0);
      line.unix_time_ms = select.Int(1);
      line.event.job = std::string(select.Bytes(2));
      line.event.severity = SeverityFromStored(select.Int(3));
      line.event.text = std::string(select.Bytes(4));
      if (static_cast<uint64_t>(select.Int(5)) != ComputeLogRowChecksum(select)) {
        line.event.text.insert(0, "(this line is damaged) ");
      }
      lines.push_back(std::move(line));
    }
    if (result != SQLITE_DONE) return Error("read the log");
    return lines;
  }

  absl::StatusOr<int64_t> FindLogTail(const LogQuery& query, int64_t count) override {
    Statement select(
        db_, absl::StrCat("SELECT sequence ", FromLog(query), " ORDER BY sequence DESC LIMIT ?6"));
    Bind(query, &select).Bind(count);
    int64_t after = query.after_sequence;
    int64_t found = 0;
    int result;
    while ((result = select.Step()) == SQLITE_ROW) {
      if (++found == count) after = select.Int(0) - 1;
    }
    if (result != SQLITE_DONE) return Error("read the log");
    return after;
  }

  absl::StatusOr<int64_t> BackUp(const std::string& to) const override {
    return CopyDatabase(path_, to);
  }

 private:
  // One transaction, and one step of the sequence.
  template <class WriteAll>
  absl::Status Change(const WriteAll& write_all) {
    ATOLL_RETURN_IF_ERROR(CheckStillThere());
    ATOLL_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
    const StoreTotals before = totals_;
    absl::Status status = write_all();
    ++totals_.sequence;
    if (status.ok()) status = WriteTotals();
    if (status.ok()) status = Execute("COMMIT");
    if (status.ok()) return newest_.Write(totals_.sequence);
    if (sqlite3_get_autocommit(db_) == 0) Execute("ROLLBACK").IgnoreError();
    totals_ = before;
    return status;
  }

  // Two texts, so that each uses its index.
  static std::string FromLog(const LogQuery& query) {
    return absl::StrCat("FROM log WHERE ", query.job.empty() ? "?1=''" : "job=?1",
                        " AND sequence>?2 AND unix_time_ms>=?3 AND severity>=?4"
                        " AND (?5='' OR instr(lower(text), lower(?5))>0)");
  }
  static Statement& Bind(const LogQuery& query, Statement* statement) {
    return statement->Bind(absl::string_view(query.job))
        .Bind(query.after_sequence)
        .Bind(query.since_unix_ms)
        .Bind(static_cast<int64_t>(query.severity))
        .Bind(absl::string_view(query.contains));
  }

  // Before anything is written: the version of ours that we can read; 0: a new file.
  absl::StatusOr<int64_t> CheckWhoseItIs() {
    ATOLL_ASSIGN_OR_RETURN(const int64_t tables, Single("SELECT count(*) FROM sqlite_master"));
    ATOLL_ASSIGN_OR_RETURN(const int64_t application, Single("PRAGMA application_id"));
    ATOLL_ASSIGN_OR_RETURN(const int64_t version, Single("PRAGMA user_version"));
    if (tables == 0 && application == 0) return 0;
    if (application != kApplicationId) return NotOurs();
    if (version != kStoreSchemaVersion) {
      return absl::FailedPreconditionError(
          absl::StrCat(path_, ": has schema version ", version, ", this coordinator knows ",
                       kStoreSchemaVersion, "; start it with the Atoll that wrote it, or newer"));
    }
    Statement check(db_, "PRAGMA integrity_check(1)");
    if (check.Step() != SQLITE_ROW) return Error("check");
    if (check.Bytes(0) != "ok") return Damaged(check.Bytes(0));
    return version;
  }

  absl::Status NotOurs() const {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": is not an Atoll coordinator's database; give another --state-dir"));
  }
  absl::Status Damaged(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat(path_, ": is damaged: ", what, kRemedy));
  }

  // Reads every row, and knows the totals afterwards.
  absl::Status Verify() {
    StoreTotals found;
    Statement records(db_, "SELECT key, value, checksum FROM records");
    int result;
    while ((result = records.Step()) == SQLITE_ROW) {
      const uint64_t checksum = ComputeRecordChecksum(records.Bytes(0), records.Bytes(1));
      if (static_cast<uint64_t>(records.Int(2)) != checksum) {
        return Damaged(absl::StrCat("the record \"", records.Bytes(0), "\" fails its checksum"));
      }
      ++found.records;
      found.digest += checksum;
    }
    if (result != SQLITE_DONE) return Error("read");
    Statement totals(db_, "SELECT sequence, records, digest, checksum FROM totals WHERE id=1");
    result = totals.Step();
    if (result == SQLITE_DONE) return Damaged("its totals are missing");
    if (result != SQLITE_ROW) return Error("read");
    totals_ = {totals.Int(0), totals.Int(1), static_cast<uint64_t>(totals.Int(2))};
    if (static_cast<uint64_t>(totals.Int(3)) != ComputeChecksum(totals_)) {
      return Damaged("its totals fail their checksum");
    }
    found.sequence = totals_.sequence;
    if (found != totals_) {
      return Damaged(absl::StrCat("it has ", found.records, " records where ", totals_.records,
                                  " were written, or older ones"));
    }
    return WarnOfDamagedLines();
  }

  absl::Status WarnOfDamagedLines() {
    Statement lines(db_, "SELECT * FROM log");
    int64_t damaged = 0;
    int result;
    while ((result = lines.Step()) == SQLITE_ROW) {
      if (static_cast<uint64_t>(lines.Int(5)) != ComputeLogRowChecksum(lines)) ++damaged;
    }
    if (result != SQLITE_DONE) return Error("read the log");
    if (damaged == 0) return absl::OkStatus();
    LogWarning("store", path_, ": ", damaged,
               " lines of the log are damaged; `atoll logs` marks them. Check this disk");
    return absl::OkStatus();
  }

  // Checks that SQLite has not read something older than what was written.
  absl::Status CheckNewest() {
    const auto newest = newest_.Read();
    if (!newest.ok()) {
      if (!absl::IsDataLoss(newest.status())) return newest.status();
      // It is next to the store, which was found whole: only this check is lost.
      LogWarning("store", newest.status().message(), ", and is written anew; check this disk");
      return absl::OkStatus();
    }
    if (!newest->has_value() || **newest <= totals_.sequence) return absl::OkStatus();
    return Damaged(absl::StrCat("it ends with change ", totals_.sequence, ", but change ", **newest,
                                " had been made: the file, or its write-ahead log ", path_,
                                "-wal, was damaged, deleted or replaced by an older one"));
  }

  absl::Status MakeTables() {
    ATOLL_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
    ATOLL_RETURN_IF_ERROR(Execute(kTables));
    seal_ = std::make_unique<Statement>(db_, "INSERT OR REPLACE INTO totals VALUES(1,?,?,?,?)");
    ATOLL_RETURN_IF_ERROR(WriteTotals());
    return Execute(absl::StrCat("PRAGMA application_id=", kApplicationId,
                                ";PRAGMA user_version=", kStoreSchemaVersion, ";COMMIT;"));
  }

  // A deleted file still takes writes, which a later start would not find.
  absl::Status CheckStillThere() const {
    // Without a descriptor: a process that has no more left says that its store is there.
    ATOLL_ASSIGN_OR_RETURN(const auto now, FindPath(path_));
    if (now && now->identity.device == identity_.device && now->identity.inode == identity_.inode) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat(
        path_,
        ": was deleted, moved or replaced while the coordinator ran; put it back, or restore "
        "a backup, and start the coordinator again"));
  }

  absl::Status WriteTotals() {
    seal_->Bind(totals_.sequence).Bind(totals_.records).Bind(static_cast<int64_t>(totals_.digest));
    seal_->Bind(static_cast<int64_t>(ComputeChecksum(totals_)));
    const absl::Status status = seal_->Step() == SQLITE_DONE ? absl::OkStatus() : Error("write");
    seal_->Reset();
    return status;
  }

  absl::StatusOr<int64_t> Single(const char* sql) {
    Statement statement(db_, sql);
    if (statement.Step() != SQLITE_ROW) return Error("read");
    return statement.Int(0);
  }

  absl::Status Write(const StoreWrite& write, int64_t unix_time_ms) {
    Statement* statement = put_.get();
    if (const auto* event = std::get_if<EventRecord>(&write.record)) {
      if (write.erase) return absl::OkStatus();  // the log forgets by itself
      statement = log_.get();
      log_->Bind(event->sequence).Bind(unix_time_ms).Bind(absl::string_view(event->job));
      const auto severity = static_cast<int64_t>(event->severity);
      log_->Bind(severity).Bind(absl::string_view(event->text));
      log_->Bind(static_cast<int64_t>(
          ComputeLineChecksum(event->sequence, unix_time_ms, event->job, severity, event->text)));
      if (++lines_since_trim_ >= kLinesBetweenTrims) {
        lines_since_trim_ = 0;
        ATOLL_RETURN_IF_ERROR(Execute(absl::StrCat(
            "DELETE FROM log WHERE sequence <= (SELECT sequence FROM log ORDER BY sequence DESC "
            "LIMIT 1 OFFSET ",
            kLogLinesKept, ")")));
      }
    } else {
      const std::string key = MakeRecordKey(write.record);
      ATOLL_RETURN_IF_ERROR(Discount(key));
      if (write.erase) {
        statement = erase_.get();
        erase_->Bind(absl::string_view(key));
      } else {
        ATOLL_ASSIGN_OR_RETURN(const std::string value, EncodeRecord(write.record));
        const uint64_t checksum = ComputeRecordChecksum(key, value);
        put_->Bind(absl::string_view(key)).BindBlob(value).Bind(static_cast<int64_t>(checksum));
        ++totals_.records;
        totals_.digest += checksum;
      }
    }
    const int result = statement->Step();
    absl::Status status = result == SQLITE_DONE ? absl::OkStatus() : Error("write");
    statement->Reset();
    return status;
  }

  // Takes the record that is under the key, if any, out of the totals.
  absl::Status Discount(const std::string& key) {
    checksum_->Bind(absl::string_view(key));
    const int result = checksum_->Step();
    if (result == SQLITE_ROW) {
      --totals_.records;
      totals_.digest -= static_cast<uint64_t>(checksum_->Int(0));
    }
    const absl::Status status =
        result == SQLITE_ROW || result == SQLITE_DONE ? absl::OkStatus() : Error("read");
    checksum_->Reset();
    return status;
  }

  absl::Status Execute(const std::string& sql) {
    if (sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK) {
      return absl::OkStatus();
    }
    return Error("write");
  }

  // Returns what the last call failed with, and what to do.
  absl::Status Error(absl::string_view operation) {
    const int code = sqlite3_errcode(db_) & 0xff;
    const std::string text = absl::StrCat(path_, ": cannot ", operation, ": ", sqlite3_errmsg(db_));
    switch (code) {
      case SQLITE_FULL:
        return absl::ResourceExhaustedError(
            absl::StrCat(text, "; free space there and start the coordinator again"));
      case SQLITE_NOTADB:
        return NotOurs();
      case SQLITE_CORRUPT:
        return Damaged(sqlite3_errmsg(db_));
      default:
        return absl::UnavailableError(text);
    }
  }

  std::string path_;
  std::unique_ptr<StateFolder> folder_;
  sqlite3* db_ = nullptr;
  std::unique_ptr<Statement> put_, erase_, log_, checksum_, seal_;
  StoreTotals totals_;
  int64_t lines_since_trim_ = 0;
  FileIdentity identity_;  // of the database
  SequenceFile newest_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& directory,
                                                       int64_t max_pages) {
  auto store = std::make_unique<SqliteStore>();
  ATOLL_RETURN_IF_ERROR(store->Open(directory, max_pages));
  return store;
}

}  // namespace atl

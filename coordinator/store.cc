#include "coordinator/store.h"

#include <sqlite3.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/state_folder.h"
#include "common/status.h"
#include "coordinator/wire.h"

namespace atl {
namespace {

constexpr int kApplicationId = 0x61746f6c;  // "atol"
constexpr int64_t kMaxRecordBytes = int64_t{256} << 20;

// A prepared statement: bind in order, step, read columns.
class Statement {
 public:
  Statement(sqlite3* db, const std::string& sql) {
    sqlite3_prepare_v2(db, sql.c_str(), -1, &stmt_, nullptr);
  }
  ~Statement() { sqlite3_finalize(stmt_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Bind(int64_t value) {
    sqlite3_bind_int64(stmt_, ++bound_, value);
    return *this;
  }
  Statement& Bind(absl::string_view text) {
    sqlite3_bind_text64(stmt_, ++bound_, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
    return *this;
  }
  Statement& BindBlob(absl::string_view bytes) {
    sqlite3_bind_blob64(stmt_, ++bound_, bytes.data(), bytes.size(), SQLITE_TRANSIENT);
    return *this;
  }
  // SQLITE_ROW, SQLITE_DONE or an error (SQLITE_MISUSE if it could not be prepared).
  int Step() { return stmt_ == nullptr ? SQLITE_MISUSE : sqlite3_step(stmt_); }
  void Reset() {
    sqlite3_reset(stmt_);
    bound_ = 0;
  }
  int64_t Int(int column) { return sqlite3_column_int64(stmt_, column); }
  absl::string_view Bytes(int column) {
    const void* data = sqlite3_column_blob(stmt_, column);
    const int size = sqlite3_column_bytes(stmt_, column);
    return size == 0 ? "" : absl::string_view(static_cast<const char*>(data), size);
  }

 private:
  sqlite3_stmt* stmt_ = nullptr;
  int bound_ = 0;
};

}  // namespace

class Store::Impl {
 public:
  ~Impl() {
    put_.reset();
    erase_.reset();
    log_.reset();
    if (db_ != nullptr) sqlite3_close(db_);
  }

  absl::Status Open(const std::string& directory, int64_t max_pages) {
    ATOLL_ASSIGN_OR_RETURN(folder_, StateFolder::Open(directory));
    path_ = absl::StrCat(directory, "/coordinator.db");
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(path_.c_str(), &db_, flags, nullptr) != SQLITE_OK) return Error("open");
    sqlite3_limit(db_, SQLITE_LIMIT_LENGTH, static_cast<int>(kMaxRecordBytes));
    ATOLL_RETURN_IF_ERROR(CheckWhoseItIs());
    ATOLL_RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"));
    ATOLL_RETURN_IF_ERROR(Execute(absl::StrCat(
        "BEGIN;"
        "CREATE TABLE IF NOT EXISTS records(key TEXT PRIMARY KEY, value BLOB NOT NULL)"
        " WITHOUT ROWID;"
        "CREATE TABLE IF NOT EXISTS log(sequence INTEGER PRIMARY KEY, unix_time_ms INTEGER,"
        " job TEXT, severity INTEGER, text TEXT);"
        "CREATE INDEX IF NOT EXISTS log_by_job ON log(job, sequence);"
        "PRAGMA application_id=",
        kApplicationId, ";PRAGMA user_version=", kStoreSchemaVersion, ";COMMIT;")));
    ATOLL_RETURN_IF_ERROR(RealFiles().SyncFolder(directory));
    if (max_pages > 0) {
      ATOLL_RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA max_page_count=", max_pages)));
    }
    put_ = std::make_unique<Statement>(db_, "INSERT OR REPLACE INTO records VALUES(?,?)");
    erase_ = std::make_unique<Statement>(db_, "DELETE FROM records WHERE key=?");
    log_ = std::make_unique<Statement>(db_, "INSERT OR REPLACE INTO log VALUES(?,?,?,?,?)");
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<StoreRecord>> ReadAll() {
    std::vector<StoreRecord> records;
    Statement select(db_, "SELECT key, value FROM records ORDER BY key");
    int result;
    while ((result = select.Step()) == SQLITE_ROW) {
      auto record = DecodeRecord(select.Bytes(1));
      if (!record.ok() || KeyOf(*record) != select.Bytes(0)) {
        return absl::DataLossError(
            absl::StrCat(path_, ": record \"", select.Bytes(0), "\" is damaged: ",
                         record.ok() ? "it belongs under another key" : record.status().message(),
                         "; restore the state directory from a copy"));
      }
      records.push_back(*std::move(record));
    }
    if (result != SQLITE_DONE) return Error("read");
    return records;
  }

  absl::Status Apply(const std::vector<StoreWrite>& writes, int64_t unix_time_ms) {
    if (writes.empty()) return absl::OkStatus();
    ATOLL_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
    absl::Status status;
    for (const StoreWrite& write : writes) {
      status = Write(write, unix_time_ms);
      if (!status.ok()) break;
    }
    if (status.ok()) status = Execute("COMMIT");
    if (!status.ok() && sqlite3_get_autocommit(db_) == 0) Execute("ROLLBACK").IgnoreError();
    return status;
  }

  absl::StatusOr<std::vector<LogEntry>> ReadLog(const LogQuery& query, int64_t limit) {
    Statement select(db_, absl::StrCat("SELECT * ", FromLog(query), " ORDER BY sequence LIMIT ?6"));
    Bind(query, &select).Bind(limit);
    std::vector<LogEntry> lines;
    int result;
    while ((result = select.Step()) == SQLITE_ROW) {
      LogEntry line;
      line.event.sequence = select.Int(0);
      line.unix_time_ms = select.Int(1);
      line.event.job = std::string(select.Bytes(2));
      const int64_t severity = select.Int(3);
      line.event.severity = severity == 1   ? Severity::kWarning
                            : severity == 2 ? Severity::kError
                                            : Severity::kInfo;
      line.event.text = std::string(select.Bytes(4));
      lines.push_back(std::move(line));
    }
    if (result != SQLITE_DONE) return Error("read the log");
    return lines;
  }

  absl::StatusOr<int64_t> TailOfLog(const LogQuery& query, int64_t count) {
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

 private:
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

  // Before anything is written: a new file, or one of ours that we can read.
  absl::Status CheckWhoseItIs() {
    ATOLL_ASSIGN_OR_RETURN(const int64_t tables, Single("SELECT count(*) FROM sqlite_master"));
    ATOLL_ASSIGN_OR_RETURN(const int64_t application, Single("PRAGMA application_id"));
    ATOLL_ASSIGN_OR_RETURN(const int64_t version, Single("PRAGMA user_version"));
    if (tables == 0 && application == 0) return absl::OkStatus();
    if (application != kApplicationId) {
      return absl::FailedPreconditionError(absl::StrCat(
          path_, ": is not an Atoll coordinator's database; give another --state-dir"));
    }
    if (version != kStoreSchemaVersion) {
      return absl::FailedPreconditionError(
          absl::StrCat(path_, ": has schema version ", version, ", this coordinator knows ",
                       kStoreSchemaVersion, "; start it with the Atoll that wrote it, or newer"));
    }
    Statement check(db_, "PRAGMA quick_check(1)");
    if (check.Step() != SQLITE_ROW || check.Bytes(0) != "ok") {
      return absl::DataLossError(
          absl::StrCat(path_, ": is damaged; restore the state directory from a copy"));
    }
    return absl::OkStatus();
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
      log_->Bind(static_cast<int64_t>(event->severity)).Bind(absl::string_view(event->text));
      if (event->sequence % 1024 == 0) {
        ATOLL_RETURN_IF_ERROR(Execute(absl::StrCat(
            "DELETE FROM log WHERE sequence <= (SELECT sequence FROM log ORDER BY sequence DESC "
            "LIMIT 1 OFFSET ",
            kLogLinesKept, ")")));
      }
    } else if (write.erase) {
      statement = erase_.get();
      erase_->Bind(absl::string_view(KeyOf(write.record)));
    } else {
      put_->Bind(absl::string_view(KeyOf(write.record))).BindBlob(EncodeRecord(write.record));
    }
    const int result = statement->Step();
    absl::Status status = result == SQLITE_DONE ? absl::OkStatus() : Error("write");
    statement->Reset();
    return status;
  }

  absl::Status Execute(const std::string& sql) {
    if (sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK) {
      return absl::OkStatus();
    }
    return Error("write");
  }

  // What the last call failed with, and what to do.
  absl::Status Error(absl::string_view doing) {
    const int code = sqlite3_errcode(db_) & 0xff;
    const std::string text = absl::StrCat(path_, ": cannot ", doing, ": ", sqlite3_errmsg(db_));
    switch (code) {
      case SQLITE_FULL:
        return absl::ResourceExhaustedError(
            absl::StrCat(text, "; free space there and start the coordinator again"));
      case SQLITE_NOTADB:
        return absl::FailedPreconditionError(absl::StrCat(
            path_, ": is not an Atoll coordinator's database; give another --state-dir"));
      case SQLITE_CORRUPT:
        return absl::DataLossError(
            absl::StrCat(path_, ": is damaged; restore the state directory from a copy"));
      default:
        return absl::UnavailableError(text);
    }
  }

  std::string path_;
  std::unique_ptr<StateFolder> folder_;
  sqlite3* db_ = nullptr;
  std::unique_ptr<Statement> put_, erase_, log_;
};

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const std::string& directory,
                                                   int64_t max_pages) {
  auto impl = std::make_unique<Impl>();
  ATOLL_RETURN_IF_ERROR(impl->Open(directory, max_pages));
  return std::unique_ptr<Store>(new Store(std::move(impl)));
}

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::~Store() = default;

absl::StatusOr<std::vector<StoreRecord>> Store::ReadAll() { return impl_->ReadAll(); }

absl::Status Store::Apply(const std::vector<StoreWrite>& writes, int64_t unix_time_ms) {
  return impl_->Apply(writes, unix_time_ms);
}

absl::StatusOr<std::vector<LogEntry>> Store::ReadLog(const LogQuery& query, int64_t limit) {
  return impl_->ReadLog(query, limit);
}
absl::StatusOr<int64_t> Store::TailOfLog(const LogQuery& query, int64_t count) {
  return impl_->TailOfLog(query, count);
}

}  // namespace atl

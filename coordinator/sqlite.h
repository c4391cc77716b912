// SQLite's calls that the store needs, as values that free themselves.

#ifndef ATOLL_COORDINATOR_SQLITE_H_
#define ATOLL_COORDINATOR_SQLITE_H_

#include <sqlite3.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace atl {

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

}  // namespace atl

#endif  // ATOLL_COORDINATOR_SQLITE_H_

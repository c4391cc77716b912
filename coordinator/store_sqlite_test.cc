// The SQLite store's part beyond every store: files that are damaged, foreign, older or full.

#include "coordinator/store_sqlite.h"

#include <sqlite3.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "common/protocol/limits.h"
#include "coordinator/store_backup.h"
#include "coordinator/testing/store_cases.h"
#include "coordinator/wire.h"
#include "tests/faults/io_faults.h"

namespace atl {
namespace {

std::unique_ptr<Store> MustOpen(const std::string& path) {
  auto store = OpenSqliteStore(path);
  INFO(store.status().ToString());
  REQUIRE(store.ok());
  return *std::move(store);
}

std::string OpenFault(const std::string& path) {
  return std::string(OpenSqliteStore(path).status().message());
}

void Sql(const std::string& path, const std::string& sql) {
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open((path + "/coordinator.db").c_str(), &db) == SQLITE_OK);
  REQUIRE(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(db);
}

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Flip(const std::string& path, size_t at) {
  std::string bytes = Bytes(path);
  bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST_CASE("a second coordinator on the same folder is refused") {
  StoreFolder folder;
  const auto first = MustOpen(folder.path);
  REQUIRE(OpenFault(folder.path).find("runs on it; give every process") != std::string::npos);
}

TEST_CASE("foreign, newer and damaged files are refused and left as they are") {
  StoreFolder folder;
  SECTION("not a database") {
    MustOpen(folder.path).reset();
    std::ofstream(folder.path + "/coordinator.db") << std::string(8192, 'x');
    REQUIRE(OpenFault(folder.path).find("is not an Atoll coordinator's database") !=
            std::string::npos);
  }
  SECTION("another program's database") {
    MustOpen(folder.path).reset();
    Sql(folder.path, "PRAGMA application_id=5");
    REQUIRE(OpenFault(folder.path).find("is not an Atoll coordinator's database") !=
            std::string::npos);
  }
  SECTION("a newer Atoll's") {
    MustOpen(folder.path).reset();
    Sql(folder.path, "PRAGMA user_version=5");
    REQUIRE(OpenFault(folder.path).find("has schema version 5, this coordinator knows 4") !=
            std::string::npos);
  }
  SECTION("a damaged record") {
    REQUIRE(MustOpen(folder.path)->Apply(Puts(OneOfEach()), 0).ok());
    Sql(folder.path, "UPDATE records SET value=x'ffffff' WHERE key='epoch'");
    REQUIRE(OpenFault(folder.path).find("the record \"epoch\" fails its checksum") !=
            std::string::npos);
  }
}

// A copy of a store as a power cut would leave it, with one byte changed.
std::string Copy(const StoreFolder& folder, const std::string& file, size_t at) {
  const std::string copy = folder.path + "-copy";
  std::filesystem::remove_all(copy);
  std::filesystem::copy(folder.path, copy);
  std::filesystem::remove(copy + "/coordinator.db-shm");  // memory only
  if (!file.empty()) Flip(copy + "/" + file, at);
  return copy;
}

TEST_CASE("flipped_byte_in_any_file_is_refused_by_name_or_changes_no_record") {
  StoreFolder folder;
  const auto records = Sorted(OneOfEach());
  const std::string file =
      GENERATE(std::string("coordinator.db"), std::string("coordinator.db-wal"));
  auto store = MustOpen(folder.path);
  // Several changes: the loss of the newest must be seen, too.
  for (const StoreWrite& write : Puts(records)) REQUIRE(store->Apply({write}, 0).ok());
  if (file == "coordinator.db") store.reset();  // moves everything there
  const size_t bytes = std::filesystem::file_size(folder.path + "/" + file);
  REQUIRE(bytes > 8192);
  int refused = 0;
  for (size_t at = 0; at < bytes; at += 389) {
    const std::string copy = Copy(folder, file, at);
    const auto opened = OpenSqliteStore(copy);
    INFO(file << " at " << at << ": " << opened.status().ToString());
    if (opened.ok()) {
      REQUIRE((*opened)->ReadAll().value() == records);
      continue;
    }
    ++refused;
    REQUIRE(opened.status().message().find(copy) != absl::string_view::npos);
  }
  CHECK(refused > 3);
}

TEST_CASE("refused_write_ahead_log_stays_as_it_is") {
  StoreFolder folder;
  const auto store = MustOpen(folder.path);
  for (int64_t epoch = 1; epoch < 9; ++epoch) REQUIRE(store->Apply({{EpochRecord{epoch}}}, 0).ok());
  const std::string copy = Copy(folder, "coordinator.db-wal", 5000);
  const std::string before = Bytes(copy + "/coordinator.db-wal");
  for (int i = 0; i < 2; ++i) {
    const auto opened = OpenSqliteStore(copy);
    REQUIRE(absl::IsDataLoss(opened.status()));
    REQUIRE(opened.status().message().find("--restore FILE") != absl::string_view::npos);
  }
  CHECK(Bytes(copy + "/coordinator.db-wal") == before);
}

TEST_CASE("lost_or_older_database_is_noticed") {
  StoreFolder folder;
  auto store = MustOpen(folder.path);
  REQUIRE(store->Apply({{EpochRecord{1}}}, 0).ok());
  const std::string older = Copy(folder, "", 0);
  REQUIRE(store->Apply({{EpochRecord{2}}}, 0).ok());
  CHECK(store->sequence() == 2);
  store.reset();
  SECTION("deleted") { std::filesystem::remove(folder.path + "/coordinator.db"); }
  SECTION("replaced by an older one") {
    for (const char* file : {"/coordinator.db", "/coordinator.db-wal"}) {
      std::filesystem::copy_file(older + file, folder.path + file,
                                 std::filesystem::copy_options::overwrite_existing);
    }
  }
  CHECK(absl::IsDataLoss(OpenSqliteStore(folder.path).status()));
}

TEST_CASE("damaged_line_of_the_log_is_marked_and_stops_nothing") {
  StoreFolder folder;
  REQUIRE(MustOpen(folder.path)->Apply({{EventRecord{1, "a", Severity::kInfo, "one"}}}, 7).ok());
  Sql(folder.path, "UPDATE log SET text='two'");
  CHECK(MustOpen(folder.path)->ReadLog({.job = "a"}, 10).value()[0].event.text ==
        "(this line is damaged) two");
}

TEST_CASE("database_that_was_deleted_under_the_store_takes_no_changes") {
  StoreFolder folder;
  auto store = MustOpen(folder.path);
  REQUIRE(store->Apply({{EpochRecord{1}}}, 0).ok());
  std::filesystem::remove(folder.path + "/coordinator.db");
  CHECK(absl::IsFailedPrecondition(store->Apply({{EpochRecord{2}}}, 0)));
}

TEST_CASE("backup_of_a_running_store_is_restored_with_an_epoch_of_its_own") {
  StoreFolder folder;
  auto store = MustOpen(folder.path);
  auto records = OneOfEach();
  REQUIRE(store->Apply(Puts(records), 0).ok());
  const std::string backup = folder.path + "/backup", restored = folder.path + "-restored";
  CHECK(store->BackUp(backup).value() == store->sequence());
  REQUIRE(store->Apply({{EpochRecord{1000}}}, 0).ok());  // later
  SECTION("into an empty folder, twice") {
    int64_t epoch = 1000;
    for (int i = 0; i < 2; ++i) {
      std::filesystem::remove_all(restored);
      const absl::Status status = RestoreStore(backup, restored);
      INFO(status.ToString());
      REQUIRE(status.ok());
      auto read = MustOpen(restored)->ReadAll().value();
      REQUIRE(read.size() == records.size());
      for (const StoreRecord& record : read) {
        if (const auto* own = std::get_if<EpochRecord>(&record)) {
          CHECK(own->epoch > epoch);
          CHECK(own->epoch < int64_t{1} << 30);
          continue;
        }
        CHECK(std::find(records.begin(), records.end(), record) != records.end());
      }
    }
    CHECK(absl::IsFailedPrecondition(RestoreStore(backup, restored)));
    CHECK_FALSE(std::filesystem::exists(restored + "/restore.tmp"));
  }
  SECTION("one whose epoch cannot be is refused") {
    REQUIRE(store->Apply({{EpochRecord{kMaxEpoch}}}, 0).ok());
    const std::string wrong = folder.path + "/wrong";
    REQUIRE(store->BackUp(wrong).ok());
    CHECK(absl::IsDataLoss(RestoreStore(wrong, restored)));
    CHECK_FALSE(std::filesystem::exists(restored + "/coordinator.db"));
  }
  SECTION("a damaged one, an empty one and a foreign file are refused, and nothing is made") {
    const size_t bytes = std::filesystem::file_size(backup);
    int refused = 0;
    for (size_t at = 101; at < bytes; at += 997) {
      Flip(backup, at);
      if (!RestoreStore(backup, restored).ok()) {
        ++refused;
        CHECK_FALSE(std::filesystem::exists(restored + "/coordinator.db"));
      }
      Flip(backup, at);
      std::filesystem::remove_all(restored);
    }
    CHECK(refused > 3);
    for (const char* text : {"", "no database"}) {
      std::ofstream(backup, std::ios::binary) << text;
      CHECK_FALSE(RestoreStore(backup, restored).ok());
      CHECK_FALSE(std::filesystem::exists(restored + "/coordinator.db"));
    }
  }
}

TEST_CASE("a full disk is said clearly, and nothing of the transaction happened") {
  StoreFolder folder;
  auto store = OpenSqliteStore(folder.path, /*max_pages=*/20).value();
  REQUIRE(store->Apply({{EpochRecord{1}}}, 0).ok());
  const std::string big(200'000, 'x');
  const auto status =
      store->Apply({{EpochRecord{2}}, {EventRecord{1, "a", Severity::kInfo, big}}}, 0);
  REQUIRE(status.code() == absl::StatusCode::kResourceExhausted);
  REQUIRE(status.message().find("free space there") != absl::string_view::npos);
  REQUIRE(store->ReadAll().value() == std::vector<StoreRecord>{EpochRecord{1}});
}

TEST_CASE("log_keeps_its_newest_lines_whatever_their_numbers") {
  StoreFolder folder;
  auto store = MustOpen(folder.path);
  constexpr int64_t kLines = kLogLinesKept + 10'000;
  for (int64_t line = 0; line < kLines;) {
    std::vector<StoreWrite> writes;
    for (int i = 0; i < 10'000; ++i, ++line) {
      writes.push_back({EventRecord{2 * line + 1, "a", Severity::kInfo, "line"}});
    }
    REQUIRE(store->Apply(writes, 0).ok());
  }
  const auto kept = store->ReadLog({}, kLines).value();
  CHECK(std::ssize(kept) >= kLogLinesKept);
  CHECK(std::ssize(kept) < kLogLinesKept + 2'000);
  CHECK(kept.back().event.sequence == 2 * (kLines - 1) + 1);
}

TEST_CASE("whatever text is written can be read again") {
  for (const std::string& text : {std::string("caf\xe9"), std::string(100'000, 'x')}) {
    ProgressRecord progress;
    progress.job = "lm-1";
    progress.reason = text;
    const auto read = DecodeRecord(*EncodeRecord(progress));
    REQUIRE(read.ok());
    CHECK(std::get<ProgressRecord>(*read).reason.substr(0, 3) == text.substr(0, 3));
  }
}

TEST_CASE("no damaged bytes crash the record decoder") {
  for (const StoreRecord& record : OneOfEach()) {
    const std::string bytes = *EncodeRecord(record);
    for (size_t i = 0; i < bytes.size(); ++i) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ 0x55);
      (void)DecodeRecord(damaged);
      REQUIRE(!DecodeRecord(bytes.substr(0, 1)).ok());
    }
  }
}

TEST_CASE("store_is_not_said_to_be_deleted_where_no_descriptor_is_left") {
  StoreFolder folder;
  const auto store = MustOpen(folder.path);
  REQUIRE(store->Apply({{EventRecord{1, "", Severity::kInfo, "one"}}}, 1).ok());
  for (const char* call : {"open", "stat"}) {
    const InjectedFault fault({folder.path, call, EMFILE});
    const absl::Status applied = store->Apply({{EventRecord{2, "", Severity::kInfo, "two"}}}, 1);
    INFO(applied.message());
    CHECK(applied.ok() == (fault.operations() == 0));
    CHECK_FALSE(absl::IsFailedPrecondition(applied));
  }
  CHECK(store->Apply({{EventRecord{3, "", Severity::kInfo, "three"}}}, 1).ok());
}

TEST_CASE("store_that_cannot_be_read_is_not_opened_without_its_records") {
  StoreFolder folder;
  MustOpen(folder.path)->Apply({{EventRecord{1, "", Severity::kInfo, "one"}}}, 1).IgnoreError();
  for (const int error : {EIO, EMFILE}) {
    for (long at = 1;; ++at) {
      INFO(at);
      const std::string before = Bytes(folder.path + "/coordinator.db");
      const InjectedFault fault({folder.path, "pread64", error, at});
      const auto store = OpenSqliteStore(folder.path);
      if (fault.operations() < at) break;
      if (store.ok()) continue;  // SQLite reads a page again
      CHECK(Bytes(folder.path + "/coordinator.db") == before);
    }
  }
  CHECK(MustOpen(folder.path)->ReadLog({}, 10)->size() == 1);
}

}  // namespace
}  // namespace atl

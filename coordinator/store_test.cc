// Tests of every store, on each of them: SQLite's in a fresh folder, etcd's below a fresh prefix of
// a real etcd.

#include "coordinator/store.h"

#include <catch2/catch.hpp>

#include "coordinator/etcd/store_etcd.h"
#include "coordinator/etcd/testing/etcd_server.h"
#include "coordinator/store_backup.h"
#include "coordinator/store_sqlite.h"
#include "coordinator/testing/store_cases.h"

namespace atl {
namespace {

class OnSqlite {
 public:
  std::unique_ptr<Store> Open() {
    auto store = OpenSqliteStore(folder_.path);
    INFO(store.status().ToString());
    REQUIRE(store.ok());
    return *std::move(store);
  }

 private:
  StoreFolder folder_;
};

class OnEtcd {
 public:
  std::unique_ptr<Store> Open() {
    EtcdStoreOptions options;
    options.url = url_;
    options.lines_folder = folder_.path;
    options.self.set_address("127.0.0.1:7000");
    auto store = OpenEtcdStore(
        options, [] { return false; }, [](const etcd::Leader&) {});
    INFO(store.status().ToString());
    REQUIRE(store.ok());
    return *std::move(store);
  }

 private:
  static EtcdServer& Server() {
    static EtcdServer server;
    return server;
  }
  const std::string url_ = Server().FreshUrl();
  StoreFolder folder_;
};

// A record of about this many bytes.
DecisionRecord Long(size_t bytes) {
  DecisionRecord record;
  record.job = "long";
  record.gram.assign(bytes / sizeof(double), 1.25);
  return record;
}

TEMPLATE_TEST_CASE("what is applied is there after the store is opened again", "", OnSqlite,
                   OnEtcd) {
  TestType on;
  const auto records = OneOfEach();
  REQUIRE(on.Open()->Apply(Puts(records), 0).ok());
  const auto store = on.Open();
  REQUIRE(store->ReadAll().value() == Sorted(records));
  CHECK(store->sequence() == 1);
}

TEMPLATE_TEST_CASE("a record replaces the one under its key, and can be deleted", "", OnSqlite,
                   OnEtcd) {
  TestType on;
  auto store = on.Open();
  REQUIRE(store->Apply({{EpochRecord{1}}, {EpochRecord{2}}}, 0).ok());
  REQUIRE(store->ReadAll().value() == std::vector<StoreRecord>{EpochRecord{2}});
  REQUIRE(store->Apply({{EpochRecord{3}}, {EpochRecord{}, true}}, 0).ok());
  REQUIRE(store->ReadAll().value().empty());
  REQUIRE(store->Apply({{EpochRecord{}, true}}, 0).ok());
  CHECK(store->sequence() == 3);
  store.reset();
  CHECK(on.Open()->sequence() == 3);
}

TEMPLATE_TEST_CASE("the log keeps lines by job with the wall time", "", OnSqlite, OnEtcd) {
  TestType on;
  auto store = on.Open();
  REQUIRE(store
              ->Apply({{EventRecord{1, "a", Severity::kWarning, "one"}},
                       {EventRecord{2, "b", Severity::kInfo, "two"}},
                       {EventRecord{5, "a", Severity::kError, "three"}}},
                      1234)
              .ok());
  REQUIRE(store->Apply({{EventRecord{7, "b", Severity::kError, "Seven"}}}, 1235).ok());
  if (GENERATE(false, true)) {
    store.reset();
    store = on.Open();
  }
  const auto lines = store->ReadLog({"a"}, 10).value();
  REQUIRE(lines.size() == 2);
  REQUIRE(lines[0].event == EventRecord{1, "a", Severity::kWarning, "one"});
  REQUIRE(lines[1].event == EventRecord{5, "a", Severity::kError, "three"});
  REQUIRE(lines[1].unix_time_ms == 1234);
  CHECK(store->ReadLog({"", 1}, 10).value().size() == 3);
  CHECK(store->ReadLog({}, 1).value()[0].event.sequence == 1);
  CHECK(store->ReadLog({"", 1}, 1).value()[0].event.sequence == 2);
  CHECK(store->ReadLog({"", 0, 1235}, 10).value().size() == 1);
  CHECK(store->ReadLog({"", 0, 0, Severity::kWarning}, 10).value().size() == 3);
  CHECK(store->ReadLog({"", 0, 0, Severity::kInfo, "sEVEN"}, 10).value().size() == 1);
  REQUIRE(store->Apply({{EventRecord{9, "c", Severity::kDebug, "round"}}}, 1236).ok());
  CHECK(store->ReadLog({"c"}, 10).value().empty());
  const auto rounds = store->ReadLog({"c", 0, 0, Severity::kDebug}, 10).value();
  REQUIRE(rounds.size() == 1);
  CHECK(rounds[0].event == EventRecord{9, "c", Severity::kDebug, "round"});
  CHECK(store->FindLogTail({"a"}, 1).value() == 4);
  CHECK(store->FindLogTail({}, 3).value() == 1);
  CHECK(store->FindLogTail({"", 1}, 9).value() == 1);
  CHECK(store->ReadAll().value().empty());
}

TEMPLATE_TEST_CASE("step_of_many_and_of_long_records_is_stored_whole", "", OnSqlite, OnEtcd) {
  TestType on;
  auto store = on.Open();
  std::vector<StoreRecord> records{Long(3'000'000)};
  for (int64_t i = 0; i < 1000; ++i) {
    records.push_back(LedgerRecord{"lm-1", {i * 8, i * 8 + 8}, LedgerUse::kLeased, 1, {}});
  }
  REQUIRE(store->Apply(Puts(records), 0).ok());
  store.reset();
  store = on.Open();
  REQUIRE((store->ReadAll().value() == Sorted(records)));
  // The long one shortens, and most of the others go.
  std::vector<StoreWrite> writes{{Long(10)}};
  for (size_t i = 1; i < 900; ++i) writes.push_back({records[i], true});
  REQUIRE(store->Apply(writes, 0).ok());
  records.erase(records.begin() + 1, records.begin() + 900);
  records[0] = Long(10);
  store.reset();
  store = on.Open();
  REQUIRE((store->ReadAll().value() == Sorted(records)));
  REQUIRE(store->Apply({{Long(2'000'000)}}, 0).ok());
  REQUIRE(store->Apply({{Long(0), true}}, 0).ok());
  store.reset();
  CHECK(on.Open()->ReadAll().value().size() == records.size() - 1);
}

TEMPLATE_TEST_CASE("backup_fills_a_store_of_either_kind_with_an_epoch_of_its_own", "", OnSqlite,
                   OnEtcd) {
  TestType on;
  StoreFolder folder;
  const std::string file = folder.path + "-backup", scratch = folder.path + "-scratch";
  auto store = on.Open();
  const auto records = OneOfEach();
  REQUIRE(store->Apply(Puts(records), 0).ok());
  REQUIRE(store->Apply({{EventRecord{1, "a", Severity::kInfo, "one"}}}, 7).ok());
  REQUIRE(store->Apply({{EventRecord{2, "a", Severity::kInfo, "two"}}}, 8).ok());
  REQUIRE(store->BackUp(file).value() == 3);
  const auto contents = ReadBackup(file, scratch);
  INFO(contents.status().ToString());
  REQUIRE(contents.ok());
  CHECK(absl::IsFailedPrecondition(store->Fill(*contents)));
  const auto check = [&](Store& filled) {
    REQUIRE(filled.Fill(*contents).ok());
    const auto read = filled.ReadAll().value();
    REQUIRE(read.size() == records.size());
    for (const StoreRecord& record : read) {
      if (const auto* own = std::get_if<EpochRecord>(&record)) {
        CHECK(own->epoch > 1000);
        CHECK(own->restored);
        continue;
      }
      CHECK(std::find(records.begin(), records.end(), record) != records.end());
    }
    const auto lines = filled.ReadLog({}, 10).value();
    REQUIRE(lines.size() == 2);
    CHECK(lines[0].unix_time_ms == 7);
    CHECK(lines[1].event == EventRecord{2, "a", Severity::kInfo, "two"});
  };
  check(*OnSqlite().Open());
  check(*OnEtcd().Open());
}

}  // namespace
}  // namespace atl

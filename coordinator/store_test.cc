#include "coordinator/store.h"

#include <sqlite3.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "coordinator/wire.h"

namespace atl {
namespace {

// A fresh folder that goes with the test.
class Folder {
 public:
  Folder() {
    std::string name = absl::StrCat(std::getenv("TEST_TMPDIR"), "/store-XXXXXX");
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name + "/state";
  }
  std::string path;
};

std::unique_ptr<Store> MustOpen(const std::string& path) {
  auto store = Store::Open(path);
  INFO(store.status().ToString());
  REQUIRE(store.ok());
  return *std::move(store);
}

std::string OpenFault(const std::string& path) {
  return std::string(Store::Open(path).status().message());
}

void Sql(const std::string& path, const std::string& sql) {
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open((path + "/coordinator.db").c_str(), &db) == SQLITE_OK);
  REQUIRE(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(db);
}

// One record of every kind, no field at its default.
std::vector<StoreRecord> OneOfEach() {
  const ContributionId id{1, 2, 3, 4};
  JobRecord job{"lm-1", 1, {}, JobFacts{{{"embedding", 64}}, 10, 2, 99}, {{0, 1, 2, 3, "p1", "e"}}};
  job.spec.name = "lm";
  job.spec.outer.momentum = 0.25;
  IslandRecord island{"lm-1", 1,  2,        "w1", 3,  true,
                      true,   64, "joined", 5,    6,  {{7, 8}},
                      {},     9,  10,       11,   12, {{"w2", 4, "tcp://w2:1", "key"}},
                      5};
  island.outcome = ContributionOutcome{id, 5, true, true, "fine"};
  DecisionRecord decision{
      "lm-1", 3,      2,           1,  {{id, "w1", 64, 512, 2.5, 1.5, .5, 3, .9, .8, true, "ok"}},
      {id},   {1.25}, 1.5,         .7, 512,
      1024,   1,      "all are in"};
  return {
      EpochRecord{7},
      MemberRecord{MemberKind::kServer, "p1", 3, "", ""},
      MemberRecord{MemberKind::kWorker, "w1", 4, "site-w1", "measured: alone"},
      job,
      ProgressRecord{"lm-1", JobState::kFinishing, "why", 2, 3, 4, 5, 1, 6, 1, 7, 2.5, 5.5, true},
      island,
      ContributionRecord{"lm-1", id, 64, 512, 2.5, {{0, 8}}, true, "fenced"},
      decision,
      PenaltyRecord{"lm-1", 1, {10, 1.5, .1, {.5, 1.5}, 2}},
      LedgerRecord{"lm-1", {0, 8}, LedgerUse::kPushed, 1, id},
      PlanRecord{
          "lm-1",
          1,
          {5,
           {{"w1", 3, "tcp://w1:1", ""}},
           {{{{0, 3, {"w1/0"}, {1}}}, 2, 4}},
           {{"w1/0", {{PlanOpKind::kSend, 0, 1, 0, true}, {PlanOpKind::kSync, 0, 0, 2, false}}, 6}},
           {2, 1},
           {{"a", "b", {{0, 0, 1, false}, {0, 1, 0, true}}}},
           7,
           8,
           "1f1b",
           "best"}},
      LinkRecord{{"a", "b", 20'000'000, 1.5e7, 0.02, 20}, 1'700'000'000'123},
      DeviceRecord{"a/1", 0xff00ff00ff00ff00, 1.9, 1'700'000'000'124}};
}

std::vector<StoreWrite> Puts(const std::vector<StoreRecord>& records) {
  std::vector<StoreWrite> writes;
  for (const StoreRecord& record : records) writes.push_back({record});
  return writes;
}

TEST_CASE("what is applied is there after the store is opened again") {
  Folder folder;
  auto records = OneOfEach();
  REQUIRE(MustOpen(folder.path)->Apply(Puts(records), 0).ok());
  std::sort(records.begin(), records.end(),
            [](const auto& a, const auto& b) { return KeyOf(a) < KeyOf(b); });
  REQUIRE(MustOpen(folder.path)->ReadAll().value() == records);
}

TEST_CASE("a record replaces the one under its key, and can be deleted") {
  Folder folder;
  auto store = MustOpen(folder.path);
  REQUIRE(store->Apply({{EpochRecord{1}}, {EpochRecord{2}}}, 0).ok());
  REQUIRE(store->ReadAll().value() == std::vector<StoreRecord>{EpochRecord{2}});
  REQUIRE(store->Apply({{EpochRecord{}, true}}, 0).ok());
  REQUIRE(store->ReadAll().value().empty());
}

TEST_CASE("the log keeps lines by job with the wall time") {
  Folder folder;
  auto store = MustOpen(folder.path);
  REQUIRE(store
              ->Apply({{EventRecord{1, "a", Severity::kWarning, "one"}},
                       {EventRecord{2, "b", Severity::kInfo, "two"}},
                       {EventRecord{5, "a", Severity::kError, "three"}}},
                      1234)
              .ok());
  const auto lines = store->ReadLog({"a"}, 10).value();
  REQUIRE(lines.size() == 2);
  REQUIRE(lines[0].event == EventRecord{1, "a", Severity::kWarning, "one"});
  REQUIRE(lines[1].event == EventRecord{5, "a", Severity::kError, "three"});
  REQUIRE(lines[1].unix_time_ms == 1234);
  REQUIRE(store->ReadLog({"", 1}, 10).value().size() == 2);
  REQUIRE(store->ReadLog({}, 1).value()[0].event.sequence == 1);
  REQUIRE(store->ReadLog({"", 1}, 1).value()[0].event.sequence == 2);
  REQUIRE(store->ReadAll().value().empty());
}

TEST_CASE("a second coordinator on the same folder is refused") {
  Folder folder;
  const auto first = MustOpen(folder.path);
  REQUIRE(OpenFault(folder.path).find("runs on it; give every daemon") != std::string::npos);
}

TEST_CASE("foreign, newer and damaged files are refused and left as they are") {
  Folder folder;
  SECTION("not a database") {
    MustOpen(folder.path).reset();
    std::ofstream(folder.path + "/coordinator.db") << std::string(8192, 'x');
    REQUIRE(OpenFault(folder.path).find("is not an Atoll coordinator's database") !=
            std::string::npos);
  }
  SECTION("somebody else's database") {
    MustOpen(folder.path).reset();
    Sql(folder.path, "PRAGMA application_id=5");
    REQUIRE(OpenFault(folder.path).find("is not an Atoll coordinator's database") !=
            std::string::npos);
  }
  SECTION("a newer Atoll's") {
    MustOpen(folder.path).reset();
    Sql(folder.path, "PRAGMA user_version=2");
    REQUIRE(OpenFault(folder.path).find("has schema version 2, this coordinator knows 1") !=
            std::string::npos);
  }
  SECTION("a damaged record") {
    REQUIRE(MustOpen(folder.path)->Apply(Puts(OneOfEach()), 0).ok());
    Sql(folder.path, "UPDATE records SET value=x'ffffff' WHERE key='epoch'");
    const auto status = MustOpen(folder.path)->ReadAll().status();
    REQUIRE(status.message().find("record \"epoch\" is damaged") != absl::string_view::npos);
  }
}

TEST_CASE("a full disk is said clearly, and nothing of the transaction happened") {
  Folder folder;
  auto store = Store::Open(folder.path, /*max_pages=*/20).value();
  REQUIRE(store->Apply({{EpochRecord{1}}}, 0).ok());
  const std::string big(200'000, 'x');
  const auto status =
      store->Apply({{EpochRecord{2}}, {EventRecord{1, "a", Severity::kInfo, big}}}, 0);
  REQUIRE(status.code() == absl::StatusCode::kResourceExhausted);
  REQUIRE(status.message().find("free space there") != absl::string_view::npos);
  REQUIRE(store->ReadAll().value() == std::vector<StoreRecord>{EpochRecord{1}});
}

TEST_CASE("whatever text is written can be read again") {
  for (const std::string& text : {std::string("caf\xe9"), std::string(100'000, 'x')}) {
    ProgressRecord progress;
    progress.job = "lm-1";
    progress.reason = text;
    const auto read = DecodeRecord(EncodeRecord(progress));
    REQUIRE(read.ok());
    CHECK(std::get<ProgressRecord>(*read).reason.substr(0, 3) == text.substr(0, 3));
  }
}

TEST_CASE("no damaged bytes crash the record decoder") {
  for (const StoreRecord& record : OneOfEach()) {
    const std::string bytes = EncodeRecord(record);
    for (size_t i = 0; i < bytes.size(); ++i) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ 0x55);
      (void)DecodeRecord(damaged);
      REQUIRE(!DecodeRecord(bytes.substr(0, 1)).ok());
    }
  }
}

}  // namespace
}  // namespace atl

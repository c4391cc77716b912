#include "coordinator/trust/audit_log.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace atl {
namespace {

std::string FreshFolder() {
  std::string name = std::string(std::getenv("TEST_TMPDIR")) + "/audit-XXXXXX";
  REQUIRE(mkdtemp(name.data()) != nullptr);
  return name;
}

v1::AuditEntry Done(const std::string& target) {
  v1::AuditEntry entry;
  entry.set_who("operator/me");
  entry.set_call("Jobs/Pause");
  entry.set_target(target);
  entry.set_done(true);
  return entry;
}

v1::AuditEntry Denied() {
  v1::AuditEntry entry;
  entry.set_denial(v1::TRUST_DENIAL_ROLE);
  return entry;
}

TEST_CASE("entries_survive_the_process_and_a_cut_line") {
  const std::string folder = FreshFolder();
  REQUIRE(AuditLog(&RealFiles(), folder).Add(Done("one")).ok());
  std::ofstream(folder + "/audit.log", std::ios::app) << "\n{\"who\":\"cu";
  AuditLog log(&RealFiles(), folder);
  REQUIRE(log.Add(Done("two\nlines")).ok());
  const auto entries = log.Read(0).value();
  REQUIRE(entries.size() == 2);
  CHECK(entries[0].target() == "one");
  CHECK(entries[1].target() == "two\nlines");
  CHECK(entries[0].unix_ms() > 0);
  REQUIRE(log.Read(1)->size() == 1);
  CHECK(log.Read(1)->front().target() == "two\nlines");
}

TEST_CASE("files_are_bounded_and_the_oldest_goes") {
  const std::string folder = FreshFolder();
  AuditLog log(&RealFiles(), folder, 1000);
  for (int i = 0; i < 100; ++i) REQUIRE(log.Add(Done(std::to_string(i))).ok());
  int64_t bytes = 0, files = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    bytes += static_cast<int64_t>(file.file_size());
    ++files;
  }
  CHECK(files == 4);
  CHECK(bytes < 4 * 1500);
  const auto entries = log.Read(0).value();
  CHECK(entries.back().target() == "99");
  CHECK(entries.front().target() != "0");
}

TEST_CASE("a_flood_of_refusals_is_counted_and_not_written") {
  AuditLog log(&RealFiles(), FreshFolder());
  for (int i = 0; i < 2000; ++i) REQUIRE(log.Add(Denied()).ok());
  CHECK(log.denials().at(v1::TRUST_DENIAL_ROLE) == 2000);
  CHECK(log.Read(0)->size() >= 100);
  CHECK(log.Read(0)->size() < 1000);
}

TEST_CASE("a_flood_of_refusals_displaces_no_action") {
  AuditLog log(&RealFiles(), FreshFolder(), 300);
  REQUIRE(log.Add(Done("first")).ok());
  for (int i = 0; i < 90; ++i) REQUIRE(log.Add(Denied()).ok());
  REQUIRE(log.Add(Done("last")).ok());
  const auto entries = log.Read(0).value();
  CHECK(entries.size() < 90);  // without the oldest refusals
  std::vector<std::string> done;
  for (const v1::AuditEntry& entry : entries) {
    if (entry.done()) done.push_back(entry.target());
  }
  CHECK(done == std::vector<std::string>{"first", "last"});
}

TEST_CASE("a_tail_has_so_many_actions_however_many_refusals_follow") {
  AuditLog log(&RealFiles(), FreshFolder());
  for (const char* target : {"one", "two", "three"}) REQUIRE(log.Add(Done(target)).ok());
  for (int i = 0; i < 50; ++i) REQUIRE(log.Add(Denied()).ok());
  const auto entries = log.Read(2).value();
  REQUIRE(entries.size() == 4);
  CHECK(entries[0].target() == "two");
  CHECK(entries[1].target() == "three");
  CHECK(entries[2].denial() == v1::TRUST_DENIAL_ROLE);
  CHECK(entries[3].denial() == v1::TRUST_DENIAL_ROLE);
}

TEST_CASE("nothing_is_made_before_the_first_entry") {
  const std::string folder = FreshFolder() + "/trust";
  AuditLog log(&RealFiles(), folder);
  CHECK(log.Read(0)->empty());
  CHECK_FALSE(std::filesystem::exists(folder));
}

}  // namespace
}  // namespace atl

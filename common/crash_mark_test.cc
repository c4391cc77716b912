#include "common/crash_mark.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "common/crash_scope.h"

namespace atl {
namespace {

std::string MakeFolder() {
  const char* root = std::getenv("TEST_TMPDIR");
  const auto folder = std::filesystem::path(root == nullptr ? "/tmp" : root) / "crash_mark_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder.string();
}

// A process that watches, and ends so.
template <class End>
void Live(const std::string& folder, End end) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (!WatchCrashes(folder).ok()) _exit(1);
    end();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE_FALSE((WIFEXITED(status) && WEXITSTATUS(status) != 0));
}

// Returns what the next process finds, which ends as it should.
std::string Found(const std::string& folder) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto found = WatchCrashes(folder);
    const std::string text = found.ok() ? *found : std::string(found.status().message());
    const ssize_t written = write(ends[1], text.data(), text.size());
    _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char part[512];
  for (ssize_t size = 0; (size = read(ends[0], part, sizeof(part))) > 0;) {
    text.append(part, static_cast<size_t>(size));
  }
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  return text;
}

// Returns what is found after a process that ends so.
template <class End>
std::string MarkLeftBy(End end) {
  const std::string folder = MakeFolder();
  Live(folder, end);
  const std::string mark = Found(folder);
  CHECK(Found(folder).empty());  // it is taken
  return mark;
}

void IsKilledAt(const char* what) {
  const CrashScope scope(what);
  raise(SIGKILL);
}

TEST_CASE("a_crash_names_the_innermost_thing_that_the_thread_was_at") {
  CHECK(MarkLeftBy([] {
          const CrashScope outer("lm-1");
          { const CrashScope over("lm-2"); }
          abort();
        }) == "lm-1");
  CHECK(MarkLeftBy([] {
          const CrashScope outer("lm-1");
          const CrashScope inner("lm-2");
          raise(SIGSEGV);
        }) == "lm-2");
  CHECK(MarkLeftBy([] {
          const CrashScope scope(std::string(1000, 'x'));
          abort();
        }) == std::string(255, 'x'));
}

TEST_CASE("a_process_that_ends_otherwise_or_is_at_nothing_names_nothing") {
  CHECK(MarkLeftBy([] { const CrashScope scope("lm-1"); }).empty());
  CHECK(MarkLeftBy([] { IsKilledAt("lm-1"); }).empty());  // once
  CHECK(MarkLeftBy([] { abort(); }).empty());
  CHECK(MarkLeftBy([] {
          { const CrashScope scope("lm-1"); }
          raise(SIGKILL);
        }).empty());
}

TEST_CASE("what_each_of_three_processes_was_at_when_it_was_killed_is_named") {
  const std::string folder = MakeFolder();
  const auto killed_at = [&](const char* what) {
    Live(folder, [&] {
      // On a thread beside another that is at something else.
      std::thread other([&] { IsKilledAt(what); });
      other.join();
    });
  };
  SECTION("whatever_else_they_were_at") {
    killed_at("lm-1");
    Live(folder, [] {
      const CrashScope scope("lm-2");
      std::thread other([] { IsKilledAt("lm-1"); });
      other.join();
    });
    killed_at("lm-1");
    CHECK(Found(folder) == "lm-1");
    CHECK(Found(folder).empty());
  }
  SECTION("but_not_where_one_between_them_was_not_at_it") {
    killed_at("lm-1");
    killed_at("lm-1");
    killed_at("lm-2");
    killed_at("lm-1");
    CHECK(Found(folder).empty());
  }
  SECTION("a_crash_before_the_third_is_named_at_once") {
    killed_at("lm-1");
    Live(folder, [] {
      const CrashScope scope("lm-2");
      abort();
    });
    CHECK(Found(folder) == "lm-2");
  }
}

TEST_CASE("a_file_of_another_version_is_read_as_far_as_it_can_be") {
  const std::string folder = MakeFolder();
  const auto write = [&](const std::string& text) {
    FILE* file = fopen((folder + "/crashed-at").c_str(), "w");
    REQUIRE(file != nullptr);
    REQUIRE(fwrite(text.data(), 1, text.size(), file) == text.size());
    REQUIRE(fclose(file) == 0);
  };
  write("lm-1");  // only ever by a crash
  CHECK(Found(folder) == "lm-1");
  write("");
  CHECK(Found(folder).empty());
  write(std::string(kCrashSlots * kCrashSlotBytes, '\0') + "9999999999999 lm-1\n\n-1 \nx");
  CHECK(Found(folder).empty());
}

}  // namespace
}  // namespace atl

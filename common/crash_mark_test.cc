#include "common/crash_mark.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

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

// Returns the mark that a process leaves which ends so.
template <class End>
std::string MarkLeftBy(End end) {
  const std::string folder = MakeFolder();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    WatchCrashes(folder);
    end();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  const auto mark = TakeCrashMark(folder);
  REQUIRE(mark.ok());
  CHECK(TakeCrashMark(folder).value().empty());  // it is taken
  return *mark;
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
        }) == std::string(256, 'x'));
}

TEST_CASE("a_process_that_ends_otherwise_or_is_at_nothing_names_nothing") {
  CHECK(MarkLeftBy([] { const CrashScope scope("lm-1"); }).empty());
  CHECK(MarkLeftBy([] {
          const CrashScope scope("lm-1");
          raise(SIGKILL);
        }).empty());
  CHECK(MarkLeftBy([] { abort(); }).empty());
}

}  // namespace
}  // namespace atl

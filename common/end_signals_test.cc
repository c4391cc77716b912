#include "common/end_signals.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

namespace atl {
namespace {

// A process that reports the signal that ends it, and ends on request; how it ended is its exit
// code.
TEST_CASE("a_broken_connection_and_a_file_that_is_too_large_end_no_process") {
  const EndSignals signals;
  for (const int ignored : {SIGPIPE, SIGXFSZ}) {
    struct sigaction action;
    REQUIRE(sigaction(ignored, nullptr, &action) == 0);
    CHECK(action.sa_handler == SIG_IGN);
  }
}

TEST_CASE("The first signal requests the end, the second one ends the process at once") {
  int said[2];
  REQUIRE(pipe(said) == 0);
  const pid_t child = fork();
  if (child == 0) {
    EndSignals signals;
    signals.Watch([&](const char* name) {
      if (write(said[1], name, 7) != 7) _exit(1);
    });
    if (write(said[1], "ready  ", 7) != 7) _exit(1);
    while (true) pause();
  }
  const auto read_line = [&] {
    std::string word(7, '\0');
    REQUIRE(read(said[0], word.data(), 7) == 7);
    return std::string(word.c_str());
  };
  CHECK(read_line() == "ready  ");
  kill(child, SIGTERM);
  CHECK(read_line() == "SIGTERM");
  kill(child, SIGINT);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 128 + SIGINT);
  close(said[0]);
  close(said[1]);
}

}  // namespace
}  // namespace atl

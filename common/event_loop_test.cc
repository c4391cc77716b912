#include "common/event_loop.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "common/log_format.h"
#include "common/logging.h"

namespace atl {
namespace {

TEST_CASE("events come in the order of posting, each thread's own") {
  EventLoop<int> loop(3);  // smaller than what is posted: posting waits for room
  std::vector<int> seen;
  std::thread other([&] {
    for (int i = 1; i <= 100; ++i) loop.Post(i);
  });
  loop.Run([&](Instant, std::optional<int> event) {
    if (event) seen.push_back(*event);
    if (seen.size() == 100) loop.Stop();
    return kNever;
  });
  other.join();
  REQUIRE(seen.size() == 100);
  REQUIRE(std::is_sorted(seen.begin(), seen.end()));
  REQUIRE(!loop.Post(101));
}

TEST_CASE("a full queue refuses TryPost") {
  EventLoop<int> loop(2);
  REQUIRE(loop.TryPost(1));
  REQUIRE(loop.TryPost(2));
  REQUIRE(!loop.TryPost(3));
}

TEST_CASE(
    "answers_to_the_step_are_taken_by_a_full_queue_from_the_step_and_from_a_thread_it_awaits") {
  EventLoop<int> loop(1);
  std::vector<int> seen;
  loop.Run([&](Instant, std::optional<int> event) {
    if (event) seen.push_back(*event);
    if (!event) {
      CHECK(loop.TryPost(1));
      CHECK(!loop.TryPost(2));
      CHECK(loop.PostAnswer(3));
      std::thread([&] { CHECK(loop.PostAnswer(4)); }).join();
    }
    if (seen.size() == 3) loop.Stop();
    return kNever;
  });
  CHECK(seen == std::vector<int>{1, 3, 4});
  CHECK(!loop.PostAnswer(5));
}

TEST_CASE("events_that_the_step_has_yet_to_take_are_counted") {
  EventLoop<int> loop(4);
  for (int event = 0; event < 3; ++event) REQUIRE(loop.TryPost(event));
  CHECK(loop.queued() == 3);
  std::vector<size_t> seen;
  loop.Run([&](Instant, std::optional<int> event) {
    if (event) seen.push_back(loop.queued());
    if (event == 1) loop.TryPost(3);
    if (event == 3) loop.Stop();
    return kNever;
  });
  CHECK(seen == std::vector<size_t>{2, 1, 1, 0});
}

TEST_CASE("the deadline comes without events, and time never goes back") {
  EventLoop<int> loop(1);
  int ticks = 0;
  Instant last{};
  loop.Run([&](Instant now, std::optional<int> event) {
    REQUIRE(!event);
    REQUIRE(now >= last);
    last = now;
    if (++ticks == 5) loop.Stop();
    return now + std::chrono::milliseconds(1);
  });
  REQUIRE(ticks == 5);
}

TEST_CASE("events of one turn do not starve the deadline") {
  EventLoop<int> loop(4);
  int events = 0;
  bool ticked = false;
  loop.Run([&](Instant now, std::optional<int> event) {
    if (event) ++events;
    ticked = ticked || (!event && events > 0);
    if (ticked) loop.Stop();
    loop.TryPost(1);
    return now;
  });
  REQUIRE(ticked);
}

TEST_CASE("a log line keeps its shape whatever its text holds") {
  REQUIRE(LogText(LogLevel::kWarning, "store", "one\ntwo\x1b[2J") ==
          "WARN  store    one\\x0atwo\\x1b[2J\n");
  REQUIRE(!SetLogLevel("loud").ok());
  REQUIRE(SetLogLevel("error").ok());
  REQUIRE(!Logs(LogLevel::kWarning));
}

TEST_CASE("a_json_line_of_the_log_is_one_object_whatever_its_text_holds") {
  const std::string line = LogJson("T", LogLevel::kWarning, "store", "one\ntwo\x1b\xff\"");
  REQUIRE(line.find('\n') == line.size() - 1);
  const auto object = nlohmann::json::parse(line);
  CHECK(object["severity"] == "warning");
  CHECK(object["part"] == "store");
  CHECK(object["text"] == "one\ntwo\x1b\xef\xbf\xbd\"");
}

// Returns what a process whose standard error is the journal's stream writes.
std::string LoggedToJournal(LogLevel level) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    struct stat info {};
    dup2(ends[1], STDERR_FILENO);
    fstat(STDERR_FILENO, &info);
    setenv("JOURNAL_STREAM", absl::StrCat(info.st_dev, ":", info.st_ino).c_str(), 1);
    if (SetLogLevel("info").ok()) Log(level, "store", "text");
    _exit(0);
  }
  close(ends[1]);
  char line[256];
  const ssize_t count = read(ends[0], line, sizeof line);
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return std::string(line, static_cast<size_t>(std::max<ssize_t>(0, count)));
}

TEST_CASE("journal_gets_priorities_in_place_of_times") {
  CHECK(LoggedToJournal(LogLevel::kInfo) == "<6>INFO  store    text\n");
  CHECK(LoggedToJournal(LogLevel::kError) == "<3>ERROR store    text\n");
}

}  // namespace
}  // namespace atl

#include "worker/notice.h"

#include <catch2/catch.hpp>
#include <future>

#include "common/event_loop.h"
#include "tests/catch/limits.h"

namespace atl::worker {
namespace {

using namespace std::chrono_literals;

TEST_CASE("exit status 0 is a notice, any other is none") {
  REQUIRE(RunNoticeCommand("exit 0", atl::testing::kHangLimit)->has_value());
  REQUIRE(!RunNoticeCommand("exit 0", atl::testing::kHangLimit)->value().within);
  REQUIRE(!RunNoticeCommand("exit 1", atl::testing::kHangLimit)->has_value());
  REQUIRE(!RunNoticeCommand("kill -9 $$", atl::testing::kHangLimit)->has_value());
}

TEST_CASE("the output's first number is how long there is") {
  REQUIRE(RunNoticeCommand("echo 90 seconds left", atl::testing::kHangLimit)->value().within ==
          Duration(90s));
  REQUIRE(!RunNoticeCommand("echo soon", atl::testing::kHangLimit)->value().within);
  REQUIRE(!RunNoticeCommand("echo -5", atl::testing::kHangLimit)->value().within);
  REQUIRE(RunNoticeCommand("yes | head -c 1000000", atl::testing::kHangLimit)
              ->has_value());  // more than is read
}

TEST_CASE("output_that_says_no_time_is_a_notice_without_one") {
  CHECK(NoticeFrom("2.5").within == Duration(2500ms));
  for (const char* output : {"", " \n", "nan", "inf", "-1", "1e7", "soon 5"}) {
    CAPTURE(output);
    CHECK(!NoticeFrom(output).within);
  }
}

TEST_CASE("what cannot be run, or does not end, is trouble and no notice") {
  REQUIRE(absl::IsFailedPrecondition(
      RunNoticeCommand("/no/such/command", atl::testing::kHangLimit).status()));
  REQUIRE(absl::IsDeadlineExceeded(RunNoticeCommand("sleep 1000 & sleep 1000", 200ms).status()));
}

TEST_CASE("a watcher polls until there is a notice, and reports a failure once") {
  const std::string file =
      std::string(getenv("TEST_TMPDIR") != nullptr ? getenv("TEST_TMPDIR") : "/tmp") + "/notice";
  std::remove(file.c_str());
  std::promise<Notice> noticed;
  std::atomic<int> troubles = 0;
  NoticeWatcher watcher(
      "n=$(cat " + file + " 2>/dev/null || echo 0); echo $((n + 1)) > " + file +
          "; [ $n -lt 2 ] && exit 127; [ $n -ge 4 ] && echo 30",
      10ms, [&](Notice notice) { noticed.set_value(notice); },
      [&](const std::string& trouble) { troubles += !trouble.empty(); });
  REQUIRE(noticed.get_future().get().within == Duration(30s));
  REQUIRE(troubles == 1);
}

TEST_CASE("a watcher that is not wanted any more ends") {
  NoticeWatcher watcher(
      "exit 1", 1000s, [](Notice) {}, [](const std::string&) {});
}

}  // namespace
}  // namespace atl::worker

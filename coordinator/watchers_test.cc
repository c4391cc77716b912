// Streams that watch: when they are polled, and what a shared view costs.

#include "coordinator/watchers.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "coordinator/shared_view.h"

namespace atl {
namespace {

constexpr Instant kBegin{std::chrono::seconds(100)};
constexpr Duration kMs = std::chrono::milliseconds(1);

// Watchers whose polls take as long as `cost` says, with what each has been polled.
struct Harness {
  void Add(size_t count, Duration interval) {
    for (size_t i = 0; i < count; ++i) {
      const size_t own = polls.size();
      polls.push_back(0);
      watchers.Add(interval, [this, own](Instant) {
        now += cost;
        ++polls[own];
        return !ended;
      });
    }
  }
  // Turns watchers when they want it; returns how long they have polled.
  Duration Run(Duration span) {
    const Instant end = now + span;
    Duration polled{};
    while (now < end) {
      const Instant begin = now;
      const Instant next = watchers.Turn(now);
      polled += now - begin;
      REQUIRE(next >= now);
      longest = std::max(longest, now - begin);
      now = std::min(next, end);
    }
    return polled;
  }

  Instant now = kBegin;
  Duration cost{}, longest{};
  bool ended = false;
  std::vector<int> polls;
  Watchers watchers{[this] { return now; }};
};

TEST_CASE("cheap_watchers_are_polled_at_their_intervals") {
  Harness h;
  h.Add(10, 100 * kMs);
  h.Run(1000 * kMs);
  for (const int polls : h.polls) CHECK(polls == 10);
}

TEST_CASE("costly_watchers_take_a_twentieth_of_the_time_and_are_all_polled") {
  Harness h;
  h.cost = 2 * kMs;  // 250 at intervals of 100 ms would take 5 s a second
  h.Add(250, 100 * kMs);
  h.Run(600 * kMs);  // first polls
  h.longest = {};
  const Duration polled = h.Run(20'000 * kMs);
  CHECK(polled <= 1010 * kMs);
  CHECK(polled >= 950 * kMs);
  CHECK(h.longest <= 6 * kMs);
  for (const int polls : h.polls) CHECK(polls >= 1);
}

TEST_CASE("new_streams_are_polled_at_once_though_others_have_had_their_share") {
  Harness h;
  h.cost = 20 * kMs;
  h.Add(1, 100 * kMs);
  h.Run(100 * kMs);
  REQUIRE(h.polls == std::vector<int>{1});
  h.Run(30 * kMs);  // the second poll, and 380 ms of rest begin
  REQUIRE(h.polls == std::vector<int>{2});
  h.Add(2, 100 * kMs);
  h.Run(40 * kMs);
  CHECK(h.polls == std::vector<int>{2, 1, 1});
  CHECK(h.longest == 20 * kMs);  // tasks of the loop run between the two
  h.Run(320 * kMs);
  CHECK(h.polls == std::vector<int>{2, 1, 1});  // first polls did not shorten the rest
  h.Run(50 * kMs);
  CHECK(h.polls == std::vector<int>{3, 1, 1});
}

TEST_CASE("streams_that_have_ended_are_polled_no_more") {
  Harness h;
  h.Add(3, 100 * kMs);
  h.ended = true;
  h.Run(500 * kMs);
  CHECK(h.polls == std::vector<int>{1, 1, 1});
  CHECK(h.watchers.size() == 0);
  CHECK(h.watchers.Turn(h.now) == kNever);
}

TEST_CASE("a_caller_that_reads_nothing_for_two_minutes_is_to_end") {
  ViewWatch reads;
  CHECK_FALSE(reads.IsOver(kBegin, false));  // the first message is on its way
  CHECK_FALSE(reads.IsOver(kBegin + 119'000 * kMs, false));
  CHECK_FALSE(reads.IsOver(kBegin + 120'000 * kMs, true));  // slow, but it reads
  CHECK_FALSE(reads.IsOver(kBegin + 239'000 * kMs, false));
  CHECK(reads.IsOver(kBegin + 240'000 * kMs, false));
}

TEST_CASE("a_shared_view_is_made_again_when_old_and_numbered_when_changed") {
  Instant now = kBegin;
  Duration cost{};
  SharedView view([&] { return now; });
  int made = 0;
  std::string message = "a";
  const auto refresh = [&] {
    view.Refresh(now, [&] {
      now += cost;
      ++made;
      return message;
    });
  };
  CHECK(view.number() == 0);
  for (int i = 0; i < 3; ++i) refresh();
  CHECK(made == 1);
  CHECK(view.number() == 1);
  CHECK(view.bytes().Length() == 1);
  now += 100 * kMs;
  refresh();
  CHECK(made == 2);
  CHECK(view.number() == 1);  // the same
  now += 100 * kMs;
  message = "bc";
  refresh();
  CHECK(view.number() == 2);
  CHECK(view.bytes().Length() == 2);

  SECTION("one that takes long is kept for long") {
    cost = 10 * kMs;
    now += 100 * kMs;
    refresh();
    now += 590 * kMs;
    refresh();
    CHECK(made == 4);
    now += 20 * kMs;
    refresh();
    CHECK(made == 5);
  }
}

}  // namespace
}  // namespace atl

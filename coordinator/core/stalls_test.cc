// Islands whose workers send heartbeats and make no progress, in the World's commands.

#include <catch2/catch.hpp>
#include <string>

#include "coordinator/core/testing/world.h"

namespace atl::testing {
namespace {

// Commits `rounds` rounds of worker a's contributions alone, and says how long they take.
int Rounds(World& w, int rounds) {
  int seconds = 0;
  for (int i = 0; i < rounds; ++i) {
    const Version next = w.Job().summary.version + 1;
    w.Round({"a"}, 4);
    while (w.Job().summary.version < next && seconds < 1000) {
      w.Do("wait 1");
      w.Do("servers answer");
      ++seconds;
    }
  }
  return seconds;
}

TEST_CASE("worker_cut_off_from_the_servers_is_waited_for_once_and_named") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "steps=4 tokens=100000 grace=10");
  // Granted; nothing ever reaches the server, and nothing is pulled.
  w.DoLines({"worker b leases", "worker b pushes", "worker b stands-still"});
  const int seconds = Rounds(w, 10);
  CHECK(seconds <= 11);  // one grace time, not ten
  CHECK(w.Job().summary.version == 10);
  CHECK(w.Island(1).activity.find("not waited for") == 0);
  CHECK(w.Island(1).incarnation != 0);  // its worker is a member still
  SECTION("when its pushes arrive, rounds wait for it again") {
    w.DoLines({"worker b stages", "servers answer"});
    CHECK(w.Island(1).activity.find("not waited for") == std::string::npos);
    w.Contribute("a", 4);
    w.DoLines({"servers answer", "worker b ready"});
    const Version before = w.Job().summary.version;
    w.Round({"a"}, 4);
    CHECK(w.Job().summary.version == before);  // the window is open, for b
  }
  SECTION("after long it begins anew, and its data is free") {
    CHECK(w.Island(1).leased_sequences == 0);
    const Generation before = w.Island(1).generation;
    Rounds(w, 1);
    for (int i = 0; i < 70; ++i) {
      w.Do("wait 10");
      Rounds(w, 1);
    }
    CHECK(w.Island(1).generation > before);
    CHECK_FALSE(w.Island(1).ready);
  }
}

TEST_CASE("worker_that_makes_no_steps_is_waited_for_once") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "steps=4 tokens=100000 grace=10");
  w.DoLines({"worker b leases", "worker b stands-still"});
  CHECK(Rounds(w, 10) <= 21);
  CHECK(w.Island(1).activity.find("not waited for") == 0);
}

TEST_CASE("slow_worker_that_makes_steps_is_waited_for_each_round") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "steps=4 tokens=100000 grace=10");
  w.DoLines({"worker b leases"});
  CHECK(Rounds(w, 3) >= 30);
}

TEST_CASE("rounds_that_wait_for_all_wait_for_a_worker_without_progress_too") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "steps=4 tokens=100000 grace=10 wait-for-all");
  w.DoLines({"worker b leases", "worker b pushes", "worker b stands-still"});
  CHECK(Rounds(w, 1) > 600);
}

}  // namespace
}  // namespace atl::testing

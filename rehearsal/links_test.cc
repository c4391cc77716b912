#include "rehearsal/links.h"

#include <catch2/catch.hpp>
#include <vector>

#include "rehearsal/testing/small_scene.h"

namespace atl::rehearsal {
namespace {

struct Fixture {
  Fixture() {
    scene.links[{"site-0", "site-1"}] = {0.5, 100};
    scene.links[{"site-1", "site-0"}] = {0.5, 100};
    scene.links[{"site-0", "site-0"}] = {0.5, 100};
  }
  void Send(double bytes) { Send({{"site-0", "site-1"}, "server-0"}, bytes); }
  int64_t Send(const Links::Path& path, double bytes) {
    return links.Send(path, bytes,
                      [this] { arrived.push_back(Seconds(timeline.now() - Instant{})); });
  }
  void Run() {
    while (!timeline.empty()) timeline.RunOne();
  }

  Scene scene = testing::MakeSmallScene(testing::MakeSpec(100), 2, 1);
  Timeline timeline;
  Links links{&scene, &timeline};
  std::vector<double> arrived;
};

TEST_CASE("transfers share a link") {
  Fixture f;
  f.Send(100);
  f.Send(200);
  f.Run();
  REQUIRE(f.arrived.size() == 2);
  CHECK(f.arrived[0] == Approx(2.5));  // half of it each, until the first is done
  CHECK(f.arrived[1] == Approx(3.5));
}

TEST_CASE("servers of a site have a card each, and a card carries as much in both directions") {
  Fixture f;
  const Links::Ends within = {"site-0", "site-0"};
  f.Send({within, "server-0"}, 100);
  f.Send({within, "server-0", /*receives=*/false}, 100);
  f.Send({within, "server-1"}, 100);
  f.Run();
  REQUIRE(f.arrived.size() == 3);
  CHECK(f.arrived.back() == Approx(1.5));
  f.Send({within, "server-0"}, 100);
  f.Send({within, "server-0"}, 100);
  f.Run();
  CHECK(f.arrived.back() == Approx(1.5 + 2.5));
}

TEST_CASE(
    "a transfer that is cancelled, or whose server has ended, leaves the link to the others") {
  Fixture f;
  f.Send(100);
  const int64_t cancelled = f.Send({{"site-0", "site-1"}, "server-0"}, 1000);
  f.Send({{"site-0", "site-1"}, "server-1"}, 1000);
  f.timeline.After(std::chrono::milliseconds(300), [&] { f.links.Cancel(cancelled); });
  f.timeline.After(std::chrono::milliseconds(500), [&] { f.links.Break("server-1"); });
  f.Run();
  REQUIRE(f.arrived.size() == 2);
  CHECK(f.arrived[0] == Approx(0.5));  // its receiver finds that the server has ended
  // A third of the link for 0.3 s, a half for 0.2 s, then all of it.
  CHECK(f.arrived[1] == Approx(0.5 + 0.8 + 0.5));
}

TEST_CASE("what is on its way waits while the link is down, and is slow on a slow one") {
  Fixture f;
  f.Send(300);
  f.timeline.After(std::chrono::seconds(1), [&] { f.links.Change({"site-0", "site-1"}, 0); });
  f.timeline.After(std::chrono::seconds(11), [&] {
    f.links.Restore({"site-0", "site-1"}, 0);
    f.links.Change({"site-0", "site-1"}, 0.5);
  });
  f.Run();
  REQUIRE(f.arrived.size() == 1);
  CHECK(f.arrived[0] == Approx(11 + 200 / 50.0 + 0.5));
}

TEST_CASE("a link that is nearly down does not end time") {
  Fixture f;
  f.links.Change({"site-0", "site-1"}, 1e-12);
  f.Send(1e12);
  CHECK(f.timeline.next() > f.timeline.now());
}

TEST_CASE("what is said while a link is down arrives when it is up again") {
  Fixture f;
  f.links.Change({"site-0", "site-1"}, 0);
  f.links.Say({"site-0", "site-1"},
              [&] { f.arrived.push_back(Seconds(f.timeline.now() - Instant{})); });
  f.timeline.After(std::chrono::seconds(4), [&] { f.links.Restore({"site-0", "site-1"}, 0); });
  f.Run();
  REQUIRE(f.arrived.size() == 1);
  CHECK(f.arrived[0] == Approx(4.5));
}

}  // namespace
}  // namespace atl::rehearsal

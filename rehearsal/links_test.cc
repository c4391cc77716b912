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
  }
  void Send(double bytes) {
    links.Send({"site-0", "site-1"}, bytes,
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

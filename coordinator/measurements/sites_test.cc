#include "coordinator/measurements/sites.h"

#include <catch2/catch.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace atl {
namespace {

// Workers, and links whose numbers a test sets.
struct World {
  std::map<NodeId, Standing> workers;
  std::map<std::pair<NodeId, NodeId>, LinkProfile> links;

  void Joins(const NodeId& a, const NodeId& b, double ms, double mbit) {
    for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
      links[{from, to}] = {from, to, static_cast<int64_t>(ms * 1e6), mbit * 1e6 / 8, 0, 1};
      workers[from];
    }
  }
  // "site-a: a b; site-c: c"
  std::string Finds() {
    std::map<std::string, std::string> members;
    for (const auto& [worker, found] : FindSites(workers, links)) {
      absl::StrAppend(&members[found.site], " ", worker);
      workers[worker].before = found.site;
      source[found.site] = found.source;
    }
    std::string text;
    for (const auto& [site, names] : members) {
      absl::StrAppend(&text, text.empty() ? "" : "; ", site, ":", names);
    }
    return text;
  }
  std::map<std::string, std::string> source;
};

// Two fast pairs over a link of 95 Mbit/s with 21 ms.
World TwoSites(double noise = 1) {
  World world;
  world.Joins("a", "b", 0.3, 940);
  world.Joins("c", "d", 0.3 * noise, 940 / noise);
  for (const char* x : {"a", "b"}) {
    for (const char* y : {"c", "d"}) world.Joins(x, y, 21, 95);
  }
  return world;
}

TEST_CASE("sites are who is near, named after their first workers, with what was measured") {
  World world = TwoSites();
  CHECK(world.Finds() == "site-a: a b; site-c: c d");
  CHECK(world.source["site-a"] ==
        "measured: 300 us, 940 Mbit/s inside; 21 ms, 95 Mbit/s to site-c");
}

TEST_CASE("two workers alone are one site if their link is short, whatever it carries") {
  World near, far;
  near.Joins("a", "b", 0.5, 90);
  CHECK(near.Finds() == "site-a: a b");
  far.Joins("a", "b", 20, 1000);
  CHECK(far.Finds() == "site-a: a; site-b: b");
  CHECK(far.source["site-a"] == "measured: alone; 20 ms, 1000 Mbit/s to site-b");
}

TEST_CASE("on a fast network noise of any size is no border") {
  World world;
  world.Joins("a", "b", 0.02, 12'000);
  world.Joins("a", "c", 0.6, 3'000);  // a busy machine
  world.Joins("b", "c", 0.9, 2'600);
  CHECK(world.Finds() == "site-a: a b c");
}

TEST_CASE("who does not reach its neighbour is its neighbour all the same") {
  World world;
  world.Joins("a", "b", 0.1, 1000);
  world.Joins("a", "c", 0.1, 1000);
  for (const char* near : {"a", "b", "c"}) world.Joins(near, "d", 20, 100);
  CHECK(world.Finds() == "site-a: a b c; site-d: d");
}

TEST_CASE("names and members stay while measurements vary, and while there are none") {
  World world = TwoSites();
  world.Finds();
  for (const double noise : {1.4, 0.8, 1.2, 1.0}) {
    world.links = TwoSites(noise).links;
    CHECK(world.Finds() == "site-a: a b; site-c: c d");
  }
  world.workers.erase("a");  // the site is still called after it
  CHECK(world.Finds() == "site-a: b; site-c: c d");
  world.links.clear();  // the coordinator has restarted
  world.workers["e"];
  CHECK(world.Finds() == "site-a: b; site-c: c d");
}

TEST_CASE("a worker that has moved for good is found at its new site") {
  World world = TwoSites();
  world.Finds();
  world.Joins("b", "a", 21, 95);
  world.Joins("b", "c", 0.3, 940);
  world.Joins("b", "d", 0.3, 940);
  CHECK(world.Finds() == "site-a: a; site-c: b c d");
}

TEST_CASE("what operators say holds, and who is near a declared site is there") {
  World world = TwoSites();
  world.workers["a"].declared = "oslo";
  world.workers["c"].declared = "rome";
  CHECK(world.Finds() == "oslo: a b; rome: c d");
  world.workers["b"].declared = "bergen";
  CHECK(world.Finds() == "bergen: b; oslo: a; rome: c d");
  world.workers["d"].declared = "oslo";  // far from it, but so it is said
  CHECK(world.Finds() == "bergen: b; oslo: a d; rome: c");
}

}  // namespace
}  // namespace atl

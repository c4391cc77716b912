#include "rehearsal/failures.h"

#include <catch2/catch.hpp>
#include <set>

#include "rehearsal/testing/small_scene.h"

namespace atl::rehearsal {
namespace {

using std::chrono::hours;
using std::chrono::minutes;

// Draws a file's failures in a scene.
absl::StatusOr<std::vector<Failure>> Draw(const Failures& failures, const Scene& scene,
                                          Duration until, uint64_t seed) {
  const absl::StatusOr<FailureSource> source = FailureSource::Make(&failures, &scene);
  if (!source.ok()) return source.status();
  return source->Draw(until, seed);
}

TEST_CASE("times have units") {
  CHECK(*ParseTime("90 s") == std::chrono::seconds(90));
  CHECK(*ParseTime("1.5h") == minutes(90));
  CHECK(*ParseTime("2 d") == hours(48));
  for (const char* bad : {"", "90", "2 weeks", "-1 s", "h"}) {
    INFO(bad);
    CHECK_FALSE(ParseTime(bad).ok());
  }
}

TEST_CASE("an unknown key is refused by its name, and so is a subject that is not there") {
  const auto unknown = ParseFailures("[[failures]]\nmtbf = 5\n", "f.toml");
  REQUIRE_FALSE(unknown.ok());
  CHECK(absl::IsInvalidArgument(unknown.status()));
  CHECK_THAT(std::string(unknown.status().message()), Catch::Contains("failures[0].mtbf"));
  const auto failures =
      ParseFailures("[[events]]\nat = \"1 h\"\nkind = \"node\"\nsubject = \"n9\"\n", "f.toml");
  REQUIRE(failures.ok());
  const Scene scene = testing::MakeSmallScene(testing::MakeSpec(100), 1, 2);
  CHECK(absl::IsNotFound(Draw(*failures, scene, hours(2), 1).status()));
}

TEST_CASE("a law's failures come at its rate, and a seed repeats them") {
  const auto failures = ParseFailures(
      "[[failures]]\nof = \"a100-80\"\nmtbf_hours = 100\nrepair = \"lognormal(1.5 h, 1)\"\n",
      "f.toml");
  REQUIRE(failures.ok());
  const Scene scene = testing::MakeSmallScene(testing::MakeSpec(100), 2, 8);
  size_t count = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    count += Draw(*failures, scene, hours(1000), seed)->size();
  }
  // 20 seeds of 16 devices and 10 failures each: 3,200, give or take three deviations.
  CHECK(count > 3200 - 3 * 57);
  CHECK(count < 3200 + 3 * 57);
  const auto one = Draw(*failures, scene, hours(1000), 7);
  const auto again = Draw(*failures, scene, hours(1000), 7);
  REQUIRE(one->size() == again->size());
  for (size_t i = 0; i < one->size(); ++i) {
    CHECK((*one)[i].at == (*again)[i].at);
    CHECK((*one)[i].lasts == (*again)[i].lasts);
    CHECK((*one)[i].subject == (*again)[i].subject);
  }
}

TEST_CASE("failures that come together take all workers of the site along") {
  const auto failures = ParseFailures(
      "[[failures]]\nkind = \"node\"\nmtbf_hours = 100\ntogether = \"site\"\n", "f.toml");
  REQUIRE(failures.ok());
  const Scene scene = testing::MakeSmallScene(testing::MakeSpec(100), 2, 3);
  const auto drawn = Draw(*failures, scene, hours(100), 1);
  REQUIRE(!drawn->empty());
  for (const Failure& failure : *drawn) CHECK(failure.workers.size() == 3);
}

TEST_CASE("numbers of servers are read, and too large ones refused") {
  const auto failures = ParseFailures("[[servers]]\nsite = \"site-0\"\ncount = 2\n", "f.toml");
  REQUIRE(failures.ok());
  CHECK(failures->servers.size() == 1);
  CHECK(absl::IsInvalidArgument(
      ParseFailures("[[servers]]\nsite = \"site-0\"\ncount = 4294967298\n", "f.toml").status()));
}

TEST_CASE("what a kind does not have is refused") {
  for (const char* bad :
       {"[[failures]]\nmtbf_hours = 5\ntogether = \"site\"\ntogether_share = -1\n",
        "[[failures]]\nmtbf_hours = 5\ntogether = \"site\"\ntogether_share = nan\n",
        "[[failures]]\nkind = \"server\"\nmtbf_hours = 5\ntogether = \"site\"\n",
        "[[failures]]\nmtbf_hours = 5\ntogether = \"rack\"\n",
        "[[failures]]\nmtbf_hours = 5\nnotice = \"2 min\"\n",
        "[[failures]]\nkind = \"node\"\nmtbf_hours = 5\nfactor = 0.5\n",
        "[[failures]]\nkind = \"coordinator\"\nof = \"paris\"\nmtbf_hours = 5\n"}) {
    INFO(bad);
    CHECK(absl::IsInvalidArgument(ParseFailures(bad, "f.toml").status()));
  }
}

TEST_CASE("what cannot happen in the time, or far too often, is refused") {
  const Scene scene = testing::MakeSmallScene(testing::MakeSpec(100), 1, 2);
  for (const char* bad :
       {"[[events]]\nat = \"3 h\"\nkind = \"node\"\nsubject = \"n0-0\"\n",
        "[[failures]]\nmtbf_hours = 1e-9\n", "[[racks]]\nname = \"r\"\nnodes = [\"n7\"]\n"}) {
    INFO(bad);
    const auto failures = ParseFailures(bad, "f.toml");
    REQUIRE(failures.ok());
    CHECK_FALSE(Draw(*failures, scene, hours(2), 1).ok());
  }
}

TEST_CASE("subjects that are not there are refused before anything is drawn") {
  const Scene scene = testing::MakeSmallScene(testing::MakeSpec(100), 1, 2);
  for (const char* bad : {"[[events]]\nat = \"1 h\"\nkind = \"disk\"\nsubject = \"n9\"\n",
                          "[[failures]]\nof = \"h100\"\nmtbf_hours = 5\n",
                          "[[racks]]\nname = \"r\"\nnodes = [\"n7\"]\n"}) {
    INFO(bad);
    const auto failures = ParseFailures(bad, "f.toml");
    REQUIRE(failures.ok());
    CHECK(absl::IsNotFound(FailureSource::Make(&*failures, &scene).status()));
  }
}

TEST_CASE("prices change by hour, over midnight too, and the last one that applies holds") {
  const auto failures = ParseFailures(
      "[[prices]]\nfrom_hour = 22\nto_hour = 6\nprice_per_hour = 1\n"
      "[[prices]]\nof = \"site-1\"\nfrom_hour = 0\nto_hour = 24\nprice_per_hour = 3\n",
      "f.toml");
  REQUIRE(failures.ok());
  Scene scene = testing::MakeSmallScene(testing::MakeSpec(100), 2, 1);
  REQUIRE(SetPrices(failures->prices, scene).ok());
  const SceneWorker& worker = scene.workers[0];
  CHECK(worker.ComputePrice(hours(0), hours(24)) == Approx(8 * 1 + 16 * 2));
  CHECK(worker.ComputePrice(hours(5), hours(7)) == Approx(1 + 2));
  CHECK(worker.ComputePrice(hours(21) + minutes(30), hours(24 + 1)) == Approx(0.5 * 2 + 3 * 1));
  CHECK(scene.workers[1].ComputePrice(hours(1), hours(49)) == Approx(48 * 3));
  for (const char* bad :
       {"[[prices]]\nfrom_hour = 24\nto_hour = 6\n", "[[prices]]\nfrom_hour = 3\nto_hour = 3\n",
        "[[prices]]\nfrom_hour = 3\nto_hour = 4\nprice_per_hour = -1\n"}) {
    INFO(bad);
    CHECK(absl::IsInvalidArgument(ParseFailures(bad, "f.toml").status()));
  }
  CHECK(absl::IsNotFound(SetPrices({{"h100", 0, 24, 1}}, scene)));
}

TEST_CASE("a subject's failures do not depend on which others there are") {
  const auto failures = ParseFailures("[[failures]]\nkind = \"node\"\nmtbf_hours = 10\n", "f");
  REQUIRE(failures.ok());
  const auto times = [&](int machines) {
    std::vector<Duration> of;
    const Scene scene = testing::MakeSmallScene(testing::MakeSpec(100), 2, machines);
    for (const Failure& failure : *Draw(*failures, scene, hours(200), 1)) {
      if (failure.subject == "n1-0") of.push_back(failure.at);
    }
    return of;
  };
  CHECK(!times(1).empty());
  CHECK(times(1) == times(3));
}

}  // namespace
}  // namespace atl::rehearsal

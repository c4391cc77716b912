// The findings of running islands outlive the coordinator.

#include <catch2/catch.hpp>

#include "coordinator/measurements/testing/profile_registry_fixture.h"

namespace atl {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

// The same workers and another coordinator, so long after the first one stored what it knew.
void Restart(const Running& before, Duration after, Running& fixture) {
  fixture.now = before.now + after;
  fixture.store = before.store;
  fixture.window = before.window;
  for (const char* worker : {"a", "b"}) fixture.registry.Remember(worker, 5, {});
  for (const auto& [key, record] : before.store) {
    if (const auto* link = std::get_if<LinkRecord>(&record)) {
      fixture.registry.Remember(fixture.now, before.now, *link);
    } else {
      fixture.registry.Remember(fixture.now, before.now, std::get<DeviceRecord>(record));
    }
  }
  // They say again what they had measured, before the islands showed another thing.
  for (const char* worker : {"a", "b"}) fixture.Deliver(worker, WorkerHello{});
  fixture.KnowsDevice();
  fixture.Deliver("a", LinksMeasured{"", 0, {{"a", "b", 1'000'000, 1e8}}, ""});
  fixture.Deliver("b", LinksMeasured{"", 0, {{"b", "a", 1'000'000, 1e8}}, ""});
}

// Bandwidth of a > b, and how long F of a block takes on b/0.
std::pair<double, int64_t> Known(const Running& fixture) {
  return {fixture.registry.Links()[0].link.bandwidth_bytes_per_s,
          fixture.registry.Devices(ComputeModelDigest(Shape(), 32))[0].layers[0].forward_ns};
}

TEST_CASE("lines and devices that are not what was measured are so after a restart, too") {
  Running before;
  before.KnowsDevice();
  CHECK(before.store.empty());  // what was measured, the workers keep
  for (int i = 0; i < 3; ++i) before.Sees(0.041, 1'000'000);
  for (int i = 0; i < 3; ++i) before.Works(2);
  CHECK(before.store.size() == 2);
  const auto known = Known(before);
  CHECK(known.first < 3e7);
  CHECK(known.second == 10'000'000);

  SECTION("with their age") {
    Running fixture(/*measured=*/false);
    Restart(before, minutes(7), fixture);
    CHECK(Known(fixture) == known);
    const LinkReport report = fixture.registry.Links()[0];
    CHECK(report.live);
    CHECK(fixture.now - report.at == minutes(7));
    CHECK(fixture.TakeChanges().empty());  // nothing is new
    CHECK(fixture.registry.ListTroubles(fixture.now).size() == 1);
    // Later findings are compared with the restored ones.
    for (int i = 0; i < 3; ++i) fixture.Sees(0.011, 1'000'000);
    CHECK(fixture.TakeChanges() == "link a > b is 3.7 times faster than measured\n");
    for (int i = 0; i < 3; ++i) fixture.Works(0.95);
    CHECK(fixture.TakeChanges() == "b/0 is as measured again, not 2 times slower\n");
    CHECK(fixture.store.size() == 1);
  }
  SECTION("until they are measured anew, or the worker is another process") {
    Running fixture(/*measured=*/false);
    Restart(before, seconds(5), fixture);
    fixture.Deliver("a", LinksMeasured{"job-1", 3, {{"a", "b", 1'000'000, 1e8}}, ""});
    CHECK(fixture.store.size() == 1);
    fixture.registry.OnMessage(fixture.now, {"b", 6, WorkerHello{}});
    fixture.Advances();
    CHECK(fixture.store.empty());
    CHECK(Known(fixture) == std::pair<double, int64_t>(1e8, 5'000'000));
  }
  SECTION("but for what is too old to be believed") {
    Running fixture(/*measured=*/false);
    Restart(before, hours(25), fixture);
    CHECK(Known(fixture) == std::pair<double, int64_t>(1e8, 5'000'000));
    CHECK(fixture.store.empty());
  }
  SECTION("a device that shows nothing any more is tried again, as without a restart") {
    Running fixture(/*measured=*/false);
    Restart(before, hours(2), fixture);
    CHECK(Known(fixture) == known);
    fixture.now += minutes(6);
    fixture.Advances();
    CHECK_THAT(fixture.TakeChanges(), Catch::EndsWith("and is tried again\n"));
    CHECK(fixture.store.size() == 1);
  }
}

TEST_CASE("only so much is stored: the newest") {
  Fixture fixture;
  ProfileRegistry registry(3);
  std::map<std::string, StoreRecord> store;
  for (int i = 0; i < 10; ++i) {
    StageLinkState state;
    state.from = "a/0";
    state.to = absl::StrCat("b", i, "/0");
    state.quickest_bytes = 1'000'000;
    state.quickest_seconds = 0.1;
    IslandProgress progress;
    for (state.window = 1; state.window <= 3; ++state.window) {
      progress.stage_links = {state};
      registry.OnMessage(fixture.now + seconds(i), {"a", 5, WorkerHeartbeat{progress, {}}});
    }
    for (StoreWrite& write : registry.Advance(fixture.now + seconds(i)).persist) {
      const std::string key = MakeRecordKey(write.record);
      if (write.erase) {
        store.erase(key);
      } else {
        store.insert_or_assign(key, std::move(write.record));
      }
    }
  }
  CHECK(registry.Links().size() == 10);
  REQUIRE(store.size() == 3);
  CHECK(store.begin()->first == "link/a/b7");
}

}  // namespace
}  // namespace atl

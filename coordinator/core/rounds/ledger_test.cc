#include "coordinator/core/rounds/ledger.h"

#include <catch2/catch.hpp>
#include <map>

#include "common/rng.h"

namespace atl {
namespace {

using Ranges = std::vector<PositionRange>;

ContributionId From(IslandId island, Version base = 0) { return {island, 1, 1, base}; }

TEST_CASE("leases are the lowest free positions") {
  Ledger ledger(100);
  CHECK(ledger.Lease(0, 10) == Ranges{{0, 10}});
  CHECK(ledger.Lease(1, 5) == Ranges{{10, 15}});
  CHECK(ledger.Lease(0, 5) == Ranges{{15, 20}});
  ledger.Release(1);
  CHECK(ledger.Lease(2, 8) == Ranges{{10, 15}, {20, 23}});
  CHECK(ledger.Leased(0) == 15);
}

TEST_CASE("no more is leased than the budget") {
  Ledger ledger(10);
  CHECK(ledger.Lease(0, 100) == Ranges{{0, 10}});
  CHECK(ledger.Lease(0, 1).empty());
  CHECK(ledger.Lease(0, -5).empty());
  CHECK(ledger.free() == 0);
}

TEST_CASE("axes are leased apart from each other, and the budget is of all together") {
  Ledger ledger(20);
  const auto at = [](int64_t begin, int64_t end) {
    return PositionRange{2 * kAxisPositions + begin, 2 * kAxisPositions + end};
  };
  CHECK(ledger.Lease(0, 8) == Ranges{{0, 8}});
  CHECK(ledger.Lease(1, 5, kLeaseRangesMax, 2) == Ranges{at(0, 5)});
  CHECK(ledger.Lease(0, 2) == Ranges{{8, 10}});
  CHECK(ledger.Lease(1, 9, kLeaseRangesMax, 2) == Ranges{at(5, 10)});
  CHECK(ledger.free() == 0);
  CHECK(ledger.Lease(0, 1).empty());
  CHECK_FALSE(ledger.LeaseExactly(0, {{10, 11}}));  // not leased, but beyond the budget
  REQUIRE(ledger.Push(From(1), {at(0, 10)}).ok());
  ledger.Release(0);
  ledger.Commit(From(1));
  CHECK(ledger.Count(LedgerUse::kCommitted) == 10);
  // Another axis may use what is left.
  CHECK(ledger.Lease(1, 100, kLeaseRangesMax, 2) == Ranges{at(10, 20)});
  CHECK(ledger.free() == 0);
}

TEST_CASE("a range lies on one axis, among as many positions as the budget has") {
  const Ledger ledger(20);
  CHECK(ledger.IsRange({0, 20}));
  CHECK(ledger.IsRange({3 * kAxisPositions + 19, 3 * kAxisPositions + 20}));
  for (const PositionRange& range :
       {PositionRange{19, 21}, {-1, 2}, {3, 3}, {4, 3}, {kAxisPositions - 1, kAxisPositions + 1}}) {
    CHECK_FALSE(ledger.IsRange(range));
  }
}

TEST_CASE("a ledger of several axes comes back from its records") {
  Ledger ledger(20);
  ledger.Lease(0, 4);
  ledger.Lease(1, 6, kLeaseRangesMax, 1);
  Ledger restored(20);
  for (const LedgerRecord& record : ledger.Records("lm-1")) REQUIRE(restored.Restore(record));
  CHECK(restored.free() == ledger.free());
  CHECK(restored.Records("lm-1") == ledger.Records("lm-1"));
  CHECK(restored.Leased(1) == 6);
}

TEST_CASE("pushed data is committed or comes back") {
  Ledger ledger(20);
  ledger.Lease(0, 10);
  ledger.Lease(1, 10);
  REQUIRE(ledger.Push(From(0), {{2, 5}, {0, 2}}).ok());
  REQUIRE(ledger.Push(From(1), {{10, 14}}).ok());
  ledger.Commit(From(0));
  ledger.Return(From(1));
  CHECK(ledger.Count(LedgerUse::kCommitted) == 5);
  CHECK(ledger.Leased(0) == 5);
  CHECK(ledger.Leased(1) == 6);
  CHECK(ledger.Lease(2, 9) == Ranges{{10, 14}});
}

TEST_CASE("what is not leased to the island cannot be pushed, and nothing changes") {
  Ledger ledger(20);
  ledger.Lease(0, 5);
  ledger.Lease(1, 5);
  for (const Ranges& ranges : {Ranges{{0, 6}}, Ranges{{5, 7}}, Ranges{{0, 2}, {1, 3}},
                               Ranges{{-1, 2}}, Ranges{{3, 3}}, Ranges{{0, 3}, {15, 18}}}) {
    CHECK_FALSE(ledger.Push(From(0), ranges).ok());
    CHECK(ledger.Leased(0) == 5);
  }
}

TEST_CASE("release leaves what is pushed") {
  Ledger ledger(20);
  ledger.Lease(0, 10);
  REQUIRE(ledger.Push(From(0), {{0, 4}}).ok());
  ledger.Release(0);
  CHECK(ledger.Count(LedgerUse::kPushed) == 4);
  CHECK(ledger.free() == 16);
}

TEST_CASE("exact leases need all of it free") {
  Ledger ledger(20);
  ledger.Lease(0, 4);
  CHECK_FALSE(ledger.LeaseExactly(1, {{6, 8}, {3, 5}}));
  CHECK_FALSE(ledger.LeaseExactly(1, {{6, 8}, {7, 9}}));
  CHECK_FALSE(ledger.LeaseExactly(1, {{18, 21}}));
  CHECK(ledger.Leased(1) == 0);
  CHECK(ledger.LeaseExactly(1, {{6, 8}, {4, 6}}));
  CHECK(ledger.Leased(1) == 4);
}

TEST_CASE("committed neighbours are one record") {
  Ledger ledger(1000);
  for (Version v = 0; v < 50; ++v) {
    ledger.Lease(0, 10);
    REQUIRE(ledger.Push(From(0, v), {{10 * v, 10 * v + 10}}).ok());
    ledger.Commit(From(0, v));
  }
  CHECK(ledger.Records("j").size() == 1);
}

TEST_CASE("random use: changes add up to the records, nothing is lost or held twice") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed);
    Ledger ledger(200);
    std::map<std::string, StoreRecord> store;
    std::map<IslandId, Ranges> held;
    for (int turn = 0; turn < 200; ++turn) {
      const IslandId island = static_cast<IslandId>(rng.Below(4));
      Ranges& ranges = held[island];
      const ContributionId id = From(island, turn);
      switch (rng.Below(4)) {
        case 0:
          for (const PositionRange& r : ledger.Lease(island, 1 + rng.Below(20))) {
            ranges.push_back(r);
          }
          break;
        case 1:
        case 2:
          REQUIRE(ledger.Push(id, ranges).ok());
          rng.Chance(0.5) ? ledger.Commit(id) : ledger.Return(id);
          ranges.clear();
          break;
        default:
          ledger.Release(island);
          ranges.clear();
      }
      for (const StoreWrite& write : ledger.TakeChanges("j")) {
        store.erase(MakeRecordKey(write.record));
        if (!write.erase) store.emplace(MakeRecordKey(write.record), write.record);
      }
      std::vector<StoreRecord> stored;
      Ledger again(200);
      for (const auto& [key, record] : store) {
        stored.push_back(record);
        REQUIRE(again.Restore(std::get<LedgerRecord>(record)));  // disjoint
      }
      const std::vector<LedgerRecord> records = ledger.Records("j");
      REQUIRE(stored == std::vector<StoreRecord>(records.begin(), records.end()));
      REQUIRE(again.free() == ledger.free());
      for (const auto& [i, r] : held) {
        int64_t size = 0;
        for (const PositionRange& range : r) size += range.size();
        REQUIRE(ledger.Leased(i) == size);
      }
    }
  }
}

}  // namespace
}  // namespace atl

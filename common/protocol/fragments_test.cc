#include "common/protocol/fragments.h"

#include <catch2/catch.hpp>

#include "proto/control.plain.h"

namespace atl {
namespace {

void CheckTurns(const OwnedShard& shard, const Fragments& fragments) {
  for (Version base = kNoVersion; base <= 20; ++base) {
    int64_t turns = 0;
    for (Version version = base + 1; version <= 30; ++version) {
      turns += IsInTurn(version, shard, fragments);
      INFO("layer " << shard.layer << ", versions " << base << " to " << version);
      REQUIRE(CountTurnsSince(base, version, shard, fragments) == turns);
      REQUIRE(HasTurnSince(base, version, shard, fragments) == (turns > 0));
      if (base == 0 && IsInTurn(version, shard, fragments)) {
        REQUIRE(CountTurns(version, shard, fragments) == turns);
      }
    }
  }
}

TEST_CASE("turns_of_a_layer_are_counted_as_they_come") {
  const Fragments fragments{.layers = GENERATE(1, 2, 3, 7)};
  for (int32_t layer = 0; layer < 9; ++layer) CheckTurns({0, layer}, fragments);
}

TEST_CASE("experts_have_turns_and_all_else_is_in_every_round") {
  const Fragments fragments{.experts = 3};
  for (int32_t expert = -1; expert < 7; ++expert) {
    const OwnedShard shard{.shard = 0, .layer = 1, .expert = expert};
    CheckTurns(shard, fragments);
    CHECK(CountTurnsSince(0, 6, shard, fragments) == (expert < 0 ? 6 : 2));
  }
}

}  // namespace
}  // namespace atl

#include "common/protocol/fragments.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

TEST_CASE("turns_of_a_layer_are_counted_as_they_come") {
  const int64_t fragments = GENERATE(1, 2, 3, 7);
  for (int32_t layer = 0; layer < 9; ++layer) {
    for (Version base = kNoVersion; base <= 20; ++base) {
      int64_t turns = 0;
      for (Version version = base + 1; version <= 30; ++version) {
        turns += IsInTurn(version, layer, fragments);
        INFO("layer " << layer << ", versions " << base << " to " << version);
        REQUIRE(CountTurnsSince(base, version, layer, fragments) == turns);
        REQUIRE(HasTurnSince(base, version, layer, fragments) == (turns > 0));
      }
    }
  }
}

}  // namespace
}  // namespace atl

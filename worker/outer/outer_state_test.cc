// Parts of a layer that a round does not concern: experts without tokens, or without a turn.

#include "worker/outer/outer_state.h"

#include <catch2/catch.hpp>

namespace atl::worker {
namespace {

// One layer of six elements, of which an expert has the two in the middle.
struct Mixture {
  Mixture() {
    pulled = {10, 10, 10, 10, 10, 10};
    Pull(0, {});
  }
  void Pull(Version version, const std::vector<ShardPlacement>& shards) {
    REQUIRE(state.Write(OuterKind::kPulled, 0, {0, 6}, pulled).ok());
    state.Finish(version, {}, /*keep_residual=*/true, shards);
  }
  std::vector<float> Read(OuterKind kind) {
    std::vector<float> values(6);
    REQUIRE(state.Read(kind, 0, {0, 6}, values).ok());
    return values;
  }
  void Capture(const std::vector<ShardPlacement>& shards) {
    REQUIRE(state
                .ReadAll(shards,
                         [&](int32_t, ElementRange range, std::span<float> out) {
                           std::copy_n(theta.begin() + range.begin, out.size(), out.begin());
                           return absl::OkStatus();
                         })
                .ok());
    REQUIRE(state.MakeDelta({.contribution = {0, 1, 1, 0}, .shards = shards}).ok());
  }

  const std::vector<ShardPlacement> shared = {{0, 0, 0, 2}, {2, 0, 4, 2}};
  OuterState state{"w", LayoutOfOne("w", {{"a", 6}}), OuterSpec()};
  std::vector<float> theta = {9, 9, 9, 9, 9, 9}, pulled;
};
using Values = std::vector<float>;

TEST_CASE("nothing is captured of an expert that is not pushed") {
  Mixture mixture;
  mixture.Capture(mixture.shared);
  CHECK(mixture.Read(OuterKind::kDelta) == Values{1, 1, 0, 0, 1, 1});
  mixture.Capture({});
  CHECK(mixture.Read(OuterKind::kDelta) == Values{1, 1, 1, 1, 1, 1});
}

TEST_CASE("an expert without a turn keeps its base") {
  Mixture mixture;
  mixture.Capture(mixture.shared);
  mixture.pulled = {5, 5, 7, 7, 5, 5};
  mixture.Pull(1, mixture.shared);
  CHECK(mixture.Read(OuterKind::kBase) == Values{5, 5, 10, 10, 5, 5});
  mixture.Pull(2, {});
  CHECK(mixture.Read(OuterKind::kBase) == Values{5, 5, 7, 7, 5, 5});
}

TEST_CASE("elements that no shard has are listed in the layers that shards concern") {
  const std::vector<ShardPlacement> shards = {{0, 0, 2, 3}, {1, 0, 7, 1}};
  CHECK(ListUnconcerned(shards, 0, {0, 10}) == std::vector<ElementRange>{{0, 2}, {5, 7}, {8, 10}});
  CHECK(ListUnconcerned(shards, 1, {0, 4}) == std::vector<ElementRange>{{0, 4}});
  CHECK(ListUnconcerned({}, 0, {0, 10}).empty());
}

}  // namespace
}  // namespace atl::worker

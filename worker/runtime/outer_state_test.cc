#include "worker/runtime/outer_state.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "common/rng.h"

namespace atl::worker {
namespace {

const std::vector<LayerSize> kLayers = {{"a", 6}, {"b", 4}};

std::vector<float> Drawn(uint64_t seed, int64_t size) {
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return values;
}

// An island of one worker, whose steps add what the test says.
struct Island {
  explicit Island(OuterSpec outer) : spec(std::move(outer)) {
    state = std::make_unique<OuterState>("w", LayoutOfOne("w", kLayers), spec);
  }
  void Adopts(const LayerBuffers& version, Version number, AdoptPulled how = {}) {
    *state->pulled() = version;
    if (how.mode == AdoptMode::kCarry) {
      Adds(how.eager ? OuterKind::kAdditionAfterEager : OuterKind::kAddition, how.shards);
    } else {
      theta = version;
    }
    state->Finish(number, {}, /*keep_residual=*/true, how.shards, how.share);
  }
  void Trains(const LayerBuffers& by) {
    for (size_t l = 0; l < theta.size(); ++l) {
      for (size_t i = 0; i < theta[l].size(); ++i) theta[l][i] += by[l][i];
    }
  }
  void Captures(Version base, double share, std::vector<ShardPlacement> shards = {}) {
    const auto read = [this](int32_t layer, ElementRange, std::span<float> out) {
      std::copy(theta[layer].begin(), theta[layer].end(), out.begin());
      return absl::OkStatus();
    };
    REQUIRE(state->ReadAll(shards, read).ok());
    REQUIRE(state->MakeDelta({{0, 1, 1, base}, Encoding::kFloat32, shards, share}).ok());
  }
  std::vector<float> Read(OuterKind kind, int32_t layer) {
    std::vector<float> values(theta[layer].size());
    REQUIRE(state->Read(kind, layer, {0, std::ssize(values)}, values).ok());
    return values;
  }
  void Adds(OuterKind kind, const std::vector<ShardPlacement>& shards) {
    for (int32_t l = 0; l < 2; ++l) {
      if (!Concern(shards, l)) continue;
      const std::vector<float> values = Read(kind, l);
      for (size_t i = 0; i < values.size(); ++i) theta[l][i] += values[i];
    }
  }

  const OuterSpec spec;
  std::unique_ptr<OuterState> state;
  LayerBuffers theta;
};

LayerBuffers Model(uint64_t seed) { return {Drawn(seed, 6), Drawn(seed + 1, 4)}; }

// theta_v - sum of weight * delta, of two islands of the same weight.
LayerBuffers Averaged(const LayerBuffers& base, Island& a, Island& b) {
  LayerBuffers next = base;
  for (int32_t l = 0; l < 2; ++l) {
    const std::vector<float> first = a.Read(OuterKind::kDelta, l);
    const std::vector<float> second = b.Read(OuterKind::kDelta, l);
    for (size_t i = 0; i < next[l].size(); ++i) next[l][i] -= 0.5F * (first[i] + second[i]);
  }
  return next;
}

void CheckNear(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == Approx(b[i]).margin(1e-5));
}

struct TwoIslands {
  TwoIslands() {
    for (Island* island : {&a, &b}) island->Adopts(base, 0);
    a.Trains(Model(10));
    b.Trains(Model(20));
    a.Captures(0, 0);
    b.Captures(0, 0);
    delta_b = b.Read(OuterKind::kDelta, 0);
    first = Averaged(base, a, b);
  }
  static OuterSpec Spec() {
    OuterSpec outer;
    outer.eager = true;
    return outer;
  }
  Island a{Spec()}, b{Spec()};
  const LayerBuffers base = Model(1);
  LayerBuffers first;  // version 1
  std::vector<float> delta_b;
};

TEST_CASE("what_others_added_is_the_version_less_the_islands_own_share") {
  TwoIslands islands;
  Island& a = islands.a;
  a.Adopts(islands.first, 1, {.share = 0.5});
  const std::vector<float> others = a.Read(OuterKind::kOthers, 0);
  for (size_t i = 0; i < others.size(); ++i) {
    CHECK(others[i] == Approx(-0.5F * islands.delta_b[i]).margin(1e-5));
  }
}

TEST_CASE("after_rounds_that_were_missed_it_is_the_mean_of_a_round") {
  TwoIslands islands;
  Island& a = islands.a;
  a.Adopts(islands.first, 4, {.share = 0.5});
  const std::vector<float> others = a.Read(OuterKind::kOthers, 0);
  for (size_t i = 0; i < others.size(); ++i) {
    CHECK(others[i] == Approx(-0.125F * islands.delta_b[i]).margin(1e-5));
  }
}

TEST_CASE("an_eager_update_goes_on_from_the_expected_version_and_adopting_leaves_only_the_steps") {
  TwoIslands islands;
  Island& a = islands.a;
  Island& b = islands.b;
  for (Island* island : {&a, &b}) island->Adopts(islands.first, 1, {.share = 0.5});
  const std::vector<float> others = a.Read(OuterKind::kOthers, 0);
  a.Trains(Model(30));
  b.Trains(Model(40));
  a.Captures(1, 0.5);
  b.Captures(1, 0.5);
  const std::vector<float> delta = a.Read(OuterKind::kDelta, 0);
  a.Adds(OuterKind::kEager, {});
  for (size_t i = 0; i < others.size(); ++i) {
    CHECK(a.theta[0][i] == Approx(islands.first[0][i] + others[i] - 0.5F * delta[i]).margin(1e-5));
  }
  const LayerBuffers steps = Model(50), second = Averaged(islands.first, a, b);
  a.Trains(steps);
  AdoptPulled carry{.mode = AdoptMode::kCarry};
  carry.eager = true;
  carry.share = 0.5;
  a.Adopts(second, 2, carry);
  b.Adopts(second, 2, {.mode = AdoptMode::kCarry});
  for (int32_t l = 0; l < 2; ++l) {
    std::vector<float> expected = second[l];
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += steps[l][i];
    CheckNear(a.theta[l], expected);
    CHECK(a.Read(OuterKind::kBase, l) == second[l]);
    CHECK(a.Read(OuterKind::kBase, l) == b.Read(OuterKind::kBase, l));
  }
}

TEST_CASE("with_fragments_an_eager_update_concerns_the_captured_layers") {
  OuterSpec outer = TwoIslands::Spec();
  outer.fragments = 2;
  Island island(outer);
  const LayerBuffers base = Model(1);
  island.Adopts(base, 0);
  const std::vector<ShardPlacement> fragment = {{0, 0, 0, 6}};
  island.Trains(Model(10));
  island.Captures(0, 0, fragment);
  LayerBuffers first = Model(2);
  first[1] = base[1];
  AdoptPulled carry{.mode = AdoptMode::kCarry};
  carry.shards = fragment;
  island.Adopts(first, 1, carry);
  CheckNear(island.Read(OuterKind::kOthers, 1), {0, 0, 0, 0});
  island.Trains(Model(11));
  island.Captures(2, 0.5, fragment);
  std::vector<float> values(4);
  CHECK_FALSE(island.state->Read(OuterKind::kEager, 1, {0, 4}, values).ok());
  CHECK(std::abs(island.Read(OuterKind::kEager, 0)[0]) > 0);
}

TEST_CASE("what_others_added_is_moved_with_theta_base_where_the_job_is_eager") {
  Island island(TwoIslands::Spec()), plain{OuterSpec()};
  for (Island* each : {&island, &plain}) each->Adopts(Model(1), 0);
  CHECK(island.state->ListHeldKinds() == std::vector{OuterKind::kBase, OuterKind::kOthers});
  CHECK(plain.state->ListHeldKinds() == std::vector{OuterKind::kBase});
}

}  // namespace
}  // namespace atl::worker

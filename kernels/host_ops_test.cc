#include "kernels/host_ops.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "common/rng.h"

namespace atl {
namespace {

constexpr int64_t kSize = 200'003;  // several tasks and a tail

std::vector<float> Numbers(uint64_t seed, int64_t size = kSize) {
  Rng rng(seed);
  std::vector<float> numbers(size);
  for (float& x : numbers) x = static_cast<float>(rng.Normal());
  return numbers;
}

DeltaView View(const std::vector<float>& x) {
  return {x.data(), Encoding::kFloat32, static_cast<int64_t>(x.size())};
}

DeltaView View(const std::vector<Bfloat16>& x) {
  return {x.data(), Encoding::kBfloat16, static_cast<int64_t>(x.size())};
}

std::vector<Bfloat16> Rounded(const std::vector<float>& x) {
  ThreadPool pool(1);
  std::vector<Bfloat16> rounded(x.size());
  ToBfloat16(x, rounded, pool);
  return rounded;
}

float Value(Bfloat16 x) { return std::bit_cast<float>(uint32_t{x} << 16); }

struct Shard {
  std::vector<float> theta = Numbers(1);
  std::vector<float> velocity = Numbers(2);
};

// The steps as their formulas say, one element at a time in double.
struct Element {
  double theta, a, b;  // two slots
};

Element ApplySgd(Element e, double g) { return {e.theta - 0.7 * g, e.a, e.b}; }

Element ApplyDelayedNesterov(Element e, double g, bool last) {
  const double part = 0.25 * g;
  Element after{e.theta - 0.7 * part, e.a, e.b + part};
  if (!last) return after;
  after.a = 0.6 * e.a + after.b;
  after.theta -= 0.7 * 0.6 * after.a;
  after.b = 0;
  return after;
}

TEST_CASE("each_fused_step_agrees_with_its_reference") {
  ThreadPool pool(2);
  const std::vector<float> theta = Numbers(1), a = Numbers(2), b = Numbers(5);
  const std::vector<float> first = Numbers(3);
  const std::vector<Bfloat16> second = Rounded(Numbers(4));
  const std::vector<WeightedDelta> two = {{View(first), 0.75f}, {View(second), 0.25f}};
  std::vector<WeightedDelta> six = two;
  for (int i = 0; i < 4; ++i) six.push_back({View(first), 0.1f});
  for (const auto& deltas : {two, six}) {
    for (int kind = 0; kind < 3; ++kind) {
      std::vector<float> t = theta, x = a, y = b;
      if (kind == 0) OuterSgd(t, deltas, 0.7f, pool);
      if (kind >= 1) OuterDelayedNesterov(t, x, y, deltas, 0.7f, 0.6f, 0.25f, kind == 2, pool);
      double worst = 0;
      for (int64_t i = 0; i < kSize; ++i) {
        const double g = (deltas.size() == 2 ? 0.75 : 1.15) * first[i] + 0.25 * Value(second[i]);
        const Element before{theta[i], a[i], b[i]};
        const Element after =
            kind == 0 ? ApplySgd(before, g) : ApplyDelayedNesterov(before, g, kind == 2);
        worst = std::max({worst, std::abs(t[i] - after.theta) / (1 + std::abs(after.theta)),
                          std::abs(x[i] - after.a),
                          std::abs(y[i] - after.b) / (1 + std::abs(after.b))});
      }
      INFO("step " << kind << " of " << deltas.size() << " deltas");
      CHECK(worst < 2e-5);
    }
  }
}

TEST_CASE("the outer step follows its formula for deltas of both types") {
  const std::vector<float> first = Numbers(3);
  const std::vector<Bfloat16> second = Rounded(Numbers(4));
  const WeightedDelta deltas[] = {{View(first), 0.75f}, {View(second), 0.25f}};
  Shard shard;
  const Shard before = shard;
  ThreadPool pool(1);
  OuterNesterov(shard.theta, shard.velocity, deltas, 0.7f, 0.6f, pool);
  for (int64_t i = 0; i < kSize; ++i) {
    const double g = 0.75 * first[i] + 0.25 * Value(second[i]);
    const double v = 0.6 * before.velocity[i] + g;
    const double theta = before.theta[i] - 0.7 * (g + 0.6 * v);
    if (std::abs(shard.velocity[i] - v) > 1e-6 || std::abs(shard.theta[i] - theta) > 1e-6) {
      FAIL("element " << i << ": " << shard.theta[i] << ", not " << theta);
    }
  }
}

TEST_CASE("any number of deltas gives the result of their weighted sum") {
  for (int k : {1, 2, 3, 4, 5, 8, 9}) {
    std::vector<std::vector<float>> deltas;
    std::vector<WeightedDelta> weighted;
    std::vector<float> sum(kSize, 0.0f);
    for (int d = 0; d < k; ++d) deltas.push_back(Numbers(10 + d));
    for (const std::vector<float>& delta : deltas) {
      weighted.push_back({View(delta), 1.0f / k});
      for (int64_t i = 0; i < kSize; ++i) sum[i] += delta[i] / k;
    }
    const WeightedDelta alone[] = {{View(sum), 1.0f}};
    Shard shard, other;
    ThreadPool pool(1);
    OuterNesterov(shard.theta, shard.velocity, weighted, 0.7f, 0.8f, pool);
    OuterNesterov(other.theta, other.velocity, alone, 0.7f, 0.8f, pool);
    for (int64_t i = 0; i < kSize; ++i) {
      if (std::abs(shard.theta[i] - other.theta[i]) > 2e-6) FAIL(k << " deltas, element " << i);
    }
  }
}

TEST_CASE("without deltas the momentum alone moves the parameters") {
  std::vector<float> theta = {1.0f}, velocity = {2.0f};
  ThreadPool pool(1);
  OuterNesterov(theta, velocity, {}, 0.5f, 0.5f, pool);
  REQUIRE(velocity[0] == 1.0f);
  REQUIRE(theta[0] == 0.75f);
}

TEST_CASE("the outer step and the Gram matrix do not depend on the number of threads") {
  const std::vector<float> a = Numbers(5), b = Numbers(6), c = Numbers(7);
  const WeightedDelta deltas[] = {{View(a), 0.2f}, {View(b), 0.3f}, {View(c), 0.5f}};
  const DeltaView views[] = {View(a), View(b), View(c)};
  Shard alone, together;
  std::vector<double> gram_alone(9), gram_together(9);
  ThreadPool one(1), three(3);
  OuterNesterov(alone.theta, alone.velocity, deltas, 0.7f, 0.8f, one);
  OuterNesterov(together.theta, together.velocity, deltas, 0.7f, 0.8f, three);
  GramMatrix(views, gram_alone, one);
  GramMatrix(views, gram_together, three);
  REQUIRE(alone.theta == together.theta);
  REQUIRE(alone.velocity == together.velocity);
  REQUIRE(gram_alone == gram_together);
}

TEST_CASE("the Gram matrix holds every pair's dot product") {
  const std::vector<float> a = Numbers(5);
  const std::vector<Bfloat16> b = Rounded(Numbers(6));
  const DeltaView views[] = {View(a), View(b)};
  double aa = 0, ab = 0, bb = 0;
  for (int64_t i = 0; i < kSize; ++i) {
    aa += double{a[i]} * a[i];
    ab += double{a[i]} * Value(b[i]);
    bb += double{Value(b[i])} * Value(b[i]);
  }
  std::vector<double> gram(4);
  ThreadPool pool(2);
  GramMatrix(views, gram, pool);
  REQUIRE(gram[0] == Approx(aa).epsilon(1e-12));
  REQUIRE(gram[1] == Approx(ab).epsilon(1e-9));
  REQUIRE(gram[2] == gram[1]);
  REQUIRE(gram[3] == Approx(bb).epsilon(1e-12));
}

TEST_CASE("products_of_many_deltas_have_the_bits_of_each_pair_alone") {
  constexpr size_t kMany = 140;
  std::vector<std::vector<float>> numbers;
  std::vector<DeltaView> views;
  for (size_t d = 0; d < kMany; ++d) numbers.push_back(Numbers(d, 70'001));
  for (const std::vector<float>& each : numbers) views.push_back(View(each));
  std::vector<double> gram(kMany * kMany), pair(4);
  ThreadPool pool(2);
  GramMatrix(views, gram, pool);
  for (size_t i = 0; i < kMany; i += 9) {
    for (size_t j = 0; j < kMany; j += 13) {
      const DeltaView two[] = {views[i], views[j]};
      GramMatrix(two, pair, pool);
      INFO(i << " and " << j);
      REQUIRE(gram[i * kMany + j] == pair[1]);
      REQUIRE(gram[j * kMany + i] == pair[1]);
    }
  }
}

TEST_CASE("a delta that is not finite shows in its Gram entries and nowhere else") {
  std::vector<float> bad = Numbers(5);
  bad[kSize - 1] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> good = Numbers(6);
  const DeltaView views[] = {View(bad), View(good)};
  std::vector<double> gram(4);
  ThreadPool pool(1);
  GramMatrix(views, gram, pool);
  REQUIRE(!std::isfinite(gram[0]));
  REQUIRE(!std::isfinite(gram[1]));
  REQUIRE(std::isfinite(gram[3]));
}

TEST_CASE("bfloat16 rounds to nearest, ties to even, and keeps NaN and infinity") {
  const float inf = std::numeric_limits<float>::infinity();
  // 1 + 2^-8 lies halfway between 1 and 1 + 2^-7; 1 + 3 * 2^-8 halfway below 1 + 2^-6.
  const std::vector<float> from = {0.0f,   -0.0f,        1.0f, 1.00390625f, 1.01171875f,
                                   1.004f, -1.00390625f, inf,  -inf,        3.4028235e38f};
  const std::vector<Bfloat16> to = Rounded(from);
  const std::vector<float> expected = {0.0f,       -0.0f, 1.0f, 1.0f, 1.015625f,
                                       1.0078125f, -1.0f, inf,  -inf, inf};
  for (size_t i = 0; i < from.size(); ++i) {
    REQUIRE(std::bit_cast<uint32_t>(Value(to[i])) == std::bit_cast<uint32_t>(expected[i]));
  }
  const uint32_t nans[] = {0x7fc00000u, 0x7fffffffu, 0xffffffffu, 0x7f800001u};
  for (const uint32_t bits : nans) {
    REQUIRE(std::isnan(Value(Rounded({std::bit_cast<float>(bits)})[0])));
  }
}

TEST_CASE("bfloat16 and back keeps what bfloat16 can hold") {
  const std::vector<Bfloat16> rounded = Rounded(Numbers(8));
  std::vector<float> widened(kSize);
  std::transform(rounded.begin(), rounded.end(), widened.begin(), Value);
  REQUIRE(Rounded(widened) == rounded);
}

TEST_CASE("every block of a loop runs once, whatever the number of threads") {
  for (int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    std::vector<int> runs(1000, 0);
    for (int round = 0; round < 200; ++round) {
      pool.For(1000, [&](int64_t block, int thread) {
        if (thread < threads) ++runs[block];
      });
    }
    for (int count : runs) REQUIRE(count == 200);
  }
}

TEST_CASE("threads that fell asleep between loops wake for the next one") {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::vector<int> runs(64, 0);
    pool.For(64, [&](int64_t block, int) { ++runs[block]; });
    REQUIRE(runs == std::vector<int>(64, 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than any thread spins
  }
}

}  // namespace
}  // namespace atl

// Moments as they travel: what the codec makes of them, and their averages.

#include "kernels/codecs/moments.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/rng.h"
#include "kernels/add_delta.h"
#include "kernels/codecs/codec.h"
#include "kernels/host_ops.h"
#include "kernels/simd.h"
#include "kernels/testing/reference_codecs.h"

namespace atl {
namespace {

using MomentBytes = std::vector<std::byte>;
using Reals = std::vector<float>;
constexpr Encoding kAlone = Encoding::kMomentsAlone;

struct SomeMoments {
  Reals first, second;
};

// Draws moments as AdamW has them: |m| is about sqrt(v), and v varies by orders of magnitude.
SomeMoments DrawMoments(int64_t size, uint64_t seed) {
  Rng rng(seed);
  SomeMoments moments;
  for (int64_t i = 0; i < size; ++i) {
    const double root = 1e-3 * std::exp(rng.Normal());
    moments.first.push_back(static_cast<float>(root * rng.Normal()));
    moments.second.push_back(static_cast<float>(root * root));
  }
  return moments;
}

MomentBytes EncodedMoments(Encoding encoding, const SomeMoments& moments) {
  MomentBytes bytes(EncodedBytes(encoding, std::ssize(moments.first)));
  EncodeMoments(encoding, moments.first, moments.second, bytes);
  return bytes;
}

// m and v again.
SomeMoments DecodedMoments(Encoding encoding, const MomentBytes& bytes, int64_t size) {
  SomeMoments moments{Reals(size), Reals(size)};
  DecodeRatios(encoding, bytes, moments.first, moments.second);
  FirstFromRatios(moments.first, moments.second);
  return moments;
}

TEST_CASE("moments_have_the_bits_of_the_plain_loops_on_every_instruction_set") {
  const int level = GENERATE(1, 3, 4);
  const Encoding encoding = GENERATE(Encoding::kMomentsAlone, WithMoments(Encoding::kInt4),
                                     WithMoments(Encoding::kTopK), WithMoments(Encoding::kFloat32));
  simd::instruction_level_max = level;
  for (const int64_t size : {1, 2, 15, 255, 256, 257, 4096, 4097, 9001}) {
    SomeMoments moments = DrawMoments(size, static_cast<uint64_t>(size));
    if (size > 300) moments.second[299] = moments.first[299] = 0;
    if (size == 4096) std::fill(moments.second.begin(), moments.second.end(), 0.0f);
    const MomentBytes bytes = EncodedMoments(encoding, moments);
    MomentBytes plain(bytes.size());
    ReferenceEncodeMoments(encoding, moments.first, moments.second, plain);
    REQUIRE(bytes == plain);
    REQUIRE(CheckMoments(encoding, bytes, size).ok());
    SomeMoments fast{Reals(size), Reals(size)}, slow = fast;
    DecodeRatios(encoding, bytes, fast.first, fast.second);
    ReferenceDecodeRatios(encoding, bytes, slow.first, slow.second);
    REQUIRE(fast.first == slow.first);
    REQUIRE(fast.second == slow.second);
  }
  simd::instruction_level_max = 4;
}

TEST_CASE("a_second_moment_is_within_half_an_octave_and_the_ratio_within_half_a_step") {
  constexpr int64_t kSize = 1000;
  const SomeMoments moments = DrawMoments(kSize, 3);
  Reals ratios(kSize), second(kSize);
  DecodeRatios(kAlone, EncodedMoments(kAlone, moments), ratios, second);
  for (int64_t begin = 0; begin < kSize; begin += kQuantBlock) {
    const int64_t end = std::min(begin + kQuantBlock, kSize);
    float largest = 0, largest_ratio = 0;
    for (int64_t i = begin; i < end; ++i) {
      largest = std::max(largest, moments.second[i]);
      largest_ratio =
          std::max(largest_ratio, std::abs(moments.first[i]) / std::sqrt(moments.second[i]));
    }
    for (int64_t i = begin; i < end; ++i) {
      const double wanted = std::max(moments.second[i], std::ldexp(largest, -15));
      REQUIRE(std::abs(std::log2(second[i] / wanted)) < 0.5001);
      REQUIRE(std::abs(ratios[i] - moments.first[i] / std::sqrt(moments.second[i])) <
              largest_ratio / 254 * 1.001);
    }
  }
}

TEST_CASE("moments_without_second_ones_keep_their_first_and_untouched_ones_stay_zero") {
  SomeMoments moments{Reals(512, 0.0f), Reals(512, 0.0f)};
  for (int i = 0; i < 256; ++i) moments.first[i] = static_cast<float>(i - 100) * 1e-3f;
  const SomeMoments decoded = DecodedMoments(kAlone, EncodedMoments(kAlone, moments), 512);
  for (int i = 0; i < 256; ++i) {
    REQUIRE(std::abs(decoded.first[i] - moments.first[i]) <= 155e-3 / 254 * 1.001);
  }
  for (int i = 256; i < 512; ++i) REQUIRE((decoded.first[i] == 0 && decoded.second[i] == 0));
}

TEST_CASE("a_block_with_a_moment_that_is_not_finite_comes_back_as_zero") {
  SomeMoments moments = DrawMoments(512, 5);
  (GENERATE(true, false) ? moments.first : moments.second)[17] = GENERATE(NAN, INFINITY);
  const SomeMoments decoded = DecodedMoments(kAlone, EncodedMoments(kAlone, moments), 512);
  for (int i = 0; i < 256; ++i) REQUIRE((decoded.first[i] == 0 && decoded.second[i] == 0));
  REQUIRE(decoded.second[300] > 0);
}

TEST_CASE("the_pseudo_gradient_and_its_moments_leave_each_other_alone") {
  const Encoding base = GENERATE(Encoding::kFloat32, Encoding::kBfloat16, Encoding::kInt8,
                                 Encoding::kInt4, Encoding::kE3m0, Encoding::kTopK);
  constexpr int64_t kSize = 5000;
  const Encoding encoding = WithMoments(base);
  const SomeMoments moments = DrawMoments(kSize, 7);
  const Reals delta = DrawMoments(kSize, 8).first;
  ThreadPool pool(2);
  MomentBytes bytes = EncodedMoments(encoding, moments);
  EncodeDelta(encoding, delta, {}, bytes, pool);
  REQUIRE(CheckDelta({bytes.data(), encoding, kSize}).ok());
  Reals with(kSize), without(kSize);
  DecodeDelta({bytes.data(), encoding, kSize}, with, pool);
  if (IsQuantized(base)) {
    MomentBytes alone(EncodedBytes(base, kSize));
    EncodeDelta(base, delta, {}, alone, pool);
    DecodeDelta({alone.data(), base, kSize}, without, pool);
  } else {
    without = delta;
    for (size_t i = 0; i < delta.size(); ++i) {
      REQUIRE(std::abs(with[i] - without[i]) <= std::abs(without[i]) / 256);
    }
    if (base == Encoding::kBfloat16) without = with;
  }
  REQUIRE(with == without);
  const SomeMoments decoded = DecodedMoments(encoding, bytes, kSize);
  const SomeMoments alone = DecodedMoments(kAlone, EncodedMoments(kAlone, moments), kSize);
  REQUIRE(decoded.first == alone.first);
  REQUIRE(decoded.second == alone.second);
}

TEST_CASE("bytes_of_moments_that_no_encoder_makes_are_refused") {
  const SomeMoments moments = DrawMoments(300, 9);
  MomentBytes bytes = EncodedMoments(kAlone, moments);
  const auto broken = [&](size_t at, float scale) {
    MomentBytes copy = bytes;
    std::memcpy(copy.data() + at, &scale, sizeof(scale));
    return !CheckMoments(kAlone, copy, 300).ok();
  };
  const size_t second = EncodedBytes(Encoding::kInt8, 256);
  for (const float scale : {-1.0f, NAN, INFINITY}) {
    REQUIRE(broken(0, scale));
    REQUIRE(broken(second, scale));
  }
}

TEST_CASE("the_average_of_moments_is_the_weighted_mean_of_ratios_and_of_second_moments") {
  constexpr int64_t kSize = 9000;
  const Encoding encoding = WithMoments(Encoding::kInt4);
  const std::vector<double> weights = {0.5, 0.3, 0.2};
  std::vector<MomentBytes> pushes;
  std::vector<DeltaView> views;
  for (uint64_t i = 0; i < 3; ++i)
    pushes.push_back(EncodedMoments(encoding, DrawMoments(kSize, i)));
  for (const MomentBytes& push : pushes) views.push_back({push.data(), encoding, kSize});
  ThreadPool pool(3);
  Reals ratios(kSize), second(kSize);
  AverageMoments(views, weights, ratios, second, pool);
  std::vector<double> expected_ratios(kSize), expected_second(kSize);
  for (size_t i = 0; i < pushes.size(); ++i) {
    Reals u(kSize), v(kSize);
    ReferenceDecodeRatios(encoding, pushes[i], u, v);
    for (int64_t at = 0; at < kSize; ++at) {
      expected_ratios[at] += weights[i] * u[at];
      expected_second[at] += weights[i] * v[at];
    }
  }
  for (int64_t at = 0; at < kSize; ++at) {
    REQUIRE(std::abs(ratios[at] - expected_ratios[at]) <= 1e-6 * std::abs(expected_ratios[at]));
    REQUIRE(std::abs(second[at] - expected_second[at]) <= 1e-6 * expected_second[at]);
  }
  // One contribution's come back as it has pushed them, also once more encoded.
  const double one = 1;
  AverageMoments({&views[0], 1}, {&one, 1}, ratios, second, pool);
  MomentBytes again(EncodedBytes(kAlone, kSize));
  EncodeRatios(kAlone, ratios, second, again);
  const SomeMoments pushed = DecodedMoments(encoding, pushes[0], kSize);
  const SomeMoments pulled = DecodedMoments(kAlone, again, kSize);
  REQUIRE(pulled.second == pushed.second);
  for (int64_t at = 0; at < kSize; ++at) {
    REQUIRE(std::abs(pulled.first[at] - pushed.first[at]) <= 1e-6 * std::abs(pushed.first[at]));
  }
}

TEST_CASE("statistics_and_outer_steps_are_those_of_the_pseudo_gradient_alone") {
  const Encoding base = GENERATE(Encoding::kFloat32, Encoding::kInt4, Encoding::kTopK);
  constexpr int64_t kSize = 9000;
  ThreadPool pool(2);
  std::vector<MomentBytes> with(3), without(3);
  std::vector<DeltaView> views, plain;
  std::vector<WeightedDelta> weighted, plain_weighted;
  for (uint64_t i = 0; i < 3; ++i) {
    const Reals delta = DrawMoments(kSize, 20 + i).first;
    with[i] = EncodedMoments(WithMoments(base), DrawMoments(kSize, i));
    EncodeDelta(WithMoments(base), delta, {}, with[i], pool);
    without[i].resize(EncodedBytes(base, kSize));
    if (IsQuantized(base)) EncodeDelta(base, delta, {}, without[i], pool);
    if (!IsQuantized(base)) std::memcpy(without[i].data(), delta.data(), without[i].size());
    views.push_back({with[i].data(), WithMoments(base), kSize});
    plain.push_back({without[i].data(), base, kSize});
    weighted.push_back({views[i], 0.25f});
    plain_weighted.push_back({plain[i], 0.25f});
  }
  std::vector<double> gram(9), expected(9);
  GramMatrix(views, gram, pool);
  GramMatrix(plain, expected, pool);
  REQUIRE(gram == expected);
  Reals theta(kSize, 1.0f), expected_theta = theta;
  OuterSgd(theta, weighted, 0.5f, pool);
  OuterSgd(expected_theta, plain_weighted, 0.5f, pool);
  REQUIRE(theta == expected_theta);
}

}  // namespace
}  // namespace atl

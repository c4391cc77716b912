// The contract of quantised pseudo-gradients.

#include "kernels/deltas.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/rng.h"
#include "kernels/host_ops.h"

namespace atl {
namespace {

constexpr int64_t kSize = 1000;

Encoding EncodingFromBits(int bits) { return bits == 8 ? Encoding::kInt8 : Encoding::kInt4; }

// An island's side and a server's side of one layer.
struct Exchange {
  explicit Exchange(int bits)
      : encoding(EncodingFromBits(bits)), bytes(EncodedBytes(encoding, kSize)) {}

  // Returns what the server gets for theta.
  std::vector<float> Send(bool feedback) {
    std::vector<float> delta(kSize), out(kSize);
    for (int64_t i = 0; i < kSize; ++i) delta[i] = base[i] - theta[i];
    EncodeDelta(encoding, delta, feedback ? std::span(residual) : std::span<float>(), bytes, pool);
    DecodeDelta({bytes.data(), encoding, kSize}, out, pool);
    return out;
  }
  float Scale(int64_t block) const {
    float scale = 0;
    std::memcpy(&scale, bytes.data() + EncodedBytes(encoding, block * kQuantBlock), sizeof(scale));
    return scale;
  }

  const Encoding encoding;
  ThreadPool pool{1};
  std::vector<float> base = std::vector<float>(kSize), theta = base, residual = base;
  std::vector<std::byte> bytes;
};

void Scramble(std::vector<float>& x, uint64_t seed) {
  Rng rng(seed);
  for (float& value : x) value = static_cast<float>(rng.Normal());
}

TEST_CASE("a quantised delta is off by at most half a step of its block") {
  const int bits = GENERATE(8, 4);
  Exchange exchange(bits);
  Scramble(exchange.base, 1);
  Scramble(exchange.theta, 2);
  const std::vector<float> got = exchange.Send(false);
  for (int64_t i = 0; i < kSize; ++i) {
    const float delta = exchange.base[i] - exchange.theta[i];
    REQUIRE(std::abs(got[i] - delta) <= 0.5001f * exchange.Scale(i / kQuantBlock));
  }
}

TEST_CASE("error feedback compensates rounding errors: sums are right in the long run") {
  Exchange exchange(4);
  Scramble(exchange.base, 1);  // theta is 0: the same delta, again and again
  constexpr int kRounds = 40;
  std::vector<double> with(kSize), without(kSize);
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<float> kept = exchange.Send(true);
    for (int64_t i = 0; i < kSize; ++i) with[i] += kept[i];
  }
  const std::vector<float> lost = exchange.Send(false);
  double worst_with = 0, worst_without = 0;
  for (int64_t i = 0; i < kSize; ++i) {
    worst_with = std::max(worst_with, std::abs(with[i] / kRounds - exchange.base[i]));
    worst_without = std::max(worst_without, std::abs(double{lost[i]} - exchange.base[i]));
  }
  REQUIRE(worst_with < worst_without / 10);
}

TEST_CASE("a block that is not finite arrives as NaN, leaves no residual and harms no other") {
  const float bad = GENERATE(std::numeric_limits<float>::infinity(), NAN);
  Exchange exchange(8);
  Scramble(exchange.base, 1);
  exchange.base[300] = bad;
  const std::vector<float> got = exchange.Send(true);
  for (int64_t i = 0; i < kSize; ++i) {
    REQUIRE(std::isnan(got[i]) == (i / kQuantBlock == 1));
    REQUIRE(std::isfinite(exchange.residual[i]));
  }
}

TEST_CASE("the largest numbers that there are have a scale") {
  const int bits = GENERATE(8, 4);
  ThreadPool pool(1);
  std::vector<float> delta(kQuantBlock, std::numeric_limits<float>::max());
  std::vector<std::byte> bytes(EncodedBytes(EncodingFromBits(bits), kQuantBlock));
  EncodeDelta(EncodingFromBits(bits), delta, {}, bytes, pool);
  REQUIRE(CheckDelta({bytes.data(), EncodingFromBits(bits), kQuantBlock}).ToString() == "OK");
}

TEST_CASE("a delta of zeroes is zeroes") {
  const int bits = GENERATE(8, 4);
  Exchange exchange(bits);
  for (const float value : exchange.Send(true)) REQUIRE(value == 0.0f);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_CASE("tensors of any size are encoded, with and without a residual") {
  const int bits = GENERATE(8, 4);
  ThreadPool pool(2);
  for (const int64_t size : {0, 1, 2, 15, 255, 256, 257, 511, 70'001}) {
    std::vector<float> base(size), decoded(size), residual(size);
    Scramble(base, size);
    std::vector<std::byte> bytes(EncodedBytes(EncodingFromBits(bits), size)), again = bytes;
    EncodeDelta(EncodingFromBits(bits), base, {}, bytes, pool);
    EncodeDelta(EncodingFromBits(bits), base, residual, again, pool);
    REQUIRE(bytes == again);
    DecodeDelta({bytes.data(), EncodingFromBits(bits), size}, decoded, pool);
    for (int64_t i = 0; i < size; ++i) REQUIRE(residual[i] == base[i] - decoded[i]);
  }
}

TEST_CASE("servers compute with quantised deltas as with the numbers they decode to") {
  constexpr int64_t kLong = 200'003;
  ThreadPool pool(2);
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::vector<float>> decoded;
  std::vector<WeightedDelta> travelled, plain;
  std::vector<DeltaView> travelled_views, plain_views;
  const Encoding other =
      GENERATE(Encoding::kInt8, Encoding::kInt4, Encoding::kE3m0, Encoding::kTopK);
  for (int d = 0; d < 6; ++d) {
    const Encoding encoding = d % 2 == 0 ? other : Encoding::kInt8;
    std::vector<float> delta(kLong);
    Scramble(delta, d);
    EncodeDelta(encoding, delta, {}, bytes.emplace_back(EncodedBytes(encoding, kLong)), pool);
    DecodeDelta({bytes.back().data(), encoding, kLong}, decoded.emplace_back(kLong), pool);
    travelled_views.push_back({bytes.back().data(), encoding, kLong});
    plain_views.push_back({decoded.back().data(), Encoding::kFloat32, kLong});
    travelled.push_back({travelled_views.back(), 0.1f * static_cast<float>(d + 1)});
    plain.push_back({plain_views.back(), travelled.back().weight});
  }
  std::vector<float> theta(kLong), velocity(kLong);
  Scramble(theta, 10);
  Scramble(velocity, 11);
  std::vector<float> other_theta = theta, other_velocity = velocity;
  OuterNesterov(theta, velocity, travelled, 0.7f, 0.8f, pool);
  OuterNesterov(other_theta, other_velocity, plain, 0.7f, 0.8f, pool);
  REQUIRE(SameBits(theta, other_theta));
  REQUIRE(SameBits(velocity, other_velocity));
  std::vector<double> gram(36), other_gram(36);
  GramMatrix(travelled_views, gram, pool);
  GramMatrix(plain_views, other_gram, pool);
  REQUIRE(gram == other_gram);
}

TEST_CASE("a scale that no encoder makes is found, wherever it is") {
  const int bits = GENERATE(8, 4);
  const Encoding encoding = EncodingFromBits(bits);
  const float bad = GENERATE(-1e-30f, -0.5f, std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::max() / 3);
  std::vector<std::byte> bytes(EncodedBytes(encoding, kSize));
  const DeltaView view{bytes.data(), encoding, kSize};
  REQUIRE(CheckDelta(view).ok());
  for (int64_t block = 0; block * kQuantBlock < kSize; ++block) {
    std::byte* scale = bytes.data() + EncodedBytes(encoding, block * kQuantBlock);
    std::memcpy(scale, &bad, sizeof(bad));
    const absl::Status status = CheckDelta(view);
    REQUIRE(std::string(status.message()).find(absl::StrCat("block ", block, " ")) == 0);
    std::memset(scale, 0, sizeof(bad));
  }
}

}  // namespace
}  // namespace atl

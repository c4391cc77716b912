// What quantised pseudo-gradients promise, on the reference backend.

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "common/rng.h"
#include "kernels/host_ops.h"
#include "kernels/reference/reference.h"

namespace atl {
namespace {

constexpr int64_t kSize = 1000, kBlocks = 4;

Tensor F32(std::vector<float>& x) {
  return {x.data(), DType::kFloat32, 1, static_cast<int64_t>(x.size())};
}

// An island's side and a server's side of one layer.
struct Exchange {
  explicit Exchange(int bits)
      : codes_memory(kBlocks * 8 * bits),
        codes(codes_memory.data(), DType::kInt32, kBlocks, 8 * bits) {}

  // What the server gets for theta.
  std::vector<float> Send(bool feedback) {
    backend->Run(*stream, QuantizeDelta{.base = F32(base),
                                        .theta = F32(theta),
                                        .residual = feedback ? F32(residual) : Tensor(),
                                        .codes = codes,
                                        .scales = F32(scales)});
    std::vector<float> out(kSize);
    backend->Run(*stream, DequantizeDelta{.codes = codes, .scales = F32(scales), .out = F32(out)});
    return out;
  }

  std::unique_ptr<Backend> backend = NewReferenceBackend();
  std::unique_ptr<Stream> stream = *backend->NewStream();
  std::vector<float> base = std::vector<float>(kSize), theta = base, residual = base;
  std::vector<float> scales = std::vector<float>(kBlocks);
  std::vector<int32_t> codes_memory;
  Tensor codes;
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
    REQUIRE(std::abs(got[i] - delta) <= 0.5001f * exchange.scales[i / kQuantBlock]);
  }
}

TEST_CASE("error feedback makes up for what was rounded away: sums are right in the long run") {
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

TEST_CASE("a delta of zeroes is zeroes") {
  const int bits = GENERATE(8, 4);
  Exchange exchange(bits);
  for (const float value : exchange.Send(true)) REQUIRE(value == 0.0f);
}

TEST_CASE("the outer step on a device is the parameter server's") {
  std::vector<float> theta(kSize), velocity(kSize), delta(kSize);
  Scramble(theta, 1);
  Scramble(velocity, 2);
  Scramble(delta, 3);
  std::vector<float> server_theta = theta, server_velocity = velocity;
  ThreadPool pool(1);
  const WeightedDelta whole[] = {{{delta.data(), DType::kFloat32, kSize}, 1.0f}};
  OuterNesterov(server_theta, server_velocity, whole, 0.7f, 0.9f, pool);
  const auto backend = NewReferenceBackend();
  const auto stream = *backend->NewStream();
  backend->Run(*stream, NesterovStep{F32(theta), F32(velocity), F32(delta), 0.7f, 0.9f});
  for (int64_t i = 0; i < kSize; ++i) {
    REQUIRE(theta[i] == Approx(server_theta[i]).margin(1e-6));
    REQUIRE(velocity[i] == Approx(server_velocity[i]).margin(1e-6));
  }
}

}  // namespace
}  // namespace atl

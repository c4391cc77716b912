// The GPU's codes, scales and residuals of pseudo-gradients are the host's, bit for bit: a server
// cannot distinguish which device has quantised.

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "common/rng.h"
#include "kernels/cuda/emulated.h"
#include "kernels/reference/reference.h"

namespace atl {
namespace {

struct Quantised {
  std::vector<int32_t> codes;
  std::vector<float> scales, residual, values;
};

Quantised Quantise(Backend& backend, const std::vector<float>& base, std::vector<float> theta,
                   std::vector<float> residual, int bits) {
  const auto size = static_cast<int64_t>(base.size());
  const int64_t blocks = (size + kQuantBlock - 1) / kQuantBlock, words = kQuantBlock * bits / 32;
  Quantised q{std::vector<int32_t>(static_cast<size_t>(blocks * words)),
              std::vector<float>(static_cast<size_t>(blocks)), std::move(residual),
              std::vector<float>(base.size())};
  const auto flat = [](const std::vector<float>& x) {
    return Tensor(const_cast<float*>(x.data()), DType::kFloat32, 1, static_cast<int64_t>(x.size()));
  };
  const Tensor codes(q.codes.data(), DType::kInt32, blocks, words);
  const auto stream = *backend.NewStream();
  backend.Run(*stream, QuantizeDelta{.base = flat(base),
                                     .theta = flat(theta),
                                     .residual = flat(q.residual),
                                     .codes = codes,
                                     .scales = flat(q.scales)});
  backend.Run(*stream,
              DequantizeDelta{.codes = codes, .scales = flat(q.scales), .out = flat(q.values)});
  REQUIRE(backend.Synchronize(*stream).ok());
  return q;
}

// Any NaN is as good as another.
bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool both_nan = std::isnan(a[i]) && std::isnan(b[i]);
    if (!both_nan && std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return false;
  }
  return true;
}

TEST_CASE("quantised deltas have one meaning, bit for bit") {
  const int bits = GENERATE(8, 4);
  const int64_t size = GENERATE(1, 255, 256, 1000, 4096);
  Rng rng(static_cast<uint64_t>(size));
  const auto numbers = [&](double scale) {
    std::vector<float> x(static_cast<size_t>(size));
    for (float& value : x) value = static_cast<float>(scale * rng.Normal());
    return x;
  };
  std::vector<float> base = numbers(1), theta = base, residual = numbers(1e-4);
  for (size_t i = 0; i < theta.size(); ++i) {
    // Blocks of many sizes, some of ties, of zeroes, so small that 127 over them overflows, or not
    // finite.
    const size_t block = i / kQuantBlock;
    const float step = std::ldexp(1.0f, -static_cast<int>(block % 5) * 7);
    theta[i] += block % 3 == 0 ? static_cast<float>(rng.Normal()) * step
                               : static_cast<float>(i % 15) * 0.5f * step;
    if (block == 4 || block == 5) base[i] = theta[i] = 0;
    if (block == 4) residual[i] = static_cast<float>(i % 7) * 1e-41f;
    if (block == 5) residual[i] = 0;
  }
  if (size > 1900) theta[1900] = INFINITY;
  if (size > 2200) base[2200] = NAN;
  const auto host = NewReferenceBackend();
  const auto device = NewEmulatedCudaBackend(/*fused=*/true);
  const Quantised expected = Quantise(*host, base, theta, residual, bits);
  const Quantised got = Quantise(*device, base, theta, residual, bits);
  CAPTURE(bits, size);
  CHECK(got.codes == expected.codes);
  CHECK(SameBits(got.scales, expected.scales));
  CHECK(SameBits(got.residual, expected.residual));
  CHECK(SameBits(got.values, expected.values));
}

}  // namespace
}  // namespace atl

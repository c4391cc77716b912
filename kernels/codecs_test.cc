// The contract of all codecs, and the effect of each on numbers.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "common/rng.h"
#include "kernels/codecs/codec.h"
#include "kernels/deltas.h"
#include "kernels/simd.h"
#include "kernels/testing/reference_codecs.h"

namespace atl {
namespace {

constexpr Encoding kQuantized[] = {Encoding::kInt8, Encoding::kInt4, Encoding::kE3m0,
                                   Encoding::kTopK};
using Bytes = std::vector<std::byte>;
using Numbers = std::vector<float>;

Numbers Drawn(int64_t size, uint64_t seed, double spread = 0) {
  Rng rng(seed);
  Numbers numbers(size);
  for (float& x : numbers) {
    x = static_cast<float>(rng.Normal() * std::exp(spread * rng.Normal()));
  }
  return numbers;
}

Bytes Encode(Encoding encoding, const Numbers& delta, Numbers* residual = nullptr) {
  Bytes bytes(EncodedBytes(encoding, std::ssize(delta)));
  GetCodec(encoding).encode(delta.data(), residual == nullptr ? nullptr : residual->data(),
                            bytes.data(), std::ssize(delta));
  return bytes;
}

Numbers Decode(Encoding encoding, const Bytes& bytes, int64_t size) {
  Numbers numbers(size);
  GetCodec(encoding).decode(bytes.data(), numbers.data(), size);
  return numbers;
}

bool SameBits(const Numbers& a, const Numbers& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Runs the kernels of machines that have less while it exists.
struct OnLevel {
  explicit OnLevel(int level) { simd::instruction_level_max = level; }
  ~OnLevel() { simd::instruction_level_max = 4; }
};

TEST_CASE("fast code makes the bits of the plain loops on every instruction set") {
  const Encoding encoding = GENERATE(from_range(std::begin(kQuantized), std::end(kQuantized)));
  const OnLevel level(GENERATE(1, 3, 4));
  const Codec& codec = GetCodec(encoding);
  for (const int64_t size : {1, 2, 15, 63, 64, 65, 255, 256, 257, 4095, 4096, 4097, 9001}) {
    Numbers delta = Drawn(size, size, 1.0), residual = Drawn(size, size + 1);
    if (size == 4097) std::fill_n(delta.begin(), 4096, 0.25f);  // equal sizes
    if (size == 4097) std::fill_n(residual.begin(), 4096, 0.0f);
    if (size == 9001) delta[300] = NAN;
    if (size == 4095) std::fill(delta.begin(), delta.end(), 0.0f);
    if (size == 4095) std::fill(residual.begin(), residual.end(), 0.0f);
    Numbers plain_residual = residual;
    for (int round = 0; round < 3; ++round) {
      Bytes plain(EncodedBytes(encoding, size));
      ReferenceEncode(encoding, delta.data(), plain_residual.data(), plain.data(), size);
      const Bytes fast = Encode(encoding, delta, &residual);
      REQUIRE(fast == plain);
      REQUIRE(SameBits(residual, plain_residual));
      Numbers decoded(size);
      ReferenceDecode(encoding, fast.data(), decoded.data(), size);
      REQUIRE(SameBits(Decode(encoding, fast, size), decoded));
      REQUIRE(codec.check(fast.data(), size).ok());
    }
  }
}

TEST_CASE("parts that begin at a part block make the bytes of the whole") {
  const Encoding encoding = GENERATE(from_range(std::begin(kQuantized), std::end(kQuantized)));
  const int64_t block = PartBlock(encoding), size = 3 * block + 77;
  const Numbers delta = Drawn(size, 1);
  Bytes joined;
  for (const auto& [begin, end] :
       {std::pair(int64_t{0}, block), std::pair(block, 3 * block), std::pair(3 * block, size)}) {
    const Bytes part = Encode(encoding, {delta.begin() + begin, delta.begin() + end});
    joined.insert(joined.end(), part.begin(), part.end());
  }
  REQUIRE(joined == Encode(encoding, delta));
}

TEST_CASE("error feedback loses nothing: what arrived and what is owed are what was pushed") {
  const Encoding encoding = GENERATE(from_range(std::begin(kQuantized), std::end(kQuantized)));
  constexpr int64_t kSize = 5000;
  constexpr int kRounds = 200;
  Numbers residual(kSize);
  std::vector<double> pushed(kSize), arrived(kSize);
  for (int round = 0; round < kRounds; ++round) {
    Numbers delta = Drawn(kSize, round);
    for (int64_t i = 0; i < kSize; ++i) delta[i] += 0.1f * static_cast<float>(i % 7);
    const Numbers got = Decode(encoding, Encode(encoding, delta, &residual), kSize);
    for (int64_t i = 0; i < kSize; ++i) pushed[i] += delta[i];
    for (int64_t i = 0; i < kSize; ++i) arrived[i] += got[i];
  }
  double owed = 0, sent = 0;
  for (int64_t i = 0; i < kSize; ++i) {
    REQUIRE(arrived[i] + residual[i] == Approx(pushed[i]).margin(2e-3));
    owed += residual[i] * residual[i];
    sent += arrived[i] * arrived[i];
  }
  REQUIRE(owed < 0.5 * sent);  // it is not all put off
}

TEST_CASE("a number that is not finite makes its block NaN and leaves no residual there") {
  const Encoding encoding = GENERATE(from_range(std::begin(kQuantized), std::end(kQuantized)));
  const float bad = GENERATE(NAN, -std::numeric_limits<float>::infinity());
  const int64_t block = GetEncodingInfo(encoding).block, size = 2 * block + 100;
  Numbers delta = Drawn(size, 1), residual = Drawn(size, 2);
  delta[block + 5] = bad;
  const Bytes bytes = Encode(encoding, delta, &residual);
  REQUIRE(GetCodec(encoding).check(bytes.data(), size).ok());
  const Numbers got = Decode(encoding, bytes, size);
  for (int64_t i = 0; i < size; ++i) {
    REQUIRE(std::isnan(got[i]) == (i / block == 1));
    REQUIRE((i / block == 1 ? residual[i] == 0 : std::isfinite(residual[i])));
  }
}

TEST_CASE("any bytes are decoded within their memory, and those that pass give whole numbers") {
  const Encoding encoding = GENERATE(from_range(std::begin(kQuantized), std::end(kQuantized)));
  Rng rng(7);
  int passed = 0;
  for (int round = 0; round < 2000; ++round) {
    const auto size = static_cast<int64_t>(1 + rng.Below(round % 10 == 0 ? 9000 : 80));
    Bytes bytes = Encode(encoding, Drawn(size, round));
    if (round % 2 == 0) bytes[rng.Below(bytes.size())] = std::byte(rng.Below(256));
    for (std::byte& b : bytes) b = round % 2 == 0 ? b : std::byte(rng.Below(256));
    const Numbers got = Decode(encoding, bytes, size);
    if (!GetCodec(encoding).check(bytes.data(), size).ok()) continue;
    ++passed;
    const int64_t block = GetEncodingInfo(encoding).block;
    for (int64_t i = 0; i < size; ++i) {
      REQUIRE((std::isfinite(got[i]) || std::isnan(got[i / block * block])));
    }
  }
  REQUIRE(passed > 100);
  REQUIRE(passed < 1900);
}

TEST_CASE("e3m0 gives the nearest power of two of the largest, or 0 far below it") {
  const Numbers delta = Drawn(kQuantBlock, 3, 2.0);
  float largest = 0;
  for (const float x : delta) largest = std::max(largest, std::abs(x));
  const Numbers got = Decode(Encoding::kE3m0, Encode(Encoding::kE3m0, delta), kQuantBlock);
  int zeroes = 0;
  for (int64_t i = 0; i < kQuantBlock; ++i) {
    if (std::abs(delta[i]) < 0.99f * std::exp2(-6.5f) * largest) {
      REQUIRE(got[i] == 0);
      ++zeroes;
    } else if (std::abs(delta[i]) > 1.01f * std::exp2(-6.5f) * largest) {
      REQUIRE(std::abs(std::log2(got[i] / delta[i])) <= 0.5001);  // the same sign, too
    }
  }
  REQUIRE(zeroes > 0);
  REQUIRE(zeroes < kQuantBlock);
}

TEST_CASE("topk gives the largest of a chunk, with their signs and the mean of their half") {
  const Numbers delta = Drawn(kTopKChunk, 4);
  const Numbers got = Decode(Encoding::kTopK, Encode(Encoding::kTopK, delta), kTopKChunk);
  std::vector<int> order(kTopKChunk);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return std::abs(delta[a]) > std::abs(delta[b]); });
  std::vector<float> sizes;
  double before = 0, after = 0;
  for (int64_t i = 0; i < kTopKChunk; ++i) {
    const float x = delta[order[i]], y = got[order[i]];
    if (i >= TopKKept(kTopKChunk)) {
      REQUIRE(y == 0);
      continue;
    }
    REQUIRE(x * y > 0);
    before += std::abs(x);
    after += std::abs(y);
    if (std::find(sizes.begin(), sizes.end(), std::abs(y)) == sizes.end()) {
      sizes.push_back(std::abs(y));
    }
  }
  REQUIRE(sizes.size() == 2);
  REQUIRE(after == Approx(before).epsilon(1e-5));
  REQUIRE(8.0 * EncodedBytes(Encoding::kTopK, 1 << 20) / (1 << 20) < 0.24);
}

TEST_CASE("topk's check finds indices that fall, repeat or are not there, and bad means") {
  constexpr int64_t kSize = 4096 + 130;  // 3 of the last chunk
  Bytes good = Encode(Encoding::kTopK, Drawn(kSize, 5));
  const int64_t last = EncodedBytes(Encoding::kTopK, 4096);
  const auto reason = [&](int64_t byte, std::initializer_list<int> values) {
    Bytes bytes = good;
    for (const int value : values) bytes[byte++] = std::byte(value);
    return std::string(GetCodec(Encoding::kTopK).check(bytes.data(), kSize).message());
  };
  REQUIRE(reason(0, {}) == "");
  REQUIRE(reason(8, {7, 0x70, 0}).find("chunk 0 has the index 7 as its number 1") == 0);
  REQUIRE(reason(8, {7, 0x60, 0}).find("chunk 0 has the index 6 as its number 1") == 0);
  REQUIRE(reason(last + 11, {130, 0}).find("chunk 1 has the index 130 as its number 2") == 0);
  REQUIRE(reason(last + 4, {0, 0, 0x80, 0xbf}).find("chunk 1 has the mean -1") == 0);
  REQUIRE(reason(0, {0, 0, 0x80, 0x7f}).find("chunk 0 has the mean inf") == 0);
}

}  // namespace
}  // namespace atl

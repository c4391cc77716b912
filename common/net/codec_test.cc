#include "common/net/codec.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "common/net/payload.h"
#include "common/net/testing/test_handler.h"
#include "common/rng.h"

namespace atl {
namespace {

std::vector<float> RandomValues(size_t count, uint64_t seed = 1) {
  Rng rng(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return values;
}

std::vector<float> ThroughTheWire(Encoding encoding, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * BytesPerElement(encoding));
  const uint64_t sent = EncodeAndHash(encoding, values, bytes);
  REQUIRE(sent == Hash(bytes));
  std::vector<std::byte> plain(bytes.size());
  EncodeTensor(encoding, values, plain);
  REQUIRE(plain == bytes);
  return Decoded(encoding, bytes);
}

float Rounded(float value) { return ThroughTheWire(Encoding::kBfloat16, {value})[0]; }

TEST_CASE("fp32 travels unchanged, at sizes around a block and at zero") {
  for (size_t count : {0u, 1u, 7u, 2047u, 2048u, 2049u, 100003u}) {
    const std::vector<float> values = RandomValues(count);
    REQUIRE(ThroughTheWire(Encoding::kFloat32, values) == values);
  }
}

TEST_CASE("bf16 is within half a unit in its last place") {
  for (size_t count : {0u, 1u, 4095u, 4097u, 50001u}) {
    const std::vector<float> values = RandomValues(count);
    const std::vector<float> back = ThroughTheWire(Encoding::kBfloat16, values);
    bool near = true;
    for (size_t i = 0; i < count; ++i) {
      near &= std::abs(back[i] - values[i]) <= std::abs(values[i]) / 256;
    }
    REQUIRE(near);
  }
}

TEST_CASE("bf16 rounds ties to even, and keeps signs, infinities and NaN") {
  REQUIRE(Rounded(1.0f + 0x1p-8f) == 1.0f);               // a tie: down to even
  REQUIRE(Rounded(1.0f + 0x3p-8f) == 1.0f + 0x1p-6f);     // a tie: up to even
  REQUIRE(Rounded(1.0f + 0x1.01p-8f) == 1.0f + 0x1p-7f);  // above a tie
  REQUIRE(std::signbit(Rounded(-0.0f)));
  REQUIRE(Rounded(std::numeric_limits<float>::max()) == std::numeric_limits<float>::infinity());
  REQUIRE(Rounded(-std::numeric_limits<float>::infinity()) ==
          -std::numeric_limits<float>::infinity());
  REQUIRE(std::isnan(Rounded(std::numeric_limits<float>::quiet_NaN())));
  REQUIRE(std::isnan(Rounded(std::numeric_limits<float>::signaling_NaN())));
}

TEST_CASE("a copy has its source's bytes and checksum, and one bit changes the checksum") {
  std::vector<std::byte> from(70001), to(70001);
  Rng rng(2);
  for (std::byte& byte : from) byte = static_cast<std::byte>(rng.Below(256));
  REQUIRE(CopyAndHash(from, to) == Hash(from));
  REQUIRE(from == to);
  to[40000] ^= std::byte{1};
  REQUIRE(Hash(to) != Hash(from));
}

TEST_CASE("bytes_are_used_in_order_while_they_are_hashed") {
  std::vector<std::byte> bytes(20'001);
  Rng rng(3);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.Below(256));
  size_t used = 0;
  const uint64_t hash = HashWhile(bytes, [&](size_t begin, size_t end) {
    REQUIRE(begin == used);
    REQUIRE(begin % 8192 == 0);
    used = end;
  });
  CHECK(used == bytes.size());
  CHECK(hash == Hash(bytes));
}

TEST_CASE("buffers are used again, kept within the bound, and may outlive their pool's owner") {
  std::shared_ptr<BufferPool> pool = BufferPool::Create(8 << 20);
  const std::byte* first;
  {
    Payload payload = pool->Take(3'000'000);
    REQUIRE(reinterpret_cast<uintptr_t>(payload.data()) % 64 == 0);
    REQUIRE(payload.size() == 3'000'000);
    first = payload.data();
  }
  Payload again = pool->Take(3'000'001);
  REQUIRE(again.data() == first);
  {
    std::vector<Payload> many;
    for (int i = 0; i < 10; ++i) many.push_back(pool->Take(1000 + 1'000'000 * i));
  }
  REQUIRE(pool->idle_bytes() > 0);
  REQUIRE(pool->idle_bytes() <= 8 << 20);
  pool.reset();
  again.data()[3'000'000] = std::byte{1};
}

}  // namespace
}  // namespace atl

// Random numbers that are the same on every machine and with every standard library.
//
// xoshiro256** (Blackman and Vigna, 2018) seeded through SplitMix64. Not for secrets.

#ifndef ATOLL_COMMON_RNG_H_
#define ATOLL_COMMON_RNG_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "common/check.h"

namespace atl {

class Rng {
 public:
  // `stream` separates generators that share a seed, for example one per tensor.
  explicit Rng(uint64_t seed, uint64_t stream = 0) {
    uint64_t x = seed ^ (stream * 0x9e3779b97f4a7c15u + 0x7f4a7c15u);
    for (uint64_t& word : state_) word = SplitMix(x);
  }

  uint64_t Next() {
    const uint64_t result = Rotate(state_[1] * 5, 7) * 9;
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = Rotate(state_[3], 45);
    return result;
  }

  // Uniform in [0, bound), without bias. REQUIRES: bound > 0.
  uint64_t Below(uint64_t bound) {
    ATOLL_CHECK(bound > 0);
    const uint64_t reject_below = -bound % bound;
    uint64_t value = Next();
    while (value < reject_below) value = Next();
    return value % bound;
  }

  // Uniform in [0, 1), with 53 random bits.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

  bool Chance(double probability) { return Uniform() < probability; }

  // Standard normal, by Box and Muller; uses two draws.
  double Normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - Uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * Uniform());
  }

 private:
  static uint64_t SplitMix(uint64_t& x) {
    x += 0x9e3779b97f4a7c15u;
    uint64_t z = x;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  static uint64_t Rotate(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

  std::array<uint64_t, 4> state_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_RNG_H_

#include "worker/data/permutation.h"

#include "common/check.h"

namespace atl {
namespace {

uint64_t Mix(uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t key)
    : size_(static_cast<uint64_t>(size)), key_(key) {
  ATOLL_CHECK(size > 0 && size <= (int64_t{1} << 62));
  while (half_bits_ < 31 && (uint64_t{1} << (2 * half_bits_)) < size_) ++half_bits_;
}

uint64_t Permutation::Once(uint64_t x) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = x >> half_bits_, right = x & mask;
  for (uint64_t round = 0; round < 4; ++round) {
    const uint64_t next = left ^ (Mix(right + (key_ ^ (round * 0x9e3779b97f4a7c15u))) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

int64_t Permutation::operator()(int64_t i) const {
  uint64_t x = static_cast<uint64_t>(i);
  ATOLL_CHECK(i >= 0 && x < size_);
  // Ends: the walk is on a cycle of a permutation that leads back to i at the latest.
  do x = Once(x);
  while (x >= size_);
  return static_cast<int64_t>(x);
}

}  // namespace atl

// A pseudo-random order of [0, size) that needs no memory.

#ifndef ATOLL_WORKER_DATA_PERMUTATION_H_
#define ATOLL_WORKER_DATA_PERMUTATION_H_

#include <cstdint>

namespace atl {

// Maps [0, size) one to one onto itself; the same on every machine for the same key. A Feistel
// network of four rounds over the next power of four, walked until it lands inside (fewer than four
// steps on average). Not for secrets.
class Permutation {
 public:
  // REQUIRES: 0 < size <= 2^62.
  Permutation(int64_t size, uint64_t key);

  // REQUIRES: 0 <= i < size.
  int64_t operator()(int64_t i) const;

 private:
  uint64_t Once(uint64_t x) const;

  uint64_t size_;
  uint64_t key_;
  int half_bits_ = 1;
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_PERMUTATION_H_

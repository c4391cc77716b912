// Which part of a source of data validation holds out, its end, and how many sequences a part has.

#ifndef ATOLL_WORKER_DATA_HELD_OUT_H_
#define ATOLL_WORKER_DATA_HELD_OUT_H_

#include <cstdint>

namespace atl {

// Returns how many of so many tokens or images are held out.
inline int64_t HeldOut(int64_t units, double validation_fraction) {
  return static_cast<int64_t>(static_cast<double>(units) * validation_fraction);
}

// Sequences of so many tokens: each needs the one behind it as a target.
inline int64_t SequencesIn(int64_t tokens, int64_t sequence_length) {
  return tokens < 1 ? 0 : (tokens - 1) / sequence_length;
}

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_HELD_OUT_H_

// Which part of a source of data validation holds out: its end.

#ifndef ATOLL_WORKER_DATA_HELD_OUT_H_
#define ATOLL_WORKER_DATA_HELD_OUT_H_

#include <cstdint>

namespace atl {

// Of so many tokens or images.
inline int64_t HeldOut(int64_t units, double validation_fraction) {
  return static_cast<int64_t>(static_cast<double>(units) * validation_fraction);
}

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_HELD_OUT_H_

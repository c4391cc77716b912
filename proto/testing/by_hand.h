// A struct by hand, as plain_test.cc needs one.

#ifndef ATOLL_PROTO_TESTING_BY_HAND_H_
#define ATOLL_PROTO_TESTING_BY_HAND_H_

#include <cstdint>

namespace atl {

struct KindSpan {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const KindSpan&) const = default;
};

}  // namespace atl

#endif  // ATOLL_PROTO_TESTING_BY_HAND_H_

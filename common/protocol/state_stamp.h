#ifndef ATOLL_COMMON_PROTOCOL_STATE_STAMP_H_
#define ATOLL_COMMON_PROTOCOL_STATE_STAMP_H_

#include <compare>
#include <cstdint>

namespace atl {

// Names a change of an island's state that is no step: by the generation of the job that made it,
// and a number that no other one has there.
struct StateStamp {
  int64_t generation = 0;
  int64_t change = 0;

  auto operator<=>(const StateStamp&) const = default;
};

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_STATE_STAMP_H_

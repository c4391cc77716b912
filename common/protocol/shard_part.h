// Some elements of a shard, and which member pushes them.

#ifndef ATOLL_COMMON_PROTOCOL_SHARD_PART_H_
#define ATOLL_COMMON_PROTOCOL_SHARD_PART_H_

#include "common/element_ranges.h"
#include "common/ids.h"
#include "proto/control.plain.h"

namespace atl {

struct ShardPart : ShardPlacement {
  int64_t part_begin = 0;     // within the shard
  int64_t part_elements = 0;  // 0: the whole shard
  NodeId sender;              // empty: this worker

  ElementRange part() const {
    return part_elements == 0 ? ElementRange{0, elements}
                              : ElementRange{part_begin, part_begin + part_elements};
  }
  bool operator==(const ShardPart&) const = default;
};

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_SHARD_PART_H_

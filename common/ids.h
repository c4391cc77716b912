// Names of the things that messages speak about, and the numbers that fence old messages off.
//
// Words are defined in README.md ("Words"). All numbers start at 0 unless stated otherwise and
// never decrease.
//
// The namespace is atl because <stdlib.h> has a function atoll(). Text is absl::string_view because
// Debian's Abseil does not take std::string_view.

#ifndef ATOLL_COMMON_IDS_H_
#define ATOLL_COMMON_IDS_H_

#include <compare>
#include <cstdint>
#include <string>

#include "common/element_ranges.h"
#include "common/encoding.h"

namespace atl {

// Name of one daemon, chosen by its operator (--name), unique among daemons of its kind:
// [a-z0-9][a-z0-9-]{0,62}.
using NodeId = std::string;

// Name of one job, made by the coordinator: the job file's `name`, then "-" and a number.
using JobId = std::string;

// Names a cluster: 16 hexadecimal digits, drawn at its coordinator's first start. A member belongs
// to the cluster that welcomed it first, for good.
using ClusterId = std::string;

// Index of an island in its job's plan. An island keeps its id when its worker is replaced.
using IslandId = int32_t;

// Index of a shard in its job's shard list. A shard is a contiguous range of one layer's parameters
// and is on exactly one parameter server.
using ShardId = int32_t;

// Number of outer rounds applied. Version 0 is the initial model; kNoVersion is "nothing yet".
using Version = int64_t;
inline constexpr Version kNoVersion = -1;

// Number of the plan in force; the first plan of a job is generation 1. An island's generation is
// that of the plan which last changed the island; messages of an older one are refused.
using Generation = int64_t;

// Number of one start of a daemon; a restarted daemon has a larger one.
using Incarnation = int64_t;

// Names the pseudo-gradient of some elements of one shard, of one island in one outer round. A
// parameter server that has seen a push acknowledges it again without applying it again (guarantee
// N2). The pushes of a shard may come from several workers and may overlap: their bits agree.
struct PushId {
  JobId job;
  IslandId island = 0;
  Generation generation = 0;
  Incarnation incarnation = 0;
  Version base_version = kNoVersion;  // what the island started from; kNoVersion: initial weights
  ShardId shard = 0;
  int64_t begin = 0;     // first element within the shard, a multiple of PartBlock
  int64_t elements = 0;  // a multiple of PartBlock, or up to the shard's end; 0: the whole shard

  // Returns the range of elements in a shard of so many.
  ElementRange RangeIn(int64_t shard_elements) const {
    return elements == 0 ? ElementRange{0, shard_elements} : ElementRange{begin, begin + elements};
  }
  auto operator<=>(const PushId&) const = default;
};

// All shards' pushes of one island in one outer round.
struct ContributionId {
  IslandId island = 0;
  Generation generation = 0;
  Incarnation incarnation = 0;
  Version base_version = kNoVersion;

  auto operator<=>(const ContributionId&) const = default;
};

inline ContributionId ToContributionId(const PushId& id) {
  return {id.island, id.generation, id.incarnation, id.base_version};
}

}  // namespace atl

#endif  // ATOLL_COMMON_IDS_H_

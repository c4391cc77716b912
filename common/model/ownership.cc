#include "common/model/ownership.h"

#include <algorithm>

namespace atl {
namespace {

// Ranges begin at multiples of it where they are many times as long: at a cache line of whatever
// type, and where kernels read in vectors.
constexpr int64_t kAligned = 64;
constexpr int64_t kLong = 8 * kAligned;
// Equal parts may begin at multiples of this: 64 bytes in bf16. They make collectives plain.
constexpr int64_t kAlignedEqual = 32;

// Where part `index` of `parts` begins.
int64_t Cut(int64_t elements, int index, int parts) {
  if (index == parts) return elements;
  if (elements % (parts * kAlignedEqual) == 0) return elements / parts * index;
  const int64_t even = elements / parts * index + elements % parts * index / parts;
  return elements / parts < kLong ? even : even / kAligned * kAligned;
}

int64_t MovedOut(int64_t cut, std::span<const Range> undivided) {
  for (const Range& range : undivided) {
    if (range.begin < cut && cut < range.end) {
      return cut - range.begin <= range.end - cut ? range.begin : range.end;
    }
  }
  return cut;
}

}  // namespace

Range Ownership::Owned(int replica, int64_t elements, std::span<const Range> undivided) const {
  const int shard = GetShardIndex(replica);
  return {MovedOut(Cut(elements, shard, shards), undivided),
          MovedOut(Cut(elements, shard + 1, shards), undivided)};
}

Range Ownership::Summed(int replica, int64_t elements, std::span<const Range> undivided) const {
  int first = replica, end = replica + 1;
  while (!Leads(first)) --first;
  while (end < replicas && !Leads(end)) ++end;
  const Range owned = Owned(replica, elements, undivided);
  const auto cut = [&](int index) { return owned.begin + Cut(owned.size(), index, end - first); };
  return {cut(replica - first), cut(replica - first + 1)};
}

Ownership OwnershipFromPlan(const IslandPlan& plan) {
  Ownership ownership;
  ownership.replicas = std::max(1, static_cast<int>(plan.replicas.size()));
  if (plan.optimizer_copies > 0) {
    ownership.shards = std::max(1, ownership.replicas / plan.optimizer_copies);
  }
  return ownership;
}

}  // namespace atl

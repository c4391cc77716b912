// Fragments of a model (Streaming DiLoCo): its layers, assigned in strides. A round concerns one
// fragment, in turn, so a layer is exchanged once in outer.fragments rounds. Or the experts alone
// are so assigned, to outer.expert_fragments, and every round concerns all else. Versions count
// rounds: a shard's own version is the newest one that was its fragment's turn.
// docs/decisions/fragments.md has the reasons.
//
// Pure functions. A shard is anything with a `layer` and an `expert` (ShardPlacement).

#ifndef ATOLL_COMMON_PROTOCOL_FRAGMENTS_H_
#define ATOLL_COMMON_PROTOCOL_FRAGMENTS_H_

#include <algorithm>
#include <cstdint>

#include "common/ids.h"
#include "common/protocol/job_spec.h"

namespace atl {

// The numbers of fragments to which a job's layers, or its experts alone, are assigned. With 1 of
// both every round has all shards; at most one of the two is above 1.
struct Fragments {
  int64_t layers = 1;
  int64_t experts = 1;

  int64_t count() const { return layers * experts; }
  // Returns the shard's fragment; -1: every round has it.
  template <class Shard>
  int64_t Find(const Shard& shard) const {
    if (experts > 1) return shard.expert < 0 ? -1 : shard.expert % experts;
    return shard.layer % layers;
  }
};
inline Fragments FragmentsFrom(const OuterSpec& outer) {
  return {outer.fragments, outer.expert_fragments};
}

// Returns the fragment of the round that makes `version`, above 0.
inline int64_t FragmentFromVersion(Version version, const Fragments& fragments) {
  return (version - 1) % fragments.count();
}

// Returns whether the round that makes `version` concerns the shard. Version 0 has all.
template <class Shard>
bool IsInTurn(Version version, const Shard& shard, const Fragments& fragments) {
  const int64_t fragment = fragments.Find(shard);
  return version <= 0 || fragment < 0 || FragmentFromVersion(version, fragments) == fragment;
}

// Returns how many rounds after version `base`, up to `version`, concern the shard.
template <class Shard>
int64_t CountTurnsSince(Version base, Version version, const Shard& shard,
                        const Fragments& fragments) {
  const int64_t fragment = fragments.Find(shard);
  const auto turns = [&](Version v) {  // of all versions above 0, up to v
    if (fragment < 0) return std::max<int64_t>(0, v);
    return v <= fragment ? 0 : (v - 1 - fragment) / fragments.count() + 1;
  };
  const int64_t initial = base < 0 && version >= 0 ? 1 : 0;
  return initial + turns(version) - turns(base);
}

// Returns whether a round after version `base`, up to `version`, concerns the shard.
template <class Shard>
bool HasTurnSince(Version base, Version version, const Shard& shard, const Fragments& fragments) {
  return CountTurnsSince(base, version, shard, fragments) > 0;
}

// Returns how often the shard has had its turn by `version`, above 0, which is one of them.
template <class Shard>
int64_t CountTurns(Version version, const Shard& shard, const Fragments& fragments) {
  return fragments.Find(shard) < 0 ? version : (version - 1) / fragments.count() + 1;
}

// Counts the rounds of so many steps of which one averages moments; 0: none does.
inline int64_t CountMomentsRounds(const OuterSpec& outer, int64_t steps) {
  return (outer.average_moments_steps + steps - 1) / std::max<int64_t>(1, steps);
}

// Bytes of an element's moments, on average of rounds of so many steps; 0: none are averaged.
inline double MomentsBytesPerElement(const OuterSpec& outer, int64_t steps) {
  const int64_t rounds = CountMomentsRounds(outer, std::max<int64_t>(1, steps));
  if (rounds == 0) return 0;
  return static_cast<double>(EncodedBytes(Encoding::kMomentsAlone, kQuantBlock)) /
         static_cast<double>(kQuantBlock * rounds);
}

// Inner steps of the fastest island between two pushes.
inline int64_t StepsBetweenPushes(const OuterSpec& outer) {
  return std::max<int64_t>(1, outer.steps_per_round / std::max<int64_t>(1, outer.fragments));
}

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_FRAGMENTS_H_

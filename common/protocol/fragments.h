// Fragments of a model (Streaming DiLoCo): its layers, assigned in strides. A round concerns one
// fragment, in turn, so a layer is exchanged once in outer.fragments rounds. Versions count rounds:
// a layer's own version is the newest one that was its fragment's turn. docs/decisions/fragments.md
// has the reasons.
//
// Pure functions. `fragments` is OuterSpec::fragments, at least 1; with 1 every round has all
// layers.

#ifndef ATOLL_COMMON_PROTOCOL_FRAGMENTS_H_
#define ATOLL_COMMON_PROTOCOL_FRAGMENTS_H_

#include <algorithm>
#include <cstdint>

#include "common/ids.h"
#include "common/protocol/job_spec.h"

namespace atl {

// Returns the fragment of the round that makes `version`, above 0.
inline int64_t FragmentFromVersion(Version version, int64_t fragments) {
  return (version - 1) % fragments;
}

// Returns whether the round that makes `version` concerns the layer. Version 0 has all layers.
inline bool IsInTurn(Version version, int32_t layer, int64_t fragments) {
  return version <= 0 || FragmentFromVersion(version, fragments) == layer % fragments;
}

// Returns how many rounds after version `base`, up to `version`, concern the layer.
inline int64_t CountTurnsSince(Version base, Version version, int32_t layer, int64_t fragments) {
  const int64_t fragment = layer % fragments;
  const auto turns = [&](Version v) {  // of all versions above 0, up to v
    return v <= fragment ? 0 : (v - 1 - fragment) / fragments + 1;
  };
  const int64_t initial = base < 0 && version >= 0 ? 1 : 0;
  return initial + turns(version) - turns(base);
}

// Returns whether a round after version `base`, up to `version`, concerns the layer.
inline bool HasTurnSince(Version base, Version version, int32_t layer, int64_t fragments) {
  return CountTurnsSince(base, version, layer, fragments) > 0;
}

// Returns how often the fragment of `version`, above 0, has had its turn by then.
inline int64_t CountFragmentTurns(Version version, int64_t fragments) {
  return (version - 1) / fragments + 1;
}

// Returns of how many rounds of so many steps one averages moments; 0: none does.
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

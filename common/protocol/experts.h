// The experts of a mixture in outer rounds. An expert is a unit of its own: shards do not reach
// over its border (ShardPlacement::expert), and an island says with a contribution how many tokens
// each expert saw. What an expert gets of a round's weight goes by its tokens: of the islands'
// weights w, tokens n and those that its expert saw, t,
//
//   w'[i] = (sum of w) (w[i] t[i] / n[i]) / sum over islands j of w[j] t[j] / n[j]
//
// An island whose expert saw none does not push it, and keeps what its optimizer has done to it
// meanwhile as something not pushed yet. Where all have seen the same share, w' is w, bit for bit.
//
// Pure functions. A shard is anything with a `layer` and an `expert`.

#ifndef ATOLL_COMMON_PROTOCOL_EXPERTS_H_
#define ATOLL_COMMON_PROTOCOL_EXPERTS_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "common/protocol/job_spec.h"
#include "common/protocol/outer_optimizer.h"
#include "proto/control.plain.h"

namespace atl {

// Returns whether experts have weights of their own. The servers of a site know no tokens of what
// they contribute; merges by layer weigh by other rules.
inline bool WeighsExperts(const OuterSpec& outer) {
  return outer.weight_experts && !MergesByLayer(outer) && outer.site.rounds == 0 &&
         outer.contributes_to.empty();
}
// Returns whether shards end where an expert ends.
inline bool CutsByExpert(const OuterSpec& outer) {
  return WeighsExperts(outer) || outer.expert_fragments > 1;
}

// Returns whether the island pushes the shard in its turn. `tokens` by expert; empty: it does not
// say.
template <class Shard>
bool IsSeen(const std::vector<int64_t>& tokens, const Shard& shard) {
  const auto expert = static_cast<size_t>(std::max(0, shard.expert));
  return shard.expert < 0 || expert >= tokens.size() || tokens[expert] > 0;
}

// Returns the weights of an expert's terms, which have these in the round.
template <class Terms>
std::vector<double> WeighExpert(const Terms& terms, int32_t expert, std::vector<double> weights) {
  std::vector<double> shares;
  double all = 0, sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto& tokens = terms[i].expert_tokens;
    const bool known = static_cast<size_t>(expert) < tokens.size() && terms[i].tokens > 0;
    shares.push_back(known ? static_cast<double>(tokens[static_cast<size_t>(expert)]) /
                                 static_cast<double>(terms[i].tokens)
                           : 1);
    all += weights[i];
    sum += weights[i] * shares[i];
  }
  const bool alike = std::all_of(shares.begin(), shares.end(),
                                 [&](double share) { return share == shares.front(); });
  if (alike && sum != 0) return weights;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double part = weights[i] * shares[i];
    weights[i] = part == 0 ? 0 : part == sum ? all : part / sum * all;
  }
  return weights;
}

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_EXPERTS_H_

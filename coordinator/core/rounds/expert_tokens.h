// Decides which shards of a contribution are pushed, by the tokens that its experts saw: an expert
// that saw none has no pseudo-gradient (common/protocol/experts.h). Private to the core.

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_EXPERT_TOKENS_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_EXPERT_TOKENS_H_

#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/state.h"

namespace atl::coord {

// Checks the tokens that a push claims for each expert; initial weights have none. An error names
// what they contradict.
absl::Status CheckExpertTokens(const Job& job, const PushRequest& message);

// Returns whether the contribution has the shard: it is of its fragment, or of all layers.
// `expert_tokens`: of the contribution.
bool IsPushed(const Job& job, const ContributionId& id, const ShardDescriptor& shard,
              const std::vector<int64_t>& expert_tokens);
// Counts the replicas to which the contribution is pushed.
int64_t CountPushed(const Job& job, const ContributionId& id);

// Forgets the experts' tokens of decisions that follow a version before `needed_after`: nothing
// sends them any more, what is left of them is shown.
void ForgetExpertTokens(Rounds& rounds, Version needed_after);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_EXPERT_TOKENS_H_

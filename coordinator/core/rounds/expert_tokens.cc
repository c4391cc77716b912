#include "coordinator/core/rounds/expert_tokens.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/protocol/experts.h"
#include "common/protocol/fragments.h"

namespace atl::coord {

absl::Status CheckExpertTokens(const Job& job, const PushRequest& message) {
  const std::vector<int64_t>& tokens = message.expert_tokens;
  if (tokens.empty()) return absl::OkStatus();
  if (!WeighsExperts(job.spec().outer)) {
    return absl::InvalidArgumentError(
        "it says what experts saw, which have no weights in this job");
  }
  size_t experts = 0;
  for (const LayerSize& layer : job.record.facts->layers) {
    experts += static_cast<size_t>(layer.experts);
  }
  const auto most = std::max_element(tokens.begin(), tokens.end());
  const int64_t limit = message.tokens * job.spec().outer.expert_fragments;
  if (tokens.size() == experts && *most <= limit && *most > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("it claims up to ", *most, " of ", message.tokens,
                                                 " tokens an expert, of ", tokens.size(),
                                                 " experts; the model has ", experts));
}

bool IsPushed(const Job& job, const ContributionId& id, const ShardDescriptor& shard,
              const std::vector<int64_t>& expert_tokens) {
  return IsInTurn(id.base_version + 1, shard, FragmentsFrom(job.spec().outer)) &&
         IsSeen(expert_tokens, shard);
}

int64_t CountPushed(const Job& job, const ContributionId& id) {
  constexpr size_t kKnownMax = 4096;
  const auto record = job.rounds.contributions.find(id);
  std::vector<int64_t> tokens;
  if (record != job.rounds.contributions.end()) tokens = record->second.expert_tokens;
  const bool all = std::find(tokens.begin(), tokens.end(), 0) == tokens.end();
  const Version version = id.base_version + 1;
  const int64_t fragment =
      version <= 0 ? -1 : FragmentFromVersion(version, FragmentsFrom(job.spec().outer));
  auto& pushed = job.replicas().pushed;
  if (pushed.size() > kKnownMax) pushed.clear();
  const auto [known, is_new] = pushed.try_emplace({fragment, all ? ContributionId() : id}, 0);
  if (!is_new) return known->second;
  ForEachHolder(job.record.shards, [&](const ShardDescriptor& shard, const ShardReplica&) {
    known->second += IsPushed(job, id, shard, tokens) ? 1 : 0;
  });
  return known->second;
}

void ForgetExpertTokens(Rounds& rounds, Version needed_after) {
  std::vector<int64_t> old;
  for (auto d = rounds.decisions.rbegin(); d != rounds.decisions.rend(); ++d) {
    const DecisionRecord& decision = d->second;
    if (decision.previous >= needed_after) continue;
    const bool has = std::any_of(decision.participants.begin(), decision.participants.end(),
                                 [](const auto& p) { return !p.expert_tokens.empty(); });
    if (!has) break;
    old.push_back(d->first);
  }
  for (const int64_t round : old) {
    for (DecisionParticipant& p : rounds.EditDecision(round).participants) p.expert_tokens.clear();
  }
}

}  // namespace atl::coord

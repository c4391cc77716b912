#include <algorithm>

#include "common/protocol/outer_optimizer.h"
#include "common/status.h"
#include "common/trust/signed_push.h"
#include "kernels/host_ops.h"
#include "paramserver/core/job_state.h"

namespace atl::ps {

absl::StatusOr<bool> JobState::AddToGram(GramSum& sum, int64_t elements) const {
  if (sum.contributions.size() > kMaxContributions) {
    return absl::InvalidArgumentError(absl::StrCat("statistics of ", sum.contributions.size(),
                                                   " contributions; at most ", kMaxContributions,
                                                   " are possible"));
  }
  for (const ShardId id : sum.shards) {
    if (shards_.contains(id)) continue;
    return absl::NotFoundError(absl::StrCat("shard ", id, " is not here"));
  }
  auto next = sum.last ? shards_.upper_bound(*sum.last) : shards_.begin();
  for (; next != shards_.end() && elements > 0; ++next) {
    const auto& [id, shard] = *next;
    sum.last = id;
    const std::vector<ShardId>& only = sum.shards;
    if (!only.empty() && std::find(only.begin(), only.end(), id) == only.end()) continue;
    if (!HasTurn(sum.version, shard)) continue;
    if (absl::Status status = AddShard(id, shard, sum); !status.ok()) return status;
    // A digest takes about as long as a product.
    const auto deltas =
        static_cast<int64_t>(sum.contributions.size() + 1) * (sum.digests.contains(id) ? 2 : 1);
    elements -= deltas * std::max<int64_t>(1, deltas / kMaxContributionsByLayer) *
                shard.info.elements;  // the products of many take longer than reading them
  }
  return next == shards_.end();
}

absl::Status JobState::AddShard(ShardId id, const Shard& shard, GramSum& sum) const {
  const size_t k = sum.contributions.size();
  const int reference = version_ == kNoVersion || !assigned_ || ended_
                            ? -1
                            : GetOuterOptimizer(assignment_.definition.spec.outer).reference;
  const size_t n = reference < 0 ? k : k + 1;
  std::vector<DeltaView> deltas;
  std::vector<size_t> rows;  // of the matrix, that have the shard
  for (size_t i = 0; i < k; ++i) {
    const StagedShard* push = FindStaged(sum.contributions[i], id);
    if (push == nullptr && shard.info.expert >= 0) continue;  // the island's saw no tokens
    if (push == nullptr) {
      return absl::NotFoundError(absl::StrCat(
          "the push of shard ", id, " by ", ContributionText(sum.contributions[i]), " is missing"));
    }
    deltas.push_back({push->payload.bytes.data(), push->encoding, shard.info.elements});
    rows.push_back(i);
  }
  if (reference >= 0) {
    if (static_cast<size_t>(reference) >= shard.slots.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat("shard ", id, " has no state of its outer optimizer any more"));
    }
    const auto& slot = shard.slots[static_cast<size_t>(reference)];
    deltas.push_back({slot->values().data(), Encoding::kFloat32, shard.info.elements});
    rows.push_back(k);
  }
  std::vector<double> gram(rows.size() * rows.size());
  if (!deltas.empty()) GramMatrix(deltas, gram, *pool_);
  CompareDigests(id, sum);
  std::vector<double>& layer = sum.by_layer[HasStatisticsByLayer(k) ? shard.info.layer : 0];
  layer.resize(n * n);
  if (HoldsStatistics(shard.info)) return absl::OkStatus();
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < rows.size(); ++j) {
      layer[rows[i] * n + rows[j]] += gram[i * rows.size() + j];
    }
  }
  return absl::OkStatus();
}

void JobState::CompareDigests(ShardId id, GramSum& sum) const {
  const auto wanted = sum.digests.find(id);
  if (wanted == sum.digests.end()) return;
  std::vector<char> fits(wanted->second.size());
  pool_->For(std::ssize(fits), [&](int64_t i, int) {
    const auto& [contribution, part] = wanted->second[static_cast<size_t>(i)];
    const StagedShard* push = FindStaged(contribution, id);
    if (push == nullptr) return;
    const std::span<const std::byte> all = push->payload.bytes;
    const auto at = [&](int64_t element) {
      return static_cast<size_t>(EncodedBytes(push->encoding, element));
    };
    const size_t begin = at(part.begin), end = at(part.begin + part.elements);
    fits[static_cast<size_t>(i)] =
        begin <= end && end <= all.size() &&
        DigestPart(push->encoding, all.subspan(begin, end - begin)) == part.digest;
  });
  for (size_t i = 0; i < fits.size(); ++i) {
    if (fits[i] == 0) sum.unfit.insert(wanted->second[i].first);
  }
}

}  // namespace atl::ps

#include "common/model/tensor_part.h"

#include <algorithm>
#include <numeric>

#include "common/model/family.h"

namespace atl {
namespace {

// `total` things divided in proportion to the shares, at least one each where there are as many.
std::vector<Range> Divide(int64_t total, const std::vector<int64_t>& ratios) {
  if (total < std::ssize(ratios)) return std::vector<Range>(ratios.size());
  const int64_t sum = std::accumulate(ratios.begin(), ratios.end(), int64_t{0});
  const auto ranks = static_cast<int>(ratios.size());
  std::vector<int64_t> counts;
  // How far a rank is below its exact part, times the sum of shares.
  const auto lack = [&](int rank) { return total * ratios[rank] - counts[rank] * sum; };
  int64_t assigned = 0;
  for (const int64_t share : ratios) {
    counts.push_back(std::max<int64_t>(1, total * share / sum));
    assigned += counts.back();
  }
  for (; assigned < total; ++assigned) {
    int most = 0;
    for (int rank = 1; rank < ranks; ++rank) most = lack(rank) > lack(most) ? rank : most;
    ++counts[most];
  }
  for (; assigned > total; --assigned) {  // where a rank got one that it has no claim to
    int least = -1;
    for (int rank = 0; rank < ranks; ++rank) {
      if (counts[rank] > 1 && (least < 0 || lack(rank) <= lack(least))) least = rank;
    }
    --counts[least];
  }
  std::vector<Range> ranges;
  int64_t begin = 0;
  for (const int64_t count : counts) {
    ranges.push_back({begin, begin + count});
    begin += count;
  }
  return ranges;
}

absl::Status CheckCut(const ModelConfig& config, int ranks, std::span<const int32_t> ratios) {
  if (ranks > 1 && config.is_images()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor parallelism over ", ranks, " devices: ", GetFamily(config.family).model_type,
        " models have convolutions, which are not cut; use layout.tensor_parallel = 1"));
  }
  struct Limit {
    const char* name;
    int64_t count;
  };
  const bool coded = config.adapter.base.has_value();
  std::vector<Limit> limits = {
      {coded ? "key-value heads that end with a block of adapter.base's codes" : "key-value heads",
       CountHeadGroups(config)},
      {"words in the vocabulary", config.vocab}};
  if (config.has_dense_blocks()) {
    limits.push_back({coded ? "blocks of adapter.base's codes in a row of the feed-forward"
                            : "hidden columns in the feed-forward",
                      CountHiddenGroups(config)});
  }
  if (config.experts.count > 0) limits.push_back({"experts in a block", config.experts.count});
  if (config.experts.shared_hidden > 0) {
    limits.push_back({"hidden columns in the shared expert", config.experts.shared_hidden});
  }
  const auto least = std::min_element(std::begin(limits), std::end(limits),
                                      [](auto& a, auto& b) { return a.count < b.count; });
  if (ranks > 1 && config.architecture().qk_norm == QkNorm::kAllHeads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor parallelism over ", ranks, " devices: ", GetFamily(config.family).model_type,
        " models have a norm over the queries of all heads, which are therefore not "
        "cut; use layout.tensor_parallel = 1"));
  }
  if (ranks < 1 || ranks > least->count) {
    return absl::InvalidArgumentError(absl::StrCat("tensor parallelism over ", ranks,
                                                   " devices: the model has ", least->count, " ",
                                                   least->name, " and each device needs one; 1 to ",
                                                   least->count, " devices can share this model"));
  }
  if (!ratios.empty() && static_cast<int>(ratios.size()) != ranks) {
    return absl::InvalidArgumentError(absl::StrCat("tensor_split_ratios has ", ratios.size(),
                                                   " numbers for ", ranks,
                                                   " devices; expected one each, or none"));
  }
  for (const int32_t share : ratios) {
    if (share >= 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor_split_ratios has a ", share, "; every share is 1 or more"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t CountHeadGroups(const ModelConfig& config) {
  if (!config.adapter.base) return config.kv_heads;
  const int64_t channels = config.query_channels() / config.kv_heads;
  return config.kv_heads / (kWeightBlock / std::gcd(kWeightBlock, channels));
}

int64_t CountHiddenGroups(const ModelConfig& config) {
  return config.adapter.base ? config.ffn / kWeightBlock : config.ffn;
}

TensorPart WholePart(const ModelConfig& config) {
  return {.heads = {0, config.heads},
          .kv_heads = {0, config.kv_heads},
          .ffn = {0, config.ffn},
          .experts = {0, config.experts.count},
          .shared = {0, config.experts.shared_hidden},
          .vocab = {0, config.vocab}};
}

absl::StatusOr<std::vector<TensorPart>> CutModel(const ModelConfig& config, int ranks,
                                                 std::span<const int32_t> ratios) {
  ATOLL_RETURN_IF_ERROR(CheckCut(config, ranks, ratios));
  std::vector<int64_t> weights(ratios.begin(), ratios.end());
  if (weights.empty()) weights.assign(ranks, 1);
  const auto groups = Divide(CountHeadGroups(config), weights);
  const auto hidden = Divide(CountHiddenGroups(config), weights);
  const auto experts = Divide(config.experts.count, weights);
  const auto shared = Divide(config.experts.shared_hidden, weights);
  const auto vocab = Divide(config.vocab, weights);
  const int64_t group = config.heads / config.kv_heads;
  const int64_t each = config.kv_heads / CountHeadGroups(config);
  const int64_t columns = config.ffn / std::max<int64_t>(1, CountHiddenGroups(config));
  std::vector<TensorPart> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    const Range kv{groups[rank].begin * each, groups[rank].end * each};
    parts.push_back({.rank = rank,
                     .ranks = ranks,
                     .heads = {kv.begin * group, kv.end * group},
                     .kv_heads = kv,
                     .ffn = {hidden[rank].begin * columns, hidden[rank].end * columns},
                     .experts = experts[rank],
                     .shared = shared[rank],
                     .vocab = vocab[rank]});
  }
  return parts;
}

}  // namespace atl

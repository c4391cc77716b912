// Averages of moments that decided rounds give, and what islands adopt of them.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/codecs/moments.h"
#include "tests/sim/checker.h"

namespace atl::sim {

// By the weights of those terms that have moments.
void Checker::ExpectMoments(const CommitRound& commit, Model& model) const {
  double sum = 0;
  std::vector<std::pair<const Captured*, double>> terms;
  for (const RoundTerm& term : commit.terms) {
    const Captured& captured = captured_.at(term.contribution);
    if (captured.ratios.empty() || term.weight <= 0) continue;
    terms.emplace_back(&captured, term.weight);
    sum += term.weight;
  }
  const auto average = [&](const LayerValues Captured::*of, LayerValues& into) {
    for (size_t l = 0; l < into.size(); ++l) {
      for (size_t i = 0; i < into[l].size(); ++i) {
        double mean = 0;
        for (const auto& [captured, weight] : terms) mean += weight / sum * (captured->*of)[l][i];
        into[l][i] = static_cast<float>(mean);
      }
    }
  };
  if (terms.empty()) return;
  average(&Captured::ratios, model.ratios);
  average(&Captured::second, model.second);
}

// Each shard is pulled as its server encodes it.
void Checker::AdoptedMoments(const NodeId& worker, Version version, const LayerValues& first) {
  const auto model = expected_.find(version);
  if (model == expected_.end()) return;  // Adopted says so
  for (const ShardPlacement& shard : shards_) {
    const auto layer = static_cast<size_t>(shard.layer);
    const auto at = [&](const LayerValues& values) {
      return std::span(values[layer])
          .subspan(static_cast<size_t>(shard.begin), static_cast<size_t>(shard.elements));
    };
    constexpr Encoding kAlone = Encoding::kMomentsAlone;
    std::vector<std::byte> bytes(static_cast<size_t>(EncodedBytes(kAlone, shard.elements)));
    EncodeRatios(kAlone, at(model->second.ratios), at(model->second.second), bytes);
    std::vector<float> expected(static_cast<size_t>(shard.elements)), second = expected;
    DecodeRatios(kAlone, bytes, expected, second);
    FirstFromRatios(expected, second);
    if (std::equal(expected.begin(), expected.end(), at(first).begin())) continue;
    return Fail(absl::StrCat("N3: ", worker, " adopts other moments with version ", version,
                             " than its round and those before it give"));
  }
}

}  // namespace atl::sim

#include "common/model/targets.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/check.h"
#include "common/rng.h"

namespace atl {
namespace {

constexpr int32_t kTokenBits = (1 << kTokenTypeShift) - 1;

uint64_t SeedOfRow(std::span<const int32_t> row, int64_t step) {  // FNV-1a
  uint64_t hash = 14695981039346656037u ^ static_cast<uint64_t>(step);
  for (const int32_t token : row) hash = (hash ^ static_cast<uint32_t>(token)) * 1099511628211u;
  return hash;
}

int32_t MaskedInput(const ModelConfig& config, int32_t token, Rng& rng) {
  const uint64_t draw = rng.Below(10);
  const int32_t type = token & ~kTokenBits;
  if (draw < 8) return type | static_cast<int32_t>(config.mask_token);
  if (draw > 8) return token;
  return type | static_cast<int32_t>(rng.Below(static_cast<uint64_t>(config.vocab)));
}

bool IsSpecial(const SpecialTokens& special, int64_t token) {
  for (const auto* ids : {&special.cls, &special.sep, &special.pad}) {
    if (std::find(ids->begin(), ids->end(), token) != ids->end()) return true;
  }
  return false;
}

void MaskRow(const ModelConfig& config, std::span<const int32_t> row, int64_t step,
             std::span<int32_t> inputs, std::span<int32_t> targets) {
  std::transform(row.begin(), row.end() - 1, inputs.begin(), UnmaskToken);
  std::fill(targets.begin(), targets.end(), kIgnoredTarget);
  const auto before_padding = static_cast<size_t>(UnpaddedInputs(config, row));
  const bool alone = row.back() < 0;  // a document, which is masked as it is without padding
  Rng rng(SeedOfRow(alone ? row.first(before_padding) : row, step));
  std::vector<size_t> positions(inputs.size());
  std::iota(positions.begin(), positions.end(), size_t{0});
  const auto special = std::stable_partition(
      positions.begin(), positions.begin() + static_cast<std::ptrdiff_t>(before_padding),
      [&](size_t i) { return !IsSpecial(config.special_tokens, inputs[i] & kTokenBits); });
  const auto regular = static_cast<size_t>(special - positions.begin());
  const int64_t counted = alone ? static_cast<int64_t>(before_padding) : std::ssize(inputs);
  const auto count = static_cast<size_t>(CountPredicted(counted));
  for (size_t i = 0; i < count; ++i) {
    // The number of targets follows from the length: special tokens make up for usual ones that a
    // row lacks, and padding for both.
    const size_t end = i < regular          ? regular
                       : i < before_padding ? before_padding
                                            : positions.size();
    std::swap(positions[i], positions[i + rng.Below(end - i)]);
    int32_t& input = inputs[positions[i]];
    targets[positions[i]] = input & kTokenBits;
    input = MaskedInput(config, input, rng);
  }
}

}  // namespace

bool HasPadding(const ModelConfig& config) {
  return !config.special_tokens.pad.empty() && !config.architecture().causal;
}

DocumentFrame GetDocumentFrame(const ModelConfig& config) {
  const SpecialTokens& special = config.special_tokens;
  const auto first = [](const std::vector<int64_t>& ids) {
    ATOLL_CHECK(!ids.empty());
    return static_cast<int32_t>(ids[0]);
  };
  return {first(special.cls), first(special.sep), first(special.pad)};
}

int32_t UnpaddedInputs(const ModelConfig& config, std::span<const int32_t> row) {
  size_t count = row.size() - 1;
  if (!HasPadding(config)) return static_cast<int32_t>(count);
  const std::vector<int64_t>& pad = config.special_tokens.pad;
  const auto is_pad = [&](int32_t token) {
    return std::find(pad.begin(), pad.end(), UnmaskToken(token) & kTokenBits) != pad.end();
  };
  while (count > 1 && is_pad(row[count - 1])) --count;
  return static_cast<int32_t>(count);
}

int64_t BorderNumbers(const ModelConfig& config, bool documents, int64_t seq_len) {
  if (HasPadding(config)) return 1;
  return documents ? seq_len : 0;
}

void FillBorders(const ModelConfig& config, std::span<const int32_t> row,
                 std::span<int32_t> borders) {
  if (HasPadding(config)) {
    borders[0] = UnpaddedInputs(config, row);
    return;
  }
  ATOLL_CHECK(row.size() == borders.size() + 1);
  int32_t begin = 0;
  for (size_t i = 0; i < borders.size(); ++i) {
    if (BeginsDocument(row[i])) begin = static_cast<int32_t>(i);
    borders[i] = begin;
  }
  // A last document without a target fills the row up: each of its tokens is one of its own, which
  // routers see (kernels/expert_ops.h).
  const auto of_last = row.subspan(static_cast<size_t>(begin));
  if (begin == 0 || std::any_of(of_last.begin(), of_last.end(), [](auto t) { return t >= 0; })) {
    return;
  }
  std::iota(borders.begin() + begin, borders.end(), begin);
}

bool AreWhole(const ModelConfig& config, std::span<const int32_t> borders, int64_t seq_len) {
  const int64_t whole = HasPadding(config) ? seq_len : 0;
  return std::all_of(borders.begin(), borders.end(), [&](int32_t at) { return at == whole; });
}

void FillRow(const ModelConfig& config, std::span<const int32_t> row, int64_t step,
             std::span<int32_t> inputs, std::span<int32_t> targets) {
  const bool image = config.is_images();
  ATOLL_CHECK(row.size() == inputs.size() + 1 && targets.size() == (image ? 1 : inputs.size()));
  switch (config.architecture().objective) {
    case Objective::kNextToken:
      return SplitRow(row, inputs.data(), targets.data());
    case Objective::kMaskedToken:
      return MaskRow(config, row, step, inputs, targets);
    case Objective::kImageClass:
      std::copy(row.begin(), row.end() - 1, inputs.begin());
      targets[0] = row.back();
      return;
  }
}

int64_t CountTargets(const ModelConfig& config, int64_t rows, int64_t seq_len,
                     int64_t masked_tokens) {
  switch (config.architecture().objective) {
    case Objective::kNextToken:
      return rows * seq_len - masked_tokens;
    case Objective::kMaskedToken:
      return masked_tokens > 0 ? rows * seq_len - masked_tokens : rows * CountPredicted(seq_len);
    case Objective::kImageClass:
      return rows * seq_len;
  }
  __builtin_unreachable();
}

}  // namespace atl

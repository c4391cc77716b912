// Rows of tokens in which some are inputs only: the loss does not count them as targets.
//
// Token t that is no target is written as ~t, which is negative, and the first one of a document in
// a row of several as ~(t | kDocumentBegins). A row of a sequence of length T has T + 1 tokens: its
// inputs are the first T, its targets the last T.

#ifndef ATOLL_COMMON_MASKED_TOKENS_H_
#define ATOLL_COMMON_MASKED_TOKENS_H_

#include <algorithm>
#include <cstdint>
#include <span>

namespace atl {

inline constexpr int32_t kIgnoredTarget = -100;  // CrossEntropy::ignore_index of kernels/ops.h

// The tokens that frame a document with a sequence to itself: [CLS] document [SEP] [PAD]... In its
// row the [PAD]s are masked, so that the last token is: in other rows of encoders none is.
struct DocumentFrame {
  int32_t cls = 0, sep = 0, pad = 0;
};
inline constexpr int64_t kFrameTokens = 2;  // beside the document

// Returns how many of so many tokens of a sequence are targets where masked ones are predicted.
inline int64_t CountPredicted(int64_t tokens) { return std::max<int64_t>(1, tokens * 15 / 100); }

inline constexpr int32_t kDocumentBegins = 1 << 30;  // above all tokens and their types

inline int32_t MaskToken(int32_t token) { return ~token; }
inline int32_t UnmaskToken(int32_t token) { return token < 0 ? ~token & ~kDocumentBegins : token; }
inline int32_t MarkDocument(int32_t token) {
  return MaskToken(UnmaskToken(token) | kDocumentBegins);
}
inline bool BeginsDocument(int32_t token) { return token < 0 && (~token & kDocumentBegins) != 0; }

// Writes a row's inputs and targets, row.size() - 1 each.
inline void SplitRow(std::span<const int32_t> row, int32_t* inputs, int32_t* targets) {
  for (size_t i = 0; i + 1 < row.size(); ++i) {
    inputs[i] = UnmaskToken(row[i]);
    targets[i] = row[i + 1] < 0 ? kIgnoredTarget : row[i + 1];
  }
}

// Returns how many of the targets of rows of `row_tokens` each are ignored.
inline int64_t CountMasked(std::span<const int32_t> rows, int64_t row_tokens) {
  int64_t masked = 0;
  for (size_t r = 0; r < rows.size(); r += static_cast<size_t>(row_tokens)) {
    const auto targets = rows.subspan(r + 1, static_cast<size_t>(row_tokens - 1));
    masked += std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t < 0; });
  }
  return masked;
}

}  // namespace atl

#endif  // ATOLL_COMMON_MASKED_TOKENS_H_

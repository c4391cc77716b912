// Inputs and targets of a training step, made from a row of sequence_length + 1 tokens.

#ifndef ATOLL_COMMON_MODEL_TARGETS_H_
#define ATOLL_COMMON_MODEL_TARGETS_H_

#include <cstdint>
#include <span>

#include "common/masked_tokens.h"
#include "common/model/config.h"

namespace atl {

// Writes the inputs and targets of a row, which is one token longer and may have masked tokens
// (common/masked_tokens.h). Of next tokens, targets are the row one further. Of masked tokens
// (Devlin et al. 2019), 15% of the positions, at least one, are targets, none of them [CLS], [SEP]
// or [PAD] (config.special_tokens) where the row has enough others, and none of the padding at its
// end where it has enough tokens before that; the input of such a position is the mask in 80% of
// cases, any token in 10% and itself in 10%. Which ones they are depends on the row's tokens and
// `step` alone, the optimizer's step that is being made (0: validation): a row is masked anew
// whenever it comes again, and alike in every layout. A row of a document alone (DocumentFrame) has
// 15% of its tokens before the padding as targets, whatever the length of its padding. Of images,
// the inputs are the pixels' bytes, row by row and channel by channel, and the target is the class
// behind them: a row has ModelConfig::RowNumbers, an image one target.
void FillRow(const ModelConfig& config, std::span<const int32_t> row, int64_t step,
             std::span<int32_t> inputs, std::span<int32_t> targets);

// Returns whether rows may end with padding, which nothing attends to: true of encoders whose
// config.json names a [PAD].
bool HasPadding(const ModelConfig& config);

// Returns the tokens that frame a single document. REQUIRES: the model has a [CLS], a [SEP] and a
// [PAD].
DocumentFrame GetDocumentFrame(const ModelConfig& config);

// Returns how many of the inputs of a row (see FillRow) come before the [PAD]s at its end: at least
// 1, and all where the model has no padding.
int32_t UnpaddedInputs(const ModelConfig& config, std::span<const int32_t> row);

// Borders are what attention needs of a row besides its inputs: of encoders with padding,
// UnpaddedInputs; else, where rows hold documents, by input where its document begins
// (common/masked_tokens.h). Returns how many numbers that is; 0: rows have none.
int64_t BorderNumbers(const ModelConfig& config, bool documents, int64_t seq_len);
// Writes them. REQUIRES: as many as BorderNumbers.
void FillBorders(const ModelConfig& config, std::span<const int32_t> row,
                 std::span<int32_t> borders);
// Returns whether all rows of these borders are whole, of one document each.
bool AreWhole(const ModelConfig& config, std::span<const int32_t> borders, int64_t seq_len);

// Returns how many targets FillRow makes of so many rows, of whose positions the data masks
// `masked_tokens`. Of masked tokens, these are all positions of documents alone that are no
// targets, and 0 of other rows.
int64_t CountTargets(const ModelConfig& config, int64_t rows, int64_t seq_len,
                     int64_t masked_tokens);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_TARGETS_H_

// Text that has to become tokens: what a job says of it, and the tokens, made once on a machine.

#ifndef ATOLL_WORKER_DATA_TEXT_INPUT_H_
#define ATOLL_WORKER_DATA_TEXT_INPUT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/protocol/job_spec.h"
#include "common/status.h"
#include "worker/data/chat/frame.h"
#include "worker/data/digest_cache.h"
#include "worker/data/inputs.h"
#include "worker/data/tokenize.h"

namespace atl {

struct TextInput {
  std::vector<std::string> files;
  std::unique_ptr<const Tokenizer> tokenizer;  // null: bytes
  std::unique_ptr<const ChatFrame> chat;       // of conversations
  std::optional<int32_t> end_of_text;
  LeftOut left_out;
};

// Returns whether the format is of text: its tokens are made here.
bool IsText(DataFormat format);

// Returns how many tokens of a document are used; 0: documents are not padded.
int64_t DocumentTokensMax(const DataSpec& spec);

// Finds the files, the tokenizer and the chat template. INVALID_ARGUMENT: the tokenizer has ids
// that are not below `vocabulary`.
absl::StatusOr<TextInput> FindText(const DataSpec& spec, const std::string& path,
                                   int64_t vocabulary, const Cancelled& cancelled);

// Returns whether bytes of these files are tokens as they lie there: plain text without a
// tokenizer.
absl::StatusOr<bool> ReadsDirectly(const DataSpec& spec, const std::vector<std::string>& files,
                                   const Cancelled& cancelled);

// Returns how to tokenize it; the options point to what is in `input`.
TokenizeOptions OptionsFor(const DataSpec& spec, const TextInput& input);

// Returns the folder of shards that hold the text's tokens: from the cache, else made now.
absl::StatusOr<std::string> TokenizeOnce(const DataSpec& spec, const TextInput& input,
                                         const DataOptions& data);

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_TEXT_INPUT_H_

// Text of tokens as they are made: whole characters alone, and nothing of a text that ends it.

#ifndef ATOLL_CLI_TEXT_TEXT_STREAM_H_
#define ATOLL_CLI_TEXT_TEXT_STREAM_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/tokenizer/tokenizer.h"

namespace atl::cli {

class TextStream {
 public:
  // `tokenizer` null: tokens are bytes. `prompt`: the tokens before; how the first ones are spelt
  // may depend on them. `write` gets the text in parts.
  TextStream(const Tokenizer* tokenizer, std::span<const int32_t> prompt,
             std::vector<std::string> stops, std::function<void(const std::string&)> write);

  // False: a stop text is complete. What precedes it has been written; nothing more will be.
  absl::StatusOr<bool> Add(int32_t token);

  // Writes what was held back because it might have become a character, or a stop text.
  absl::Status Finish();

 private:
  absl::Status Decode(bool all);
  bool Emit(bool all);

  const Tokenizer* tokenizer_;
  std::vector<int32_t> ids_;  // the newest tokens: enough to spell the next one
  size_t shown_;              // of them, those whose text is in pending_ or written
  std::vector<std::string> stops_;
  std::function<void(const std::string&)> write_;
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace atl::cli

#endif  // ATOLL_CLI_TEXT_TEXT_STREAM_H_

// Conversations to fine-tune on: a JSON object a line, either {"messages": [{"role": ...,
// "content": ...}, ...]} or {"prompt": ..., "answer": ...}. The loss counts the tokens of the
// answers (messages of the role "assistant") and of what ends them; all others are masked
// (common/masked_tokens.h).
//
// How messages are framed follows from the tokenizer's special tokens:
//   chatml   <|im_start|>ROLE\nCONTENT<|im_end|>\n                              (Qwen and others)
//   llama3   <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>
//   gemma    <start_of_turn>ROLE\nCONTENT<end_of_turn>\n             ("assistant" is "model")
//   phi3     <|ROLE|>\nCONTENT<|end|>\n
//   mistral  [INST] CONTENT[/INST], and answers " CONTENT</s>"  (where [INST] is one token)
//   plain    CONTENT, and behind an answer the end of text                      (all others)
// gemma and mistral have no role "system": its text goes in front of the next user message, two
// line feeds between.

#ifndef ATOLL_WORKER_DATA_CHAT_H_
#define ATOLL_WORKER_DATA_CHAT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"

namespace atl {

enum class ChatTemplate { kPlain, kChatMl, kLlama3, kGemma, kPhi3, kMistral };

ChatTemplate FindChatTemplate(const Tokenizer* tokenizer);  // null: bytes
const char* Name(ChatTemplate chat);

struct ChatMessage {
  std::string role, content;
};

// Of one line; `line` counts from 1. An empty line has none. INVALID_ARGUMENT names file and line:
// it is neither form, or there is no answer in it.
absl::StatusOr<std::vector<ChatMessage>> ParseChat(std::string_view json, const std::string& file,
                                                   int64_t line);

// One thread at a time.
class ChatEncoder {
 public:
  // `tokenizer` null: bytes are tokens.
  ChatEncoder(const Tokenizer* tokenizer, std::optional<int32_t> end_of_text);

  // Appends a conversation's tokens.
  absl::Status Encode(const std::vector<ChatMessage>& messages, std::vector<int32_t>* out);

 private:
  // `continues`: as of Encoder::Encode.
  absl::Status Add(std::string_view text, bool continues, std::vector<int32_t>* out);
  absl::Status AddMasked(std::string_view text, std::vector<int32_t>* out);
  absl::Status AddAnswer(const std::string& content, std::vector<int32_t>* out);

  const Tokenizer* const tokenizer_;
  const ChatTemplate template_;
  const std::optional<int32_t> end_of_text_;
  std::optional<Encoder> encoder_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_CHAT_H_

// Conversations to fine-tune on: a JSON object a line, either {"messages": [{"role": ...,
// "content": ...}, ...]} or {"prompt": ..., "answer": ...}. The loss counts the tokens of the
// answers (messages of the role "assistant") and of what ends them; all others are masked
// (common/masked_tokens.h), and so are answers with "weight": 0 or "train": false, by any of the
// names that tools give this ("training", "loss", "loss_mask"); a line may have a "weight", too.
//
// Messages keep what else they have: a chat template may frame tool calls and names. Contents that
// are lists of texts become one text, a line each, and arguments of tool calls that are JSON in a
// text become that JSON: as servers do before they apply a template.

#ifndef ATOLL_WORKER_DATA_CHAT_CONVERSATION_H_
#define ATOLL_WORKER_DATA_CHAT_CONVERSATION_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace atl {

struct ChatMessage {
  nlohmann::ordered_json fields;  // an object with a text "role"
  bool learnt = false;            // an answer that the loss counts

  const std::string& role() const { return fields["role"].get_ref<const std::string&>(); }
  // Null: it is absent or null.
  const std::string* content() const;
};

struct Conversation {
  std::vector<ChatMessage> messages;  // none: an empty line
  // The line's variables for templates: "tools", "documents" and what "chat_template_kwargs" has.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  bool plain = false;  // of texts, which no template frames
};

// The same prompt with two answers.
struct ChatPair {
  Conversation chosen, rejected;
};

inline constexpr size_t kMaxMessages = 4096;  // of a conversation

// The fields of a line that conversations are made of, and those that must not stand beside them.
std::vector<std::string> ChatFields();

// Parses one line; `line` counts from 1. INVALID_ARGUMENT names file and line: it is neither form,
// and which one it looks like, or there is no answer in it.
absl::StatusOr<Conversation> ParseChat(std::string_view json, const std::string& file,
                                       int64_t line);

// Parses a line of preferences as TRL reads it: texts "prompt", "chosen" and "rejected", which
// follow each other without a frame; or lists of messages, of which "prompt" may be left out where
// both answers begin with it. Answers in the prompt do not count. Likewise.
absl::StatusOr<ChatPair> ParsePair(std::string_view json, const std::string& file, int64_t line);

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_CHAT_CONVERSATION_H_

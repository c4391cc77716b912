#include "worker/data/chat.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/masked_tokens.h"
#include "common/status.h"

namespace atl {
namespace {

using Json = nlohmann::json;

constexpr const char* kAnswerRole = "assistant";

// What stands around a message's content.
struct Frame {
  std::string before, end, after;  // `end` belongs to the answer: the model learns to stop
};

Frame FrameFor(ChatTemplate chat, const std::string& role) {
  switch (chat) {
    case ChatTemplate::kChatMl:
      return {absl::StrCat("<|im_start|>", role, "\n"), "<|im_end|>", "\n"};
    case ChatTemplate::kLlama3:
      return {absl::StrCat("<|start_header_id|>", role, "<|end_header_id|>\n\n"), "<|eot_id|>", ""};
    case ChatTemplate::kPlain:
      break;
  }
  return {};
}

const std::string* Text(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_string() ? found->get_ptr<const std::string*>()
                                                     : nullptr;
}

}  // namespace

ChatTemplate FindChatTemplate(const Tokenizer* tokenizer) {
  const auto has = [&](std::initializer_list<const char*> names) {
    return tokenizer != nullptr && std::all_of(names.begin(), names.end(), [&](const char* name) {
             return tokenizer->TokenId(name).has_value();
           });
  };
  if (has({"<|im_start|>", "<|im_end|>"})) return ChatTemplate::kChatMl;
  if (has({"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"})) return ChatTemplate::kLlama3;
  return ChatTemplate::kPlain;
}

const char* Name(ChatTemplate chat) {
  switch (chat) {
    case ChatTemplate::kChatMl:
      return "chatml";
    case ChatTemplate::kLlama3:
      return "llama3";
    case ChatTemplate::kPlain:
      break;
  }
  return "plain";
}

absl::StatusOr<std::vector<ChatMessage>> ParseChat(std::string_view json, const std::string& file,
                                                   int64_t line) {
  const auto bad = [&](const std::string& problem) {
    return absl::InvalidArgumentError(absl::StrCat("data file ", file, ":", line, ": ", problem));
  };
  std::vector<ChatMessage> messages;
  if (json.find_first_not_of(" \t\r") == std::string_view::npos) return messages;
  const Json object = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) return bad("is not JSON; is data.format right?");
  if (!object.is_object()) return bad("is not a JSON object");
  if (const std::string* prompt = Text(object, "prompt"); prompt != nullptr) {
    const std::string* answer = Text(object, "answer");
    if (answer == nullptr) return bad("has a \"prompt\", but no text \"answer\"");
    return std::vector<ChatMessage>{{"user", *prompt}, {kAnswerRole, *answer}};
  }
  const auto list = object.find("messages");
  if (list == object.end() || !list->is_array()) {
    return bad("has neither a list \"messages\" nor texts \"prompt\" and \"answer\"");
  }
  bool answered = false;
  for (const Json& entry : *list) {
    const std::string* role = entry.is_object() ? Text(entry, "role") : nullptr;
    const std::string* content = entry.is_object() ? Text(entry, "content") : nullptr;
    if (role == nullptr || content == nullptr) {
      return bad(absl::StrCat("message ", messages.size() + 1,
                              " has no text \"role\" or no text \"content\""));
    }
    answered = answered || *role == kAnswerRole;
    messages.push_back({*role, *content});
  }
  if (!answered) return bad("has no message of the role \"assistant\": there is nothing to learn");
  return messages;
}

ChatEncoder::ChatEncoder(const Tokenizer* tokenizer, std::optional<int32_t> end_of_text)
    : tokenizer_(tokenizer), template_(FindChatTemplate(tokenizer)), end_of_text_(end_of_text) {
  if (tokenizer != nullptr) encoder_.emplace(*tokenizer);
}

absl::Status ChatEncoder::Add(std::string_view text, bool counts, std::vector<int32_t>* out) {
  const size_t before = out->size();
  if (encoder_.has_value()) {
    ATOLL_RETURN_IF_ERROR(encoder_->Encode(text, out));
  } else {
    for (const char c : text) out->push_back(static_cast<unsigned char>(c));
  }
  for (size_t i = before; i < out->size() && !counts; ++i) (*out)[i] = MaskToken((*out)[i]);
  return absl::OkStatus();
}

absl::Status ChatEncoder::Encode(const std::vector<ChatMessage>& messages,
                                 std::vector<int32_t>* out) {
  if (tokenizer_ != nullptr && !messages.empty()) {
    for (const int32_t token : tokenizer_->before()) out->push_back(MaskToken(token));
  }
  for (const ChatMessage& message : messages) {
    const Frame frame = FrameFor(template_, message.role);
    if (message.role != kAnswerRole) {
      ATOLL_RETURN_IF_ERROR(
          Add(absl::StrCat(frame.before, message.content, frame.end, frame.after), false, out));
      continue;
    }
    // Cut where the prompt of an inference is cut: behind what comes before an answer.
    if (!frame.before.empty()) ATOLL_RETURN_IF_ERROR(Add(frame.before, false, out));
    ATOLL_RETURN_IF_ERROR(Add(absl::StrCat(message.content, frame.end), true, out));
    if (!frame.after.empty()) ATOLL_RETURN_IF_ERROR(Add(frame.after, false, out));
    if (template_ == ChatTemplate::kPlain && end_of_text_.has_value()) {
      out->push_back(*end_of_text_);
    }
  }
  return absl::OkStatus();
}

}  // namespace atl

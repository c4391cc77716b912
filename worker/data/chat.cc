#include "worker/data/chat.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/masked_tokens.h"
#include "common/status.h"
#include "worker/data/formats/json_line.h"

namespace atl {
namespace {

using Json = nlohmann::json;

constexpr const char* kAnswerRole = "assistant";
constexpr const char* kSystemRole = "system";
constexpr const char* kUserRole = "user";

// What stands around a message's content.
struct Frame {
  std::string before;
  std::string end;    // belongs to the answer: the model learns to stop
  std::string after;  // of every message
};

struct TemplateRow {
  ChatTemplate chat;
  const char* name;
  std::vector<const char*> tokens;  // a tokenizer that has them uses the template
  bool has_system_role;
};

const std::vector<TemplateRow>& Templates() {
  static const auto* const kRows = new std::vector<TemplateRow>{
      {ChatTemplate::kChatMl, "chatml", {"<|im_start|>", "<|im_end|>"}, true},
      {ChatTemplate::kLlama3,
       "llama3",
       {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       true},
      {ChatTemplate::kGemma, "gemma", {"<start_of_turn>", "<end_of_turn>"}, false},
      {ChatTemplate::kPhi3, "phi3", {"<|user|>", "<|assistant|>", "<|end|>"}, true},
      {ChatTemplate::kMistral, "mistral", {"[INST]", "[/INST]", "</s>"}, false},
      {ChatTemplate::kPlain, "plain", {}, true}};
  return *kRows;
}

const TemplateRow& RowFor(ChatTemplate chat) {
  return *std::find_if(Templates().begin(), Templates().end(),
                       [&](const TemplateRow& row) { return row.chat == chat; });
}

Frame FrameFor(ChatTemplate chat, const std::string& role) {
  const bool is_answer = role == kAnswerRole;
  switch (chat) {
    case ChatTemplate::kChatMl:
      return {absl::StrCat("<|im_start|>", role, "\n"), "<|im_end|>", "\n"};
    case ChatTemplate::kLlama3:
      return {absl::StrCat("<|start_header_id|>", role, "<|end_header_id|>\n\n"), "<|eot_id|>", ""};
    case ChatTemplate::kGemma:
      return {absl::StrCat("<start_of_turn>", is_answer ? "model" : role, "\n"), "<end_of_turn>",
              "\n"};
    case ChatTemplate::kPhi3:
      return {absl::StrCat("<|", role, "|>\n"), "<|end|>", "\n"};
    case ChatTemplate::kMistral:
      // [/INST] ends the prompt, and is encoded with the answer: what a tokenizer does to a text
      // behind a special token then happens to the answer.
      if (is_answer) return {"[/INST]", "</s>", ""};
      return {"[INST] ", "", ""};
    case ChatTemplate::kPlain:
      break;
  }
  return {};
}

// Whether the tokenizer finds the token in text: it finds no control token of SentencePiece.
bool FindsToken(const Tokenizer& tokenizer, const char* token) {
  const auto id = tokenizer.TokenId(token);
  std::vector<int32_t> ids;
  return id.has_value() && Encoder(tokenizer).Encode(token, &ids).ok() &&
         std::find(ids.begin(), ids.end(), *id) != ids.end();
}

// Texts of the system go in front of the next message of the user, or are one before an answer.
std::vector<ChatMessage> WithoutSystem(const std::vector<ChatMessage>& messages) {
  std::vector<ChatMessage> result;
  std::string system;
  for (const ChatMessage& message : messages) {
    if (message.role == kSystemRole) {
      absl::StrAppend(&system, system.empty() ? "" : "\n\n", message.content);
      continue;
    }
    if (!system.empty() && message.role == kAnswerRole) result.push_back({kUserRole, system});
    result.push_back(message);
    if (!system.empty() && message.role != kAnswerRole) {
      result.back().content = absl::StrCat(system, "\n\n", message.content);
    }
    system.clear();
  }
  return result;
}

const std::string* Text(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_string() ? found->get_ptr<const std::string*>()
                                                     : nullptr;
}

}  // namespace

ChatTemplate FindChatTemplate(const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return ChatTemplate::kPlain;
  const auto found =
      std::find_if(Templates().begin(), Templates().end(), [&](const TemplateRow& row) {
        return std::all_of(row.tokens.begin(), row.tokens.end(),
                           [&](const char* token) { return FindsToken(*tokenizer, token); });
      });
  return found->chat;
}

const char* Name(ChatTemplate chat) { return RowFor(chat).name; }

absl::StatusOr<std::vector<ChatMessage>> ParseChat(std::string_view json, const std::string& file,
                                                   int64_t line) {
  const auto bad = [&](const std::string& problem) {
    return absl::InvalidArgumentError(absl::StrCat("data file ", file, ":", line, ": ", problem));
  };
  std::vector<ChatMessage> messages;
  ATOLL_ASSIGN_OR_RETURN(const std::optional<Json> parsed, ParseJsonLine(json, file, line));
  if (!parsed.has_value()) return messages;
  const Json& object = *parsed;
  if (const std::string* prompt = Text(object, "prompt"); prompt != nullptr) {
    const std::string* answer = Text(object, "answer");
    if (answer == nullptr) return bad("has a \"prompt\", but no text \"answer\"");
    return std::vector<ChatMessage>{{kUserRole, *prompt}, {kAnswerRole, *answer}};
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

absl::Status ChatEncoder::Add(std::string_view text, bool continues, std::vector<int32_t>* out) {
  if (encoder_.has_value()) return encoder_->Encode(text, out, continues);
  for (const char c : text) out->push_back(static_cast<unsigned char>(c));
  return absl::OkStatus();
}

absl::Status ChatEncoder::AddMasked(std::string_view text, std::vector<int32_t>* out) {
  const size_t begin = out->size();
  ATOLL_RETURN_IF_ERROR(Add(text, /*continues=*/false, out));
  for (size_t i = begin; i < out->size(); ++i) (*out)[i] = MaskToken((*out)[i]);
  return absl::OkStatus();
}

// Counts from where the prompt of an inference ends, behind what comes before an answer, to the
// token that ends it.
absl::Status ChatEncoder::AddAnswer(const std::string& content, std::vector<int32_t>* out) {
  const Frame frame = FrameFor(template_, kAnswerRole);
  const char* const space = template_ == ChatTemplate::kMistral ? " " : "";
  const std::string answer = absl::StrCat(space, content, frame.end, frame.after);
  std::vector<int32_t> prompt, whole;
  ATOLL_RETURN_IF_ERROR(Add(frame.before, /*continues=*/false, &prompt));
  ATOLL_RETURN_IF_ERROR(Add(absl::StrCat(frame.before, answer), /*continues=*/false, &whole));
  if (whole.size() < prompt.size() || !std::equal(prompt.begin(), prompt.end(), whole.begin())) {
    // A token joins the end of the prompt and the beginning of the answer: an inference has none.
    whole = prompt;
    ATOLL_RETURN_IF_ERROR(Add(answer, /*continues=*/true, &whole));
  }
  size_t end = whole.size();
  if (tokenizer_ != nullptr && !frame.end.empty()) {
    const auto last = std::find(whole.rbegin(), whole.rend(), *tokenizer_->TokenId(frame.end));
    if (last != whole.rend()) end = static_cast<size_t>(whole.rend() - last);
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    const bool counts = i >= prompt.size() && i < end;
    out->push_back(counts ? whole[i] : MaskToken(whole[i]));
  }
  if (template_ == ChatTemplate::kPlain && end_of_text_.has_value()) out->push_back(*end_of_text_);
  return absl::OkStatus();
}

absl::Status ChatEncoder::Encode(const std::vector<ChatMessage>& messages,
                                 std::vector<int32_t>* out) {
  if (tokenizer_ != nullptr && !messages.empty()) {
    for (const int32_t token : tokenizer_->before()) out->push_back(MaskToken(token));
  }
  const bool has_system_role = RowFor(template_).has_system_role;
  for (const ChatMessage& message : has_system_role ? messages : WithoutSystem(messages)) {
    if (message.role == kAnswerRole) {
      ATOLL_RETURN_IF_ERROR(AddAnswer(message.content, out));
      continue;
    }
    const Frame frame = FrameFor(template_, message.role);
    ATOLL_RETURN_IF_ERROR(
        AddMasked(absl::StrCat(frame.before, message.content, frame.end, frame.after), out));
  }
  return absl::OkStatus();
}

}  // namespace atl
